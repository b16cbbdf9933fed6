"""Writes the golden file of tests/plan/test_kernel_versions.py: the launches of each kernel family with variants.

python scripts/golden.py             after you raised a version in src/handheld/kernels/versions.py
python scripts/golden.py --same      if the launches differ only in text, such as a renamed variable,
                                     and run exactly as fast
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from helpers.golden_launches import PATH, changed, generate


def main() -> None:
    old = json.loads(PATH.read_text(encoding="utf-8")) if PATH.exists() else {}
    new = generate()
    rows = changed(old, new)
    if rows and "--same" not in sys.argv[1:]:
        names = ", ".join(f"{name} on a {kind}" for name, kind, _ in rows)
        sys.exit(
            f"the launches of {names} changed but the version did not. Try: raise the version in "
            "src/handheld/kernels/versions.py; or --same, if the change cannot affect their speed"
        )
    PATH.write_text(json.dumps(new, indent=1) + "\n", encoding="utf-8")
    print(f"{PATH} is written")


if __name__ == "__main__":
    main()

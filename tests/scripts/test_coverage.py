"""The lists of models in coverage/: names are unique, and the command tries a model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

RUN = Path(__file__).resolve().parents[2] / "coverage" / "run.py"


def run(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", str(RUN), *options], capture_output=True, text=True, check=False
    )


def test_every_model_has_a_name_of_its_own() -> None:
    rows = run("--list").stdout.splitlines()
    libraries, names = zip(*(row.split(maxsplit=1) for row in rows), strict=True)
    assert len(names) > 600 and len(set(names)) == len(names)
    assert set(libraries) == {"plain", "huggingface", "timm", "pytorchcv"}


def test_a_model_is_tried(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    done = run("--group", "plain", "--only", "lora", "--on", "reference:cpu", "--steps", "1", "--json", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(path.read_text())
    assert (row["name"], row["verdict"], row["dropout"]) == ("lora", "ok", "ok")
    assert row["nodes"] > 5 and row["exact"] < 1e-6

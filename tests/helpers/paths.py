"""The import path for another process: that of this one without the temporary folders of other tests."""

from __future__ import annotations

import sys


def clean_path() -> list[str]:
    return [path for path in sys.path if path and "pytest-of" not in path]

"""A runner that is a short shell script: these tests are about how a runner is reached, not about what it does."""

from __future__ import annotations

from pathlib import Path

import pytest

from handheld.targets import find
from helpers.phones import phones

__all__ = ["phones", "runner"]

RUNNER = """#!/bin/sh
case "$1" in
--version) echo "handheld-runner test";;
echo) exec cat;;
info) echo "libraries=$LD_LIBRARY_PATH"; echo "opencl=$HANDHELD_OPENCL"; shift; echo "$@";;
die) kill -9 $$;;
hang) exec sleep 60;;
fail) echo "something broke" >&2; exit 3;;
esac
"""


@pytest.fixture(autouse=True)
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "a runner"
    path.write_text(RUNNER)
    path.chmod(0o755)
    monkeypatch.setenv("HANDHELD_RUNNER", str(path))
    monkeypatch.setattr(find, "_opened", {})
    return path

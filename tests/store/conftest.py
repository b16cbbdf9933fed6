"""The fixture of the store tests: a complete run file."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.run_files import MadeRun


@pytest.fixture
def whole(tmp_path) -> Path:
    made = MadeRun(tmp_path / "whole.run")
    made.steps(200)
    made.open().close()
    return made.path

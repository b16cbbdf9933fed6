"""Commands in this process, and whole fleets in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from handheld.cli.main import app
from helpers.commands import FACTORY


@pytest.fixture
def run() -> Callable:
    return lambda *words: CliRunner().invoke(app, list(words), env={"COLUMNS": "100"})


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    """A folder with a small model as a step file, which needs no PyTorch to run, and a fleet file."""
    folder = tmp_path_factory.mktemp("fleet")
    (folder / "mine.py").write_text(FACTORY)
    words = ["package", str(folder / "mine.py:with_batch"), "--out", str(folder / "tiny.step")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture
def start(work) -> Callable[..., subprocess.Popen]:
    """Starts a command in the work folder."""

    def started(*words: str) -> subprocess.Popen:
        environment = {**os.environ, "COLUMNS": "100", "HANDHELD_DRIVER_CHECK": "off"}
        return subprocess.Popen(
            [sys.executable, "-m", "handheld", *words],
            cwd=work,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    return started

"""Commands in this process."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from handheld.cli.main import app


@pytest.fixture
def run() -> Callable:
    return lambda *words: CliRunner().invoke(app, list(words), env={"COLUMNS": "100"})

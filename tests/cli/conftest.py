"""Fixtures of the command tests: a work folder with a factory, and a function that runs commands in it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from handheld.cli import output
from handheld.cli.main import app
from handheld.profile import run as profile_run
from handheld.profile import sampling
from helpers.commands import BLOCK_TORCH, FACTORY


@pytest.fixture(autouse=True)
def short_idle(monkeypatch):
    """Commands that run in this process do not wait a second to measure the idle power."""
    monkeypatch.setattr(profile_run, "idle", lambda writer, seconds: sampling.idle(writer, min(seconds, 0.05)))


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    """A folder with a user's file and data. Commands write their files here."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "mine.py").write_text(FACTORY)
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 400)
    x = rng.standard_normal((3, 6))[labels] * 2 + 0.3 * rng.standard_normal((400, 6))
    np.savez(folder / "data.npz", x=x.astype(np.float32), y=labels)
    np.savez(folder / "thin.npz", x=np.zeros((64, 5), np.float32), y=np.arange(64) % 3)
    np.savez(folder / "wide.npz", x=np.zeros((64, 6), np.float32), y=np.arange(64) % 7)
    # In its own folder: `mine.py` puts its folder on sys.path, and later tests start children with that path.
    (folder / "block").mkdir()
    (folder / "block" / "sitecustomize.py").write_text(BLOCK_TORCH)
    return folder


@pytest.fixture
def run(work, monkeypatch):
    """Runs a command in the folder, with 80 columns and no colours."""
    monkeypatch.chdir(work)
    for console in (output.out, output.err):
        monkeypatch.setattr(console, "_width", 80)

    def call(*words: str):
        return CliRunner().invoke(app, list(words), prog_name="handheld")

    return call

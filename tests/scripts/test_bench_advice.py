"""bench/advice.py: tries the first advice for a workload, and its table can be shown again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.known_ceilings import store_ceilings
from helpers.paths import clean_path

SCRIPT = Path(__file__).resolve().parents[2] / "bench" / "advice.py"


def call(*words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(clean_path())}
    return subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True, env=env, check=False)


def test_a_workload_is_tried(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HANDHELD_CACHE", str(tmp_path / "cache"))
    store_ceilings()
    out = tmp_path / "advice.json"
    done = call("m1", "no_such_model", "--batch", "4", "--steps", "30", "--seconds", "1", "--out", str(out))
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    trial = result["workloads"]["m1"]["trial"]
    assert trial["promised"] > 1 and trial["measured"] > 0 and trial["turns"]["rounds"] >= 8
    assert "no_such_model" in result["workloads"]["no_such_model"]["problem"], "the others are kept"
    shown = call("--show", str(out))
    assert "| m1, batch 4 |" in shown.stdout and "promised" in shown.stdout and shown.stdout in done.stdout

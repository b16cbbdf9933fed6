"""scripts/check_training.py: what counts as training, what is written, and how a second call goes on."""

from __future__ import annotations

import json
import math
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "check_training.py"
verdict = runpy.run_path(str(SCRIPT))["verdict"]


@pytest.mark.parametrize(
    ("name", "losses", "status"),
    [
        ("mlp", {"train": [2.0, 1.0]}, "trains"),
        ("mlp", {"train": [2.0, 2.0]}, "fails"),
        ("mlp", {"train": [2.0, math.nan]}, "fails"),
        ("mlp", {"train": [2.0]}, "stopped"),
        ("mlp", {}, "stopped"),
        ("dcgan", {"d": [2.0, 1.0], "g": [1.0, 3.0]}, "trains"),
        ("dcgan", {"d": [2.0, 3.0], "g": [1.0, 0.5]}, "fails"),
        ("dcgan", {"d": [2.0, 1.0], "g": [1.0, math.inf]}, "fails"),
    ],
)
def test_a_loss_must_stay_finite_and_fall(name, losses, status):
    assert verdict(name, losses, 2)[0] == status


def test_a_second_call_keeps_what_is_finished(tmp_path):
    out = tmp_path / "training.json"

    def call(*more: str) -> subprocess.CompletedProcess[str]:
        options = ["--on", "pytorch:cpu,reference:cpu", "--steps", "3", "--batch", "4", "--out", str(out), *more]
        command = [sys.executable, str(SCRIPT), *options]
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)

    stopped = call("--only", "m1", "--minutes", "0")
    assert stopped.returncode == 2, stopped.stderr
    assert "no time was left for 2" in stopped.stdout
    first = call("--only", "m1")
    assert first.returncode == 0, first.stdout + first.stderr
    rows = json.loads(out.read_text())["rows"]
    assert [(row["on"], row["status"]) for row in rows] == [("pytorch:cpu", "trains"), ("reference:cpu", "trains")]
    eager, planned = (row["losses"]["train"] for row in rows)
    assert eager == pytest.approx(planned, rel=1e-4)
    assert len(eager) == 3
    again = call("--only", "m1")
    assert again.returncode == 0
    assert json.loads(out.read_text())["rows"] == rows  # The seconds are equal too: nothing was trained again.

"""scripts/check_training.py: what counts as training, what is written, and how a second call goes on."""

from __future__ import annotations

import json
import math
import runpy
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "check_training.py"
script = runpy.run_path(str(SCRIPT))
verdict = script["verdict"]


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


def test_a_second_call_keeps_what_is_finished(tmp_path, monkeypatch, capsys):
    out = tmp_path / "training.json"

    def call(*more: str) -> tuple[int, str]:
        """The exit code and what was printed. Each workload is trained in another process."""
        options = ["--on", "pytorch:cpu,reference:cpu", "--steps", "3", "--batch", "4", "--out", str(out), *more]
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *options])
        with pytest.raises(SystemExit) as ended:
            script["main"]()
        return int(ended.value.code or 0), capsys.readouterr().out

    code, said = call("--only", "m1", "--minutes", "0")
    assert code == 2 and "no time was left for 2" in said
    code, said = call("--only", "m1")
    assert code == 0, said
    rows = json.loads(out.read_text())["rows"]
    assert [(row["on"], row["status"]) for row in rows] == [("pytorch:cpu", "trains"), ("reference:cpu", "trains")]
    eager, planned = (row["losses"]["train"] for row in rows)
    assert eager == pytest.approx(planned, rel=1e-4)
    assert len(eager) == 3
    assert call("--only", "m1")[0] == 0
    assert json.loads(out.read_text())["rows"] == rows  # The seconds are equal too: nothing was trained again.

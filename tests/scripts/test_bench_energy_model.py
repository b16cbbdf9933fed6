"""bench/energy_model.py: calibration, held-out ops and sums beside a meter, with few ops and a small model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
#: With fewer ops and shorter windows than a test of the model needs. On a busy machine some of the ops wait for the
#: host and are left out; three must remain.
START = (
    "import energy_model; from handheld.profile import calibrate; calibrate.LEAST_S, calibrate.IDLE_S = 0.15, 0.3; "
    "energy_model.HELD_OUT, energy_model.WARM_S = 6, 0.2; energy_model.main()"
)


def test_with_a_meter(tmp_path):
    out = tmp_path / "one.json"
    options = ["--size", "small", "--models", "lenet5=256", "--seconds", "0.5", "--energy-seconds", "0"]
    options += ["--few", "5", "--window", "0.15", "--sensor", "helpers.meters:Meter", "--json", str(out)]
    done = subprocess.run(
        [sys.executable, "-c", START, *options],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("src", "tests", "bench")),
            "HANDHELD_CACHE": str(tmp_path / "cache"),
        },
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(out.read_text())
    assert len(result["calibration"]["samples"]) >= 3
    assert result["ops"] and all(row["measured"] > 0 and row["model"] > 0 for row in result["ops"])
    (model,) = result["models"]
    (total,) = model["sums"].values()
    assert total["sum"] > 0 and total["counter"] > 0 and model["profile"]["step_ms"] > 0

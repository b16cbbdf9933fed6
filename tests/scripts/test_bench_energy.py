"""bench/energy.py on a meter that counts the process's cores: its figures are consistent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.paths import clean_path

ROOT = Path(__file__).resolve().parents[2]


#: With fewer and shorter windows than a measurement needs.
START = (
    "import sys, energy; energy.ROUNDS = energy.OTHER_ROUNDS = 2; energy.PLANTED_ROUNDS = 3; "
    "energy.LEAST_S, energy.STEPS_S = 0.1, 0.5; sys.exit(energy.main())"
)


def run(*words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "bench"), *clean_path()])}
    return subprocess.run([sys.executable, "-c", START, *words], env=env, capture_output=True, text=True, check=False)


def test_with_a_meter(tmp_path):
    done = run(
        "--only",
        "a",
        "--seconds",
        "2.5",
        "--ticks",
        "10",
        "--other",
        "16",
        "--sensor",
        "helpers.meters:Meter",
        "--json",
        str(tmp_path / "one.json"),
        "--keep",
        str(tmp_path),
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads((tmp_path / "one.json").read_text())
    (row,) = found["rows"]
    assert row["rail"] == "meter/cpu energy" and row["other_batch"] == 16
    # The meter shows 2 W plus 10 W per core, so no figure can lie outside of that.
    assert row["idle_watts"] == pytest.approx(2, abs=1.5)
    assert 2 < row["watts"] < 2 + 10 * (os.cpu_count() or 1) + 1
    for name in ("step", "forward", "other batch"):
        assert row[name]["joules"] > 0 and row[name]["alone"] > 0
    assert 0 < row["forward"]["seconds"] < row["step"]["seconds"] * 2
    assert row["signatures"] and row["memory_share"] is None
    for method in ("slope", "alone"):
        assert set(found["planted"][method]) == {"arithmetic", "memory", "told apart"}
    assert (tmp_path / "a" / "first.run").exists()


def test_without_a_sensor_of_power():
    done = run("--only", "a", "--sensor", "handheld.sensors.cpu:CpuBusy")
    assert done.returncode == 1 and "this machine has no power sensor" in done.stderr
    assert "Traceback" not in done.stderr

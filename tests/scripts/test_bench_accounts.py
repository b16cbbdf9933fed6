"""bench/accounts.py with less time than it needs: the results so far are kept and printed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from helpers.paths import clean_path

ROOT = Path(__file__).resolve().parents[2]


#: With fewer steps than a measurement needs.
START = "import sys, account_times as t, accounts; t.HOLDS, t.PLAIN_S = 3, 0.3; sys.exit(accounts.main())"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "bench"), *clean_path()])}
    return subprocess.run([sys.executable, "-c", START, *words], env=env, capture_output=True, text=True, check=False)


def test_what_there_is_time_for_is_kept(tmp_path):
    out = tmp_path / "out"
    done = run(
        "--only", "i", "--minutes", "0.5", "--sensor", "helpers.meters:Meter", "--out", str(out), "--profiled", "0.5"
    )
    assert done.returncode == 1, "parts are missing, and that is said" + done.stderr[-2000:]
    found = json.loads((out / "accounts.json").read_text())
    (row,) = found["workloads"].values()
    parts = row["time"]["parts"]
    assert abs(sum(v for k, v in parts.items() if k not in ("ms", "steps")) - parts["ms"]) < 1e-6
    busy = row["time"]["busy_ms"]  # None if the host is not ahead of the device, as on a busy machine.
    assert (busy is None or busy > 0) and row["time"]["kernels_ms"] > 0
    assert row["time"]["memory"]["allocated_bytes"] == row["time"]["memory"]["plan_bytes"]
    assert "no time" in found["problems"]["two kernels"]
    assert any("energy" in name for name in found["problems"]) and "energy" not in row
    again = run("--show", str(out / "accounts.json"))
    table = done.stdout[done.stdout.index("\n\n") :]
    assert again.stdout.strip() == table.strip() and "unexplained of a step" in table

"""bench/accounts.py with less time than it needs: the results so far are kept and printed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from helpers.paths import clean_path

ROOT = Path(__file__).resolve().parents[2]


#: Runs the command twice in one process, with fewer steps than a measurement needs; SHOWN comes between.
SHOWN = "the same again:"
START = f"""
import json, sys, account_times as t, accounts
t.HOLDS, t.PLAIN_S = 3, 0.3
first, second = json.loads(sys.argv[1])
sys.argv[1:] = first
code = accounts.main()
print({SHOWN!r})
sys.argv[1:] = second
accounts.main()
sys.exit(code)
"""


def run(*commands: list[str]) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "bench"), *clean_path()])}
    start = [sys.executable, "-c", START, json.dumps(commands)]
    return subprocess.run(start, env=env, capture_output=True, text=True, check=False)


def test_what_there_is_time_for_is_kept(tmp_path):
    out = tmp_path / "out"
    words = ["--only", "i", "--minutes", "0.5", "--sensor", "helpers.meters:Meter", "--out", str(out)]
    done = run([*words, "--profiled", "0.5"], ["--show", str(out / "accounts.json")])
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
    printed, again = done.stdout.split(SHOWN)
    table = printed[printed.index("\n\n") :]
    assert again.strip() == table.strip() and "unexplained of a step" in table

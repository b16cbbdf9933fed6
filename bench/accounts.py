"""Whether what a profile says adds up, on one device, in a given time: one command for all of it.

    python bench/accounts.py [--on opencl] [--only fRM] [--minutes 8] [--out FOLDER]
                             [--ticks 10] [--rounds 3] [--sensor MODULE:CLASS] [--no-planted]
                             [--keep-runs FOLDER]
    python bench/accounts.py --show FOLDER/accounts.json

For each workload:

    time     parts of a step and what no cause explains; the sum of kernel times beside the busy
             time without a profiler. For both, steps are enqueued ahead behind a kernel that holds
             the queue, so that the device never waits for the host: one that finds it idle takes
             longer. The sum in steps as they run is said as well
    memory   planned, allocated, and what the device and the process grew by
    energy   bench/energy.py: ops by two methods, held against the counter where it was held out

and once: two kernels of equal time, PyTorch's own ops on a GPU (`reference:cuda`, `watch`). Everything
is written to FOLDER/accounts.json as soon as it is there, with the time it took; a part that fails
or has no time left says so and the next one goes on. Ends in a table of figures and limits.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import energy
import numpy as np
import torch
from account_limits import say
from account_times import Row, times, with_torch
from workloads import chosen

import handheld
from handheld.backends.base import describe
from handheld.errors import HandheldError

ELSE_S = 40.0  # what a workload takes besides windows, until one has shown it


WINDOWS_S = 40.0  # of windows for energy, at least


PLANTED_S, TORCH_S = 45.0, 20.0  # what the two kernels, and PyTorch's ops, may take


END_S, LATE_S = 8.0, 60.0  # for the end; past the given time it is ended wherever it is


# ── all of it, in the time there is ───────────────────────────────────────────────────────────


class Report:
    """What was found so far, in a file at all times."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.path = options.out / "accounts.json"
        self.end = time.monotonic() + 60 * options.minutes - END_S
        self.options = options
        self.found: Row = {"workloads": {}, "problems": {}, "seconds": {}}

    @property
    def left(self) -> float:
        return self.end - time.monotonic()

    def part(self, name: str, into: Row, key: str, run: Callable[[], Any], least_s: float = 1.0) -> None:
        """Runs a part, keeps what it gives, or why it gives nothing."""
        if self.left < least_s:
            self.found["problems"][name] = f"no time: {self.left:.0f} s are left and it needs {least_s:.0f} s"
            print(f"{name}: {self.found['problems'][name]}", flush=True)
            return self.write()
        print(f"{name} ({self.left:.0f} s left)", flush=True)
        begun = time.monotonic()
        try:
            into[key] = run()
        except Exception as error:  # whatever it is, what is there is kept and the rest goes on
            self.found["problems"][name] = f"{type(error).__name__}: {error}"
            traceback.print_exc()
        self.found["seconds"][name] = time.monotonic() - begun
        return self.write()

    def write(self) -> None:
        whole = json.dumps(plain(self.found), indent=1)
        made = self.path.with_suffix(".part")
        made.write_text(whole + "\n", encoding="utf-8")
        made.replace(self.path)


def plain(value: Any) -> Any:
    """JSON has no infinity: None stands for what is not known."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, (np.floating, float)):
        return float(value) if math.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value


def everything(options: argparse.Namespace, folder: Path) -> Row:
    """All parts, into the report; `folder` is for run files."""
    options.out.mkdir(parents=True)
    report = Report(options)
    caps = describe(options.on)
    print(f"handheld {handheld.__version__} on {caps.name} ({caps.driver})")
    found = energy.find_sensors(options.sensor)
    found.need_power()
    report.found |= {
        "device": caps.to_json(),
        "torch": torch.__version__,
        "commit": commit(),
        "settings": {k: str(v) for k, v in vars(options).items()},
        "sensors": [one.name for one in found.here],
        "absent": found.absent,
    }
    report.write()
    entries = chosen(options.only)
    for entry in entries:
        row = report.found["workloads"].setdefault(entry.name, {})
        path = folder / f"{entry.letter}-time.run"
        report.part(f"{entry.name}: time", row, "time", lambda e=entry, p=path: times(e, options, found, p), 15.0)
    options.seconds = 0.0
    if not options.no_planted:
        report.part(
            "two kernels",
            report.found,
            "planted",
            lambda: energy.planted(options, found, folder / "planted.run"),
            PLANTED_S,
        )
    besides = max(min(ELSE_S, report.left / len(entries) / 2), 5.0)
    for n, entry in enumerate(entries):
        row = report.found["workloads"][entry.name]
        options.seconds = max((report.left - TORCH_S) / (len(entries) - n) - besides, WINDOWS_S)
        mine = folder / entry.letter
        mine.mkdir()
        before = report.left
        report.part(
            f"{entry.name}: energy in {options.seconds:.0f} s",
            row,
            "energy",
            lambda e=entry, f=mine: energy.compare(e, options, found, f),
            besides + WINDOWS_S,
        )
        besides = max(before - report.left - options.seconds, 5.0)
    report.part("torch", report.found, "torch_ops", lambda: with_torch(found, folder), TORCH_S / 2)
    return report.found


def commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=Path(__file__).parent
    )
    return done.stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", default="opencl")
    parser.add_argument("--only", default="fRM", help="letters, small or large")
    parser.add_argument("--minutes", type=float, default=8.0, help="for all of it")
    parser.add_argument("--out", type=Path, default=Path("accounts"), help="a new folder")
    parser.add_argument("--profiled", type=float, default=4.0, help="seconds of profiled steps")
    parser.add_argument("--ticks", type=int, default=10, help="of the slowest sensor, a window")
    parser.add_argument("--rounds", type=int, default=3, help="of windows, at least")
    parser.add_argument("--other", type=int, help="the other batch size; half if not given")
    parser.add_argument("--sensor", metavar="MODULE:CLASS", help="this sensor alone, not all")
    parser.add_argument("--no-planted", action="store_true", help="leave the two kernels out")
    parser.add_argument("--keep-runs", type=Path, metavar="FOLDER", help="keep the run files there")
    parser.add_argument("--show", type=Path, metavar="JSON", help="say again what was found")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.show:
        found, folder = json.loads(options.show.read_text()), options.show.parent
    else:
        # a driver that hangs is not waited for: what was found is in the file
        faulthandler.dump_traceback_later(60 * options.minutes + LATE_S, exit=True)
        try:
            with tempfile.TemporaryDirectory() as runs:
                kept = options.keep_runs or Path(runs)
                kept.mkdir(parents=True, exist_ok=True)
                found, folder = plain(everything(options, kept)), options.out
        except (HandheldError, FileExistsError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        faulthandler.cancel_dump_traceback_later()
    done = [row["energy"] for row in found["workloads"].values() if "energy" in row]
    if done:
        energy.plot(done, found["device"]["name"], folder / "accounts.html")
    return say(found)


if __name__ == "__main__":
    sys.path[:0] = [os.getcwd()]  # a --sensor of the folder it is started in
    sys.exit(main())

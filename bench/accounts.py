"""Checks on one device, within a given time, whether the figures of a profile add up.

    python bench/accounts.py [--on opencl] [--only fRM] [--minutes 8] [--out FOLDER]
                             [--ticks 10] [--rounds 3] [--sensor MODULE:CLASS] [--no-planted]
                             [--keep-runs FOLDER]
    python bench/accounts.py --show FOLDER/accounts.json

For each workload:

    time     the parts of a step, and the time that no part explains; the sum of kernel times and
             the busy time without a profiler. For both, steps are enqueued in advance behind a
             kernel that blocks the queue, so that the device never waits for the host: a kernel
             takes longer on a device that was idle. The sum in ordinary steps is shown too
    memory   planned and allocated bytes, and the growth of the device's and the process's memory
    energy   bench/energy.py: ops by two methods, compared with the counter on held-out work

Once per run: two kernels of equal time, and PyTorch's own ops on a GPU (`reference:cuda`, `watch`).
Each result is written to FOLDER/accounts.json as soon as it exists, with the time it took. If a part
fails or has no time left, the file says so and the next part runs. The command ends with a table of
figures and limits.
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

ELSE_S = 40.0  # seconds per workload outside its windows, until the first workload has been measured
WINDOWS_S = 40.0  # least seconds of energy windows per workload
PLANTED_S, TORCH_S = 45.0, 20.0  # seconds for the two kernels, and for PyTorch's ops
END_S, LATE_S = 8.0, 60.0  # seconds kept for the end; this long after the given time the process is killed


class Report:
    """The results so far. They are written to the file after each part."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.path = options.out / "accounts.json"
        self.end = time.monotonic() + 60 * options.minutes - END_S
        self.options = options
        self.found: Row = {"workloads": {}, "problems": {}, "seconds": {}}

    @property
    def left(self) -> float:
        return self.end - time.monotonic()

    def part(self, name: str, into: Row, key: str, run: Callable[[], Any], least_s: float = 1.0) -> None:
        """Runs a part and stores its result under `into[key]`, or the reason why it has none."""
        if self.left < least_s:
            self.found["problems"][name] = f"no time: {self.left:.0f} s are left and it needs {least_s:.0f} s"
            print(f"{name}: {self.found['problems'][name]}", flush=True)
            return self.write()
        print(f"{name} ({self.left:.0f} s left)", flush=True)
        begun = time.monotonic()
        try:
            into[key] = run()
        except Exception as error:  # Earlier results are kept, and the next part runs.
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
    """The value as JSON can hold it: None replaces infinities and NaN."""
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
    sensors = energy.find_sensors(options.sensor)
    sensors.need_power()
    report.found |= {
        "device": caps.to_json(),
        "torch": torch.__version__,
        "commit": commit(),
        "settings": {k: str(v) for k, v in vars(options).items()},
        "sensors": [sensor.name for sensor in sensors.here],
        "absent": sensors.absent,
    }
    report.write()
    entries = chosen(options.only)
    for entry in entries:
        row = report.found["workloads"].setdefault(entry.name, {})
        path = folder / f"{entry.letter}-time.run"
        report.part(f"{entry.name}: time", row, "time", lambda e=entry, p=path: times(e, options, sensors, p), 15.0)
    options.seconds = 0.0
    if not options.no_planted:
        report.part(
            "two kernels",
            report.found,
            "planted",
            lambda: energy.planted(options, sensors, folder / "planted.run"),
            PLANTED_S,
        )
    besides = max(min(ELSE_S, report.left / len(entries) / 2), 5.0)
    for n, entry in enumerate(entries):
        row = report.found["workloads"][entry.name]
        options.seconds = max((report.left - TORCH_S) / (len(entries) - n) - besides, WINDOWS_S)
        runs_folder = folder / entry.letter
        runs_folder.mkdir()
        before = report.left
        report.part(
            f"{entry.name}: energy in {options.seconds:.0f} s",
            row,
            "energy",
            lambda e=entry, f=runs_folder: energy.compare(e, options, sensors, f),
            besides + WINDOWS_S,
        )
        besides = max(before - report.left - options.seconds, 5.0)
    report.part("torch", report.found, "torch_ops", lambda: with_torch(sensors, folder), TORCH_S / 2)
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
    parser.add_argument("--minutes", type=float, default=8.0, help="time limit for the whole command")
    parser.add_argument("--out", type=Path, default=Path("accounts"), help="a new folder")
    parser.add_argument("--profiled", type=float, default=4.0, help="seconds of profiled steps")
    parser.add_argument("--ticks", type=int, default=10, help="updates of the slowest sensor per window")
    parser.add_argument("--rounds", type=int, default=3, help="least rounds of windows")
    parser.add_argument("--other", type=int, help="the other batch size (default: half)")
    parser.add_argument("--sensor", metavar="MODULE:CLASS", help="use only this sensor")
    parser.add_argument("--no-planted", action="store_true", help="leave the two kernels out")
    parser.add_argument("--keep-runs", type=Path, metavar="FOLDER", help="keep the run files in this folder")
    parser.add_argument("--show", type=Path, metavar="JSON", help="print the table of an earlier result")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.show:
        results, folder = json.loads(options.show.read_text()), options.show.parent
    else:
        # A driver that hangs must not block the command. The results so far are in the file.
        faulthandler.dump_traceback_later(60 * options.minutes + LATE_S, exit=True)
        try:
            with tempfile.TemporaryDirectory() as runs:
                kept = options.keep_runs or Path(runs)
                kept.mkdir(parents=True, exist_ok=True)
                results, folder = plain(everything(options, kept)), options.out
        except (HandheldError, FileExistsError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        faulthandler.cancel_dump_traceback_later()
    done = [row["energy"] for row in results["workloads"].values() if "energy" in row]
    if done:
        energy.plot(done, results["device"]["name"], folder / "accounts.html")
    return say(results)


if __name__ == "__main__":
    sys.path[:0] = [os.getcwd()]  # --sensor may name a module of the current folder.
    sys.exit(main())

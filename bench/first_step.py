"""Measures the time until the first step is done: capture, passes, plan, build, first run; then warm starts.

    python bench/first_step.py [--on opencl] [--only abc|small] [--json FILE] [--plot FILE.html]
    python bench/first_step.py [--on opencl] [--only abc|small] [--warm N] [--json FILE]

Each start runs in its own process. The cold start has empty caches, and its imports are not counted. The check of
a driver that was never seen, once per driver and version of the kernels, is turned off.
The warm starts use the step file that the cold one wrote and the caches that it filled. The median and
the range of N warm starts are shown.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import charts_page
import warm_start
from result_file import Row, device_id, save
from warm_start import first_step, save_batches
from workloads import Entry, captured, chosen

from handheld.report.charts import Axis, Series, bars

#: the parts of a start, in order
PARTS = ("imports", "load", "capture", "passes", "plan", "build", "first run")


def cold(entry: Entry, device: str, folder: str) -> dict[str, float]:
    from handheld.frontend import capture

    spent = {"passes": 0.0}
    real = capture.optimize

    def timed(*args: Any) -> Any:
        started = time.perf_counter()
        try:
            return real(*args)
        finally:
            spent["passes"] += time.perf_counter() - started

    capture.optimize = timed  # type: ignore[assignment]
    started = time.perf_counter()
    step, runs = captured(entry)
    spent["capture"] = time.perf_counter() - started - spent["passes"]
    step.save(f"{folder}/x.step")
    save_batches(f"{folder}/x.npz", runs)
    return spent | first_step(step, device, runs)


def result_rows(rows: list[dict[str, Any]], on: str) -> list[Row]:
    from handheld.backends.base import describe

    caps = describe(on)
    device = device_id(caps.name, caps.driver)
    return [
        Row(
            f"{row['workload']}, {row['start']}",
            device,
            row["total"],
            "s",
            details={part: row[part] for part in PARTS if part in row},
            figures={"totals": row["totals"]},
        )
        for row in rows
    ]


def plot(rows: list[dict[str, Any]], device: str, path: Path) -> None:
    """A chart with one bar per start, stacked by part."""
    present = {k for row in rows for k in row} - {"workload", "start", "total", "totals"}
    parts = [p for p in PARTS if p in present] + sorted(present - set(PARTS))
    series = [Series(part, [row.get(part, 0.0) for row in rows]) for part in parts]
    names = [f"{row['workload']} {row['start']}" for row in rows]
    title = "Seconds until the first step is done"
    charts_page.write(path, title, device, bars(title, names, series, Axis("time", "s"), stacked=True))


def timed_process(command: list[str], environment: dict[str, str]) -> dict[str, float]:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    spent: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", default="opencl")
    parser.add_argument("--only", default="small", help="letters, or small")
    parser.add_argument("--json", help="write all figures here")
    parser.add_argument("--plot", type=charts_page.html_path, help="write a page with a bar chart here")
    parser.add_argument("--warm", type=int, default=5, help="number of warm starts (default: 5)")
    parser.add_argument("--cold", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cold:
        warnings.simplefilter("ignore")
        letter, folder = options.cold
        (entry,) = chosen(letter)
        print(json.dumps(cold(entry, options.on, folder)))
        return
    rows: list[dict[str, Any]] = []
    for entry in chosen(options.only):
        with tempfile.TemporaryDirectory() as folder:
            caches = {
                "POCL_CACHE_DIR": f"{folder}/pocl",
                "XDG_CACHE_HOME": f"{folder}/cache",
                "CUDA_CACHE_PATH": f"{folder}/cuda",
            }
            for path in caches.values():
                Path(path).mkdir(exist_ok=True)
            caches["HANDHELD_DRIVER_CHECK"] = "off"
            starts = {
                "cold": [__file__, "--on", options.on, "--cold", entry.letter, folder],
                "warm": [warm_start.__file__, options.on, f"{folder}/x.step", f"{folder}/x.npz"],
            }
            for kind, command in starts.items():
                tries = sorted(
                    (
                        timed_process([sys.executable, *command], os.environ | caches)
                        for _ in range(options.warm if kind == "warm" else 1)
                    ),
                    key=lambda spent: sum(spent.values()),
                )
                spent, totals = tries[len(tries) // 2], [sum(t.values()) for t in tries]
                parts = "  ".join(f"{k} {v:.2f}" for k, v in spent.items())
                total = sum(spent.values())
                rows.append({"workload": entry.name, "start": kind, **spent, "total": total, "totals": totals})
                spread = f" ({totals[0]:.2f} to {totals[-1]:.2f})" if len(tries) > 1 else ""
                print(f"{entry.name:24} {kind}: {parts}  total {total:.2f} s{spread}", flush=True)
    if options.json:
        save(options.json, "Time to the first step", result_rows(rows, options.on))
    if options.plot:
        plot(rows, options.on, options.plot)


if __name__ == "__main__":
    main()

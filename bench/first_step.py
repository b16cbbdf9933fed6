"""How long until the first step: capture, passes, plan, build, first run; then a second start.

    python bench/first_step.py [--on opencl] [--only abc|small] [--json FILE]

Each start is a process of its own; the cold one has empty caches, the warm one starts from the step
file that the cold one wrote, with the caches it filled.
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

from workloads import Entry, batches, captured, chosen

import handheld

Runs = list[tuple[str, Any]]


def cold(entry: Entry, device: str, file: str) -> dict[str, float]:
    from handheld.capture import capture

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
    step.save(file)
    return spent | start(step, device, runs)


def start(step: handheld.Step, device: str, runs: Runs) -> dict[str, float]:
    """Plans and starts the training graphs, and makes one step."""
    started = time.perf_counter()
    plan = step.plan(device, graphs=[name for name, _ in runs])
    spent = {"plan": time.perf_counter() - started}
    started = time.perf_counter()
    trainer = plan.start()
    spent["build"] = time.perf_counter() - started
    started = time.perf_counter()
    for name, batch in runs:
        loss = trainer.run(name, *batch)
    float(loss)
    spent["first run"] = time.perf_counter() - started
    trainer.close()
    return spent


def warm(entry: Entry, device: str, file: str) -> dict[str, float]:
    runs = batches(entry)
    started = time.perf_counter()
    step = handheld.load(file)
    spent = {"load": time.perf_counter() - started}
    return spent | start(step, device, runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--on", default="opencl")
    parser.add_argument("--only", default="small", help="letters, or small")
    parser.add_argument("--json", help="write all figures here")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        warnings.simplefilter("ignore")
        kind, letter, file = options.child
        (entry,) = chosen(letter)
        print(json.dumps((cold if kind == "cold" else warm)(entry, options.on, file)))
        return
    rows = []
    for entry in chosen(options.only):
        with tempfile.TemporaryDirectory() as folder:
            for kind in ("cold", "warm"):
                caches = {
                    "POCL_CACHE_DIR": f"{folder}/pocl",
                    "XDG_CACHE_HOME": f"{folder}/cache",
                    "CUDA_CACHE_PATH": f"{folder}/cuda",
                }
                for path in caches.values():
                    Path(path).mkdir(exist_ok=True)
                command = [
                    sys.executable,
                    __file__,
                    "--on",
                    options.on,
                    "--child",
                    kind,
                    entry.letter,
                    f"{folder}/x.step",
                ]
                done = subprocess.run(
                    command, env=os.environ | caches, capture_output=True, text=True, check=True
                )
                spent = json.loads(done.stdout.splitlines()[-1])
                parts = "  ".join(f"{k} {v:.2f}" for k, v in spent.items())
                total = sum(spent.values())
                rows.append({"workload": entry.name, "start": kind, **spent, "total": total})
                print(f"{entry.name:24} {kind}: {parts}  total {total:.2f} s", flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""How long until the first step: capture, passes, plan, build, first run; then a second start.

    python bench/first_step.py [--on opencl] [--only abc|small] [--json FILE]

Each start is a process of its own; the cold one has empty caches and its imports are not counted;
the warm one starts from the step file that the cold one wrote, with the caches it filled.
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

import warm_start
from warm_start import first_step, save_batches
from workloads import Entry, captured, chosen


def cold(entry: Entry, device: str, folder: str) -> dict[str, float]:
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
    step.save(f"{folder}/x.step")
    save_batches(f"{folder}/x.npz", runs)
    return spent | first_step(step, device, runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--on", default="opencl")
    parser.add_argument("--only", default="small", help="letters, or small")
    parser.add_argument("--json", help="write all figures here")
    parser.add_argument("--cold", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cold:
        warnings.simplefilter("ignore")
        letter, folder = options.cold
        (entry,) = chosen(letter)
        print(json.dumps(cold(entry, options.on, folder)))
        return
    rows = []
    for entry in chosen(options.only):
        with tempfile.TemporaryDirectory() as folder:
            caches = {
                "POCL_CACHE_DIR": f"{folder}/pocl",
                "XDG_CACHE_HOME": f"{folder}/cache",
                "CUDA_CACHE_PATH": f"{folder}/cuda",
            }
            for path in caches.values():
                Path(path).mkdir(exist_ok=True)
            starts = {
                "cold": [__file__, "--on", options.on, "--cold", entry.letter, folder],
                "warm": [warm_start.__file__, options.on, f"{folder}/x.step", f"{folder}/x.npz"],
            }
            for kind, command in starts.items():
                done = subprocess.run([sys.executable, *command], env=os.environ | caches,
                                      capture_output=True, text=True, check=True)
                spent = json.loads(done.stdout.splitlines()[-1])
                parts = "  ".join(f"{k} {v:.2f}" for k, v in spent.items())
                total = sum(spent.values())
                rows.append({"workload": entry.name, "start": kind, **spent, "total": total})
                print(f"{entry.name:24} {kind}: {parts}  total {total:.2f} s", flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()

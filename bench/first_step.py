"""How long until the first step: capture, passes, plan, build, first run; then a second start.

    python bench/first_step.py [--on opencl] [--only lenet5,mobilenet_v2]

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

MODELS = {"lenet5": 64, "mobilenet_v2": 32}


def cold(name: str, device: str, file: str) -> dict[str, float]:
    from handheld import suite
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
    workload = suite.get(name)
    workload.make()
    batch = workload.batch(MODELS[name])
    started = time.perf_counter()
    step = workload.step(MODELS[name])
    spent["capture"] = time.perf_counter() - started - spent["passes"]
    step.save(file)
    return spent | start(step, device, batch)


def start(step: Any, device: str, batch: Any) -> dict[str, float]:
    """Plans and starts the training graph, and makes one step."""
    started = time.perf_counter()
    plan = step.plan(device, graphs=["train"])
    spent = {"plan": time.perf_counter() - started}
    started = time.perf_counter()
    trainer = plan.start()
    spent["build"] = time.perf_counter() - started
    started = time.perf_counter()
    float(trainer.step(*batch))
    spent["first run"] = time.perf_counter() - started
    trainer.close()
    return spent


def warm(name: str, device: str, file: str) -> dict[str, float]:
    from handheld import load, suite

    batch = suite.get(name).batch(MODELS[name])
    started = time.perf_counter()
    step = load(file)
    spent = {"load": time.perf_counter() - started}
    return spent | start(step, device, batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--on", default="opencl")
    parser.add_argument("--only", default=",".join(MODELS))
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        warnings.simplefilter("ignore")
        kind, name, file = options.child
        print(json.dumps((cold if kind == "cold" else warm)(name, options.on, file)))
        return
    for name in options.only.split(","):
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
                    name,
                    f"{folder}/x.step",
                ]
                done = subprocess.run(
                    command, env=os.environ | caches, capture_output=True, text=True, check=True
                )
                spent = json.loads(done.stdout.splitlines()[-1])
                parts = "  ".join(f"{k} {v:.2f}" for k, v in spent.items())
                print(f"{name:14} {kind}: {parts}  total {sum(spent.values()):.2f} s", flush=True)


if __name__ == "__main__":
    main()

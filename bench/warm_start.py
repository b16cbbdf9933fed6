"""Starts from a step file without PyTorch, as on a device. first_step.py runs this script.

    python bench/warm_start.py DEVICE FILE.step BATCHES.npz

Prints the seconds of each part as JSON, from the first line of this file to the first loss.
"""

from __future__ import annotations

import time

began = time.perf_counter()

import json  # noqa: E402
import sys  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402

import handheld  # noqa: E402
import handheld.package  # noqa: E402
import handheld.run.planning  # noqa: E402

Runs = list[tuple[str, tuple[Any, ...]]]


def save_batches(path: str, runs: Runs) -> None:
    np.savez(
        path,
        **{
            f"{n}.{name}.{i}": np.asarray(array)
            for n, (name, batch) in enumerate(runs)
            for i, array in enumerate(batch)
        },
    )


def load_batches(path: str) -> Runs:
    batches: dict[tuple[int, str], list[Any]] = {}
    with np.load(path) as arrays:
        for key in arrays:
            n, name, _ = key.split(".")
            batches.setdefault((int(n), name), []).append(arrays[key])
    return [(name, tuple(batch)) for (_, name), batch in sorted(batches.items())]


def first_step(step: handheld.Step, device: str, runs: Runs) -> dict[str, float]:
    """Plans and starts the training graphs and runs one step; returns the seconds of each part."""
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


def main() -> None:
    spent = {"imports": time.perf_counter() - began}
    device, file, batches = sys.argv[1:]
    runs = load_batches(batches)
    started = time.perf_counter()
    step = handheld.load(file)
    spent["load"] = time.perf_counter() - started
    print(json.dumps(spent | first_step(step, device, runs)))


if __name__ == "__main__":
    main()

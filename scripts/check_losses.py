"""Trains small workloads of the suite on one batch again and again: the loss must fall.

    python scripts/check_losses.py --on opencl [--workloads all|names] [--steps 60] [--batch 4]

A workload passes if the mean of its last five losses is under nine tenths of the first. Of several
updates the first one counts: both networks of a GAN cannot win.
"""

from __future__ import annotations

import argparse
import time
import warnings

from handheld import suite

FALL = 0.9


def losses(name: str, steps: int, batch: int, on: str) -> list[float]:
    """The first update's loss, step by step."""
    workload = suite.get(name, size="small")
    runs = workload.runs(workload.batch(batch))
    step = workload.step(batch, evaluate=False)
    found = []
    with step.plan(on, graphs=[graph for graph, _ in runs]).start() as trainer:
        for _ in range(steps):
            values = [trainer.run(graph, *part) for graph, part in runs]
            found.append(float(values[0]))
    return found


def falls(found: list[float]) -> bool:
    return sum(found[-5:]) / 5 < FALL * found[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--on", default="opencl")
    parser.add_argument("--workloads", default="all")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=4)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    names = list(suite.WORKLOADS) if options.workloads == "all" else options.workloads.split(",")
    failed = 0
    for name in names:
        started = time.perf_counter()
        found = losses(name, options.steps, options.batch, options.on)
        failed += not falls(found)
        shown = " ".join(f"{found[i * (len(found) - 1) // 4]:.3g}" for i in range(5))
        print(
            f"{name:18} {'falls' if falls(found) else 'DOES NOT FALL':13} {shown}  "
            f"{time.perf_counter() - started:.0f} s",
            flush=True,
        )
    raise SystemExit(failed > 0)


if __name__ == "__main__":
    main()

"""Trains small workloads of the suite repeatedly on one batch: the loss must fall.

    python scripts/check_losses.py --on opencl [--workloads all|names] [--steps 60] [--batch 4]

A workload passes if the mean of its last five losses is below nine tenths of the first. If a step has
several updates, only the first one counts: the two networks of a GAN cannot both win.
"""

from __future__ import annotations

import argparse
import time
import warnings

from handheld import suite

FALL = 0.9


def losses(name: str, steps: int, batch: int, on: str) -> list[float]:
    """The loss of the first update of each step."""
    workload = suite.get(name, size="small")
    runs = workload.runs(workload.batch(batch))
    step = workload.step(batch, evaluate=False)
    values = []
    with step.plan(on, graphs=[graph for graph, _ in runs]).start() as trainer:
        for _ in range(steps):
            updates = [trainer.run(graph, *part) for graph, part in runs]
            values.append(float(updates[0]))
    return values


def falls(values: list[float]) -> bool:
    return sum(values[-5:]) / 5 < FALL * values[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
        values = losses(name, options.steps, options.batch, options.on)
        failed += not falls(values)
        shown = " ".join(f"{values[i * (len(values) - 1) // 4]:.3g}" for i in range(5))
        print(
            f"{name:18} {'falls' if falls(values) else 'DOES NOT FALL':13} {shown}  "
            f"{time.perf_counter() - started:.0f} s",
            flush=True,
        )
    raise SystemExit(failed > 0)


if __name__ == "__main__":
    main()

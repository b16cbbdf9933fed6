"""Compares training steps with PyTorch in float64. Each step starts from the reference's state.

    python scripts/check_equality.py --on opencl [--steps 10] [--only mlp,lenet5]
    python scripts/check_equality.py --workloads all --steps 2    # the whole suite at size small

A value passes if its error is at most four times that of PyTorch's own float32, plus 1e-6. Two kinds of
values over that limit are counted apart:

    kinks   values/steps where float64 PyTorch itself changes as much when its start changes by less than
            2**-21: an activation lies within rounding of ReLU's corner, or (mostly for a loss) rounding
            changes the whole network that much
    noise   values of which PyTorch's float32 has no correct digit either: they are zero except for
            rounding, such as the gradient of a bias that a softmax cancels
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from handheld import suite
from helpers.equality import Update, compare_updates, excess

#: batch and options: they keep the float64 side fast and the values on a kink few
SMALL: dict[str, tuple[int, dict[str, Any]]] = {
    "mlp": (16, {}),
    "lenet5": (16, {}),
    "mobilenet_v2": (8, {}),
    "resnet18": (4, {}),
    "squeezenet": (4, {"size": 64}),
    "lstm_lm": (4, {"length": 16}),
    "transformer": (2, {"length": 32}),
    "dcgan": (4, {"width": 16}),
}


#: for the suite at size small; with fewer values, batch norm makes rounding errors large
BATCH = 4


def problem(workload: suite.Workload, batch: int, steps: int) -> tuple[Any, Any, Any, Any]:
    """(step, modules, updates, batches)."""
    modules, updates = workload.parts()
    data = [workload.runs(workload.batch(batch, seed)) for seed in range(steps)]
    names = ("optimizer", *(f"optimizer_{u.graph}" for u in updates[1:]))
    compared = [Update(u.graph, u.loss, u.optimizer, name) for u, name in zip(updates, names, strict=True)]
    return workload.step(batch), modules, compared, [[b for _, b in runs] for runs in data]


def chosen(options: argparse.Namespace) -> list[tuple[str, suite.Workload, int]]:
    """Name, workload and batch of the workloads that the options select."""
    if options.workloads:
        names = list(suite.WORKLOADS) if options.workloads == "all" else options.workloads.split(",")
        return [(name, suite.get(name, size="small"), options.batch or BATCH) for name in names]
    return [
        (name, suite.get(name, **SMALL[name][1]), options.batch or SMALL[name][0]) for name in options.only.split(",")
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", default="opencl")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--only", default=",".join(SMALL), help="some of the eight models, by name")
    parser.add_argument("--workloads", help="all, or names: compare these workloads at size small instead")
    parser.add_argument("--batch", type=int)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    failed = 0
    print(
        f"{'model':18} {'values':>7} {'over':>5} {'kinks':>6} {'noise':>5} {'worst':>6}  "
        f"{'launches':>8} {'programs':>8}  what is worst"
    )
    for name, workload, batch in chosen(options):
        started = time.perf_counter()
        step, modules, updates, batches = problem(workload, batch, options.steps)
        plan = step.plan(options.on, graphs=[u.graph for u in updates])
        with plan.start() as trainer:
            found = compare_updates(modules, updates, trainer, batches)
        noise = [row for row in found.over if row[2] >= 1]
        rows = [row for row in found.rows if row not in noise]
        over = sum(excess(row) > 1 for row in rows)
        failed += over > 0
        what, ours, theirs = rows[0]
        steps = len({row[0].split(":")[0] for row in found.kinks})
        launches = "+".join(str(plan.graphs[u.graph].launches) for u in updates)
        programs = max(plan.graphs[u.graph].programs for u in updates)
        print(
            f"{name:18} {len(found.rows) + len(found.kinks):7} {over:5} "
            f"{len(found.kinks):3}/{steps:<2} {len(noise):5} {excess(rows[0]):6.2f}  {launches:>8} "
            f"{programs:8}  {what}: {ours:.1e} (PyTorch {theirs:.1e}); "
            f"{time.perf_counter() - started:.0f} s",
            flush=True,
        )
    raise SystemExit(failed > 0)


if __name__ == "__main__":
    main()

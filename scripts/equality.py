"""Ten training steps of the eight models, each from the reference's state, against float64 PyTorch.

    python scripts/equality.py --on opencl [--steps 10] [--only mlp,lenet5]

A value passes if it errs by at most four times what PyTorch's own float32 errs, plus 1e-6.
"kinks" are values (in so many steps) over that limit where float64 PyTorch itself moves as far when
its start is moved by less than 2**-21: an activation within rounding of ReLU's corner.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from equality import Update, compare_updates, excess
from handheld import suite
from handheld.suite import dcgan

#: options that keep the float64 side fast; batches small enough that few values sit on a kink
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


def problem(
    name: str, batch: int, options: dict[str, Any], steps: int
) -> tuple[Any, Any, Any, Any]:
    """(step, modules, updates, batches)."""
    workload = suite.get(name, **options)
    data = [workload.batch(batch, seed) for seed in range(steps)]
    if name == "dcgan":
        capture = dcgan.record(batch, 0, **options)
        modules = capture.modules
        updates = [
            Update(
                "d",
                lambda m, b: dcgan.loss_d(m["generator"], m["discriminator"], *b),
                lambda m: dcgan.adam(m["discriminator"]),
            ),
            Update(
                "g",
                lambda m, b: dcgan.loss_g(m["generator"], m["discriminator"], *b),
                lambda m: dcgan.adam(m["generator"]),
                "optimizer_g",
            ),
        ]
        return capture.step(), modules, updates, [((x, z), (z,)) for x, z in data]
    model, loss, optimizer = workload.make()
    kind, defaults = type(optimizer), dict(optimizer.defaults)

    def fresh(modules: dict[str, Any]) -> torch.optim.Optimizer:
        made: torch.optim.Optimizer = kind(modules[""].parameters(), **defaults)
        return made

    update = Update("train", lambda m, b: loss(m[""](b[0]), b[1]), fresh)
    return workload.step(batch), {"": model}, [update], [(b,) for b in data]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--on", default="opencl")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--only", default=",".join(SMALL))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    failed = 0
    print(
        f"{'model':14} {'values':>7} {'over':>5} {'kinks':>6} {'worst':>6}  {'launches':>8} "
        f"{'programs':>8}  what is worst"
    )
    for name in options.only.split(","):
        started = time.perf_counter()
        step, modules, updates, batches = problem(name, *SMALL[name], options.steps)
        plan = step.plan(options.on, graphs=[u.graph for u in updates])
        with plan.start() as trainer:
            found = compare_updates(modules, updates, trainer, batches)
        failed += bool(found.over)
        what, ours, theirs = found.rows[0]
        steps = len({row[0].split(":")[0] for row in found.kinks})
        launches = "+".join(str(plan.graphs[u.graph].launches) for u in updates)
        programs = max(plan.graphs[u.graph].programs for u in updates)
        print(
            f"{name:14} {len(found.rows) + len(found.kinks):7} {len(found.over):5} "
            f"{len(found.kinks):3}/{steps:<2} {excess(found.rows[0]):6.2f}  {launches:>8} "
            f"{programs:8}  {what}: {ours:.1e} (PyTorch {theirs:.1e}); "
            f"{time.perf_counter() - started:.0f} s",
            flush=True,
        )
    raise SystemExit(failed > 0)


if __name__ == "__main__":
    main()

"""Bytes against predicted time at paper size, under limits from 1.0 to 0.2 of what a plan needs, and PyTorch's ways.

    nice python bench/limits_curve.py [--only resnet50,gpt] [--json FILE]

Nothing runs. Handheld's bytes are those of the plan for the OpenCL device of this machine, without the limits of its
memory. Times of both are predicted, each as a factor of the same framework's time without a limit: Handheld's by its
cost model, PyTorch's as bench/pytorch_memory.py says. Outputs of the model are not kept by either. `bench/limits.py`
measures both at sizes that run here.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytorch_memory import Cost, budget, checkpointed, measured, partitioned
from result_file import Row, save

from handheld import suite
from handheld.errors import HandheldError
from handheld.limits.parts import Splitting, time_of, told
from handheld.limits.planning import ROOMY, Fitting
from handheld.plan.fit import fit_text
from handheld.plan.plan import Plan
from handheld.run.planning import requested

MIB = 2**20
BATCHES = {"resnet50": 32, "densenet100": 64, "mobilenet_v2": 32, "bert_base": 32, "gpt": 8}
SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.25, 0.2)
BUDGETS = (0.8, 0.5, 0.2, 0.0)
PARTS = (2, 4, 8)


@dataclass(frozen=True)
class Point:
    """A way to run the step: bytes, the factor of its framework's time without a limit, and what it does."""

    name: str
    bytes: int
    factor: float
    notes: str = ""


class Planner:
    """All plans of a workload: in one piece, and in micro-batches where that gives the same update."""

    def __init__(self, name: str, count: int) -> None:
        self.step = suite.get(name, size="paper").step(count, evaluate=False)
        self.request = requested(self.step, "opencl", graphs=["train"], memory_limit_bytes=None)
        caps = replace(self.request.caps, global_mem_bytes=ROOMY, max_alloc_bytes=ROOMY)
        self.request = replace(self.request, caps=caps)
        self.fitting = Fitting(self.step, "opencl", caps, self.request.names, self.request.options)
        self.whole, self.seconds = self.fitting.whole, self.fitting.seconds
        splitting = Splitting(self.request)
        self.parts = [] if splitting.why_not() else [self._divided(splitting, count) for count in PARTS]

    def _divided(self, splitting: Splitting, count: int) -> Fitting:
        made: list[Fitting] = []

        def make(step: Any, device: str, caps: Any, names: Any, options: Any) -> Plan:
            fitting = Fitting(step, device, caps, names, options)
            fitting.prices = self.fitting.prices
            made.append(fitting)
            return fitting.whole

        splitting.trial(count, make)  # `plan` would add slots for sums to the step, also for whole batches.
        return made[0]

    def fastest(self, limit: int) -> Plan | None:
        plans = [self.fitting.within(limit)]
        for fitting in self.parts:
            plan = fitting.without_pieces(limit)
            plans.append(plan and told(plan, self.whole, self.seconds, self.fitting.prices))
        return min(filter(None, plans), key=time_of, default=None)

    def smallest(self) -> Plan:
        plans = [self.fitting.smallest]
        plans += [told(f.least_without_pieces, self.whole, self.seconds, self.fitting.prices) for f in self.parts]
        return min(plans, key=lambda plan: plan.bytes)


def handheld_points(name: str, count: int, shares: Sequence[float]) -> Iterator[Point]:
    planner = Planner(name, count)
    whole = planner.whole.bytes
    yield Point("Handheld, no limit", whole, 1.0)
    found = []
    for share in sorted(shares):  # A larger limit may take the plan of a smaller one.
        begun = time.process_time()
        plan = planner.fastest(int(whole * share))
        label = f"Handheld, {share}"
        if plan is None:
            plan, label, found = planner.smallest(), "Handheld, smallest", []
        text = f"{fit_text(plan.options, plan.bytes)}; planned in {time.process_time() - begun:.1f} s"
        found.append(Point(label, plan.bytes, 1 + time_of(plan), text))
    yield from reversed(found)


def pytorch_points(name: str, count: int, _: Sequence[float]) -> Iterator[Point]:
    workload = suite.get(name, size="paper")
    plain = measured(workload, count)
    yield Point("PyTorch", plain.bytes, 1.0)
    ways: list[tuple[str, Callable[[], Cost]]] = []
    for every in (1, 2):
        ways.append(
            (
                f"PyTorch checkpoint, 1 of {every}",
                lambda n=every: measured(workload, count, lambda m: checkpointed(m, n)),
            )
        )
    for share in BUDGETS:
        ways.append((f"PyTorch budget {share}", lambda s=share: budgeted(workload, count, s)))
    for label, way in ways:
        try:
            cost = way()
        except Exception as error:  # Compilers fail in their own ways; the reason is shown.
            print(f"    {label}: does not work here: {type(error).__name__}: {str(error)[:120]}", flush=True)
            continue
        yield Point(label, cost.bytes, cost.seconds / plain.seconds)


def budgeted(workload: Any, count: int, share: float) -> Cost:
    with budget(share):
        return measured(workload, count, partitioned)


def options_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(BATCHES), help="workloads, separated by commas")
    parser.add_argument("--shares", default=",".join(map(str, SHARES)), help="limits, separated by commas")
    parser.add_argument("--no-pytorch", action="store_true", help="only Handheld's plans")
    parser.add_argument("--no-handheld", action="store_true", help="only PyTorch")
    parser.add_argument("--json", help="write all figures here")
    return parser.parse_args()


def main() -> int:
    options = options_of()
    warnings.simplefilter("ignore")
    shares = [float(share) for share in options.shares.split(",")]
    for name in options.only.split(","):
        count = BATCHES[name]
        rows: list[Row] = []
        print(f"{name} paper b{count}", flush=True)
        sources = [] if options.no_handheld else [handheld_points]
        sources += [] if options.no_pytorch else [pytorch_points]
        for source in sources:
            try:
                for point in source(name, count, shares):
                    print(f"    {point.name:26} {point.bytes / MIB:9.1f} {point.factor:6.3f} {point.notes}", flush=True)
                    rows.append(row_of(name, count, point))
            except HandheldError as error:
                print(f"    {error}", flush=True)
        if options.json:
            save(options.json, "Memory limits", rows)
    return 0


def row_of(name: str, count: int, point: Point) -> Row:
    return Row(
        f"{name} paper b{count}, predicted, {point.name}",
        "predicted",
        point.bytes / MIB,
        "MiB",
        point.factor,
        "no limit",
        notes=point.notes,
        figures={"workload": name, "batch": count, "contestant": point.name, "bytes": point.bytes},
    )


if __name__ == "__main__":
    sys.exit(main())

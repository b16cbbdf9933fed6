"""Prepares the graphs of a step for the precision of a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from handheld.device import DeviceCaps
from handheld.errors import PlanError
from handheld.graph.check import check
from handheld.graph.dtypes import I32
from handheld.graph.graph import Graph, Slot
from handheld.passes.half import compute_halves, store_halves
from handheld.passes.scale import GROWTH, Tables, with_scale, without_scale

if TYPE_CHECKING:
    from handheld.step import Step

#: `half` stores values in 16 bits and computes in float32; `half-compute` also multiplies in 16 bits.
HALF_COMPUTE = "half-compute"
PRECISIONS = ("float32", "half", HALF_COMPUTE)


def prepare(
    step: Step, names: Sequence[str], caps: DeviceCaps, precision: str = "float32", growth: int = GROWTH
) -> tuple[list[Graph], Tables]:
    """Returns the graphs to plan for a device, and the constants that they need in addition to the step's values."""
    if precision not in PRECISIONS:
        raise PlanError(f"unknown precision {precision!r}. Try: {', '.join(PRECISIONS[:-1])} or {PRECISIONS[-1]}")
    if precision == HALF_COMPUTE and caps.takes_launches and not caps.fp16:
        raise PlanError(
            f"{caps.name} cannot compute in halves: its driver does not list cl_khr_fp16. "
            "Try: precision half, which stores halves and computes in float32"
        )
    if type(growth) is not int or not 1 <= growth < 2**31:
        raise PlanError(f"growth_steps={growth!r:.60} must be a number of steps, 1 or more")
    graphs: list[Graph] = []
    tables: Tables = {}
    for name in names:
        graph = step.graph(name)
        if precision == "float32":
            graphs.append(check(without_scale(graph), step.slots))
            continue
        graph, constants = with_scale(graph, growth)
        graph = store_halves(graph, caps.base_align_bytes)
        if precision == HALF_COMPUTE:
            graph = compute_halves(graph)
        graphs.append(check(graph, {**step.slots, **table_slots(constants)}))
        tables |= constants
    return graphs, tables


def table_slots(tables: Mapping[str, np.ndarray]) -> dict[str, Slot]:
    """Returns the slots of the constants that `prepare` adds."""
    return {name: Slot(name, value.shape, I32, "constant") for name, value in tables.items()}

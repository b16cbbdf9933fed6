"""Prepares the graphs of a step for the precision of a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from handheld.errors import PlanError
from handheld.graph.check import check
from handheld.graph.dtypes import I32
from handheld.graph.graph import Graph, Slot
from handheld.passes.half import store_halves
from handheld.passes.scale import GROWTH, Tables, with_scale, without_scale

if TYPE_CHECKING:
    from handheld.step import Step

PRECISIONS = ("float32", "half")


def prepare(
    step: Step, names: Sequence[str], precision: str = "float32", growth: int = GROWTH, align_bytes: int = 1
) -> tuple[list[Graph], Tables]:
    """Returns the graphs to plan, and the constants that they need in addition to the values of the step."""
    if precision not in PRECISIONS:
        raise PlanError(f"unknown precision {precision!r}. Try: {' or '.join(PRECISIONS)}")
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
        graphs.append(check(store_halves(graph, align_bytes), {**step.slots, **table_slots(constants)}))
        tables |= constants
    return graphs, tables


def table_slots(tables: Mapping[str, np.ndarray]) -> dict[str, Slot]:
    """Returns the slots of the constants that `prepare` adds."""
    return {name: Slot(name, value.shape, I32, "constant") for name, value in tables.items()}

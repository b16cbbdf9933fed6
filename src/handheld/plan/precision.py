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
from handheld.passes.state_bits import BITS, Unit, store_state, units_of

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
            graphs.append(check(without_scale(graph), step.slots, before=graph))
            continue
        graph, constants = with_scale(graph, growth)
        graph = store_halves(graph, caps.base_align_bytes)
        if precision == HALF_COMPUTE:
            graph = compute_halves(graph)
        graphs.append(check(graph, {**step.slots, **table_slots(constants)}))
        tables |= constants
    return graphs, tables


def stored_slots(slots: Mapping[str, Slot], units: Sequence[Unit]) -> dict[str, Slot]:
    """The slots with the codes and scales of units instead of the state that they store."""
    gone = {slot for unit in units for slot in unit.slots}
    new = {name: slot for unit in units for name, slot in unit.new_slots().items()}
    return {name: slot for name, slot in slots.items() if name not in gone} | new


def state_in_bits(step: Step, graphs: Sequence[Graph], bits: int) -> tuple[list[Graph], tuple[Unit, ...]]:
    """The graphs with the state of their optimizers in so many bits, and what is stored so."""
    if bits == 32:
        return list(graphs), ()
    if bits not in BITS:
        raise PlanError(f"state_bits={bits!r:.40} is not possible. Try: 32, 16 or 8")
    units = tuple(units_of(graphs, bits))
    if not units:
        raise PlanError(
            f"no optimizer state of this step can be stored in {bits} bits. It works for momenta and averages of "
            "squares of torch.optim's optimizers. Try: without --state-bits (state_bits=)"
        )
    changed = [store_state(graph, units) for graph in graphs]
    return [check(new) for new in changed], units


def table_slots(tables: Mapping[str, np.ndarray]) -> dict[str, Slot]:
    """Returns the slots of the constants that `prepare` adds."""
    return {name: Slot(name, value.shape, I32, "constant") for name, value in tables.items()}

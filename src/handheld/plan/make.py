"""Makes plans: chooses kernels for every node and a place for every tensor, and verifies the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from handheld.callers import warn_user
from handheld.collector import paused
from handheld.device import DeviceCaps
from handheld.errors import OutOfMemory
from handheld.graph.check import check
from handheld.graph.graph import Graph, transfer_of
from handheld.kernels.base import Choice, Lowered
from handheld.passes.lean import apart
from handheld.passes.scale import Tables
from handheld.passes.state_bits import Unit
from handheld.plan.fit import Fit, fitted
from handheld.plan.lowering import NAIVE, Lowerings, tuned_choice
from handheld.plan.memory import GraphMemory, Segments, place_host, place_state
from handheld.plan.moves import with_transfers
from handheld.plan.plan import GraphPlan, Plan
from handheld.plan.precision import prepare, state_in_bits, stored_slots, table_slots
from handheld.plan.tuning import Tuning, load_tuning
from handheld.plan.verify import verify
from handheld.progress import report
from handheld.units import size as size_text

if TYPE_CHECKING:
    from handheld.step import Step


_told: set[str] = set()


def _tell(tuning: Tuning) -> None:
    """Warns about ignored tuning records if no record is used for the device; once per process and message."""
    for message in tuning.ignored if not tuning.used else ():
        if message not in _told:
            _told.add(message)
            warn_user(message)


@dataclass(frozen=True)
class Known:
    """What plans that are made one after the other have in common: the launches of nodes, and the prepared graphs by
    their names."""

    lowerings: Lowerings = field(default_factory=Lowerings)
    prepared: dict[tuple[str, ...], tuple[list[Graph], tuple[Unit, ...], Tables]] = field(default_factory=dict)


@paused()
def make_plan(
    step: Step,
    device: str,
    caps: DeviceCaps,
    names: Sequence[str],
    options: Mapping[str, Any],
    known: Known | None = None,
) -> Plan:
    """Makes a plan of the named graphs of a step for a described device. run/planning.py lists the options.

    `known` is what earlier plans of the same graphs found, with the same device and options except for the fit.
    """
    report("planning")
    known = known or Known()
    if tuple(names) not in known.prepared:
        prepared, tables = prepare(step, names, caps, options["precision"], options["growth_steps"])
        known.prepared[tuple(names)] = *state_in_bits(step, prepared, options.get("state_bits", 32)), tables
    chosen, units, tables = known.prepared[tuple(names)]
    chosen = [_fitted(graph, options.get("fit") or {}) for graph in chosen]
    chosen = with_transfers(step, chosen, options)
    limit, isolate, naive = (options[k] for k in ("memory_limit_bytes", "isolate", "naive"))
    tuning = load_tuning(caps, options["tuning"])
    _tell(tuning)
    tuned = [_choose_all(graph, caps, tuning.choices, naive) for graph in chosen]
    lowered = [
        _lower_all(graph, caps, picked, naive, known.lowerings) for graph, picked in zip(chosen, tuned, strict=True)
    ]
    segments = Segments(min(caps.max_alloc_bytes, 2**40), caps.base_align_bytes, isolate)
    host = place_host(dict(zip(names, chosen, strict=True)))
    slots = stored_slots({**step.slots, **table_slots(tables)}, units)
    state = place_state({name: slot for name, slot in slots.items() if name not in host.state}, chosen, segments)
    memories = [GraphMemory(g, low, state, segments, isolate) for g, low in zip(chosen, lowered, strict=True)]
    arena = len(segments.sizes)
    for memory in memories:
        memory.place_arena(segments, arena, tight=bool(options.get("fit")))
    plans = {
        name: GraphPlan(
            graph, tuple(low), memory.places, memory.workspace, tuple(memory.copies), picked, host.places[name]
        )
        for name, graph, low, memory, picked in zip(names, chosen, lowered, memories, tuned, strict=True)
    }
    sizes = tuple(segments.sizes)
    plan = Plan(step, device, caps, plans, state, sizes, arena, dict(options), tables, host.nbytes, host.state, units)
    check_memory(plan, limit)
    verify(plan)
    return plan


def _fitted(graph: Graph, fits: Mapping[str, Any]) -> Graph:
    """Returns the graph, made smaller if a memory limit asks for it."""
    if not fits:
        return graph
    if graph.name not in fits:
        return check(apart(graph), before=graph)  # All graphs of a plan share one layout of the state.
    return check(fitted(graph, Fit.from_json(fits[graph.name])), before=graph)


def _choose_all(graph: Graph, caps: DeviceCaps, choices: Mapping[str, Choice], naive: bool) -> dict[int, Choice]:
    """Returns node -> tuned variant, for the nodes that have one."""
    choice_of = {
        i: tuned_choice(node, graph, caps, choices)
        for i, node in enumerate(graph.nodes)
        if not (naive and node.op in NAIVE)
    }
    return {i: choice for i, choice in choice_of.items() if choice is not None}


def _lower_all(
    graph: Graph, caps: DeviceCaps, tuned: Mapping[int, Choice], naive: bool, known: Lowerings
) -> list[Lowered]:
    if not caps.takes_launches:
        return [Lowered((), (), "run by the backend") for _ in graph.nodes]
    return [
        Lowered((), (), "a transfer")
        if transfer_of(graph, node)
        else known.lower(node, graph, caps, tuned.get(i), naive)
        for i, node in enumerate(graph.nodes)
    ]


def check_memory(plan: Plan, limit: int | None) -> None:
    """Raises OutOfMemory if a plan needs more than the device has, or more than the limit."""
    available = plan.caps.global_mem_bytes if limit is None else min(limit, plan.caps.global_mem_bytes)
    if plan.bytes <= available:
        return
    graph = max(plan.graphs.values(), key=lambda g: sum(t.nbytes for t in g.graph.tensors.values())).graph
    largest = sorted(graph.tensors.values(), key=lambda t: -t.nbytes)[:5]
    rows = "; ".join(
        f"{t.role} {list(t.shape)} {size_text(t.nbytes)}" + (f" ({t.name})" if t.name else "") for t in largest
    )
    raise OutOfMemory(
        f"the plan needs {size_text(plan.bytes)} on {plan.device}, but only "
        f"{size_text(available)} are available. Largest tensors of graph "
        f"{graph.name!r}: {rows}. Try: a smaller batch",
        plan.bytes,
        available,
    )

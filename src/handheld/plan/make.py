"""Makes plans: chooses kernels for every node and a place for every tensor, and verifies the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from handheld.callers import warn_user
from handheld.collector import paused
from handheld.device import DeviceCaps
from handheld.errors import OutOfMemory
from handheld.graph.graph import Graph
from handheld.kernels.base import Choice, Lowered
from handheld.plan.lowering import NAIVE, lower, tuned_choice
from handheld.plan.memory import GraphMemory, Segments, place_state
from handheld.plan.plan import GraphPlan, Plan
from handheld.plan.precision import prepare, table_slots
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


@paused()
def make_plan(step: Step, device: str, caps: DeviceCaps, names: Sequence[str], options: Mapping[str, Any]) -> Plan:
    """Makes a plan of the named graphs of a step for a described device. run/planning.py lists the options."""
    report("planning")
    chosen, tables = prepare(step, names, options["precision"], options["growth_steps"], caps.base_align_bytes)
    limit, isolate, naive = (options[k] for k in ("memory_limit_bytes", "isolate", "naive"))
    tuning = load_tuning(caps, options["tuning"])
    _tell(tuning)
    tuned = [_choose_all(graph, caps, tuning.choices, naive) for graph in chosen]
    lowered = [_lower_all(graph, caps, picked, naive) for graph, picked in zip(chosen, tuned, strict=True)]
    segments = Segments(min(caps.max_alloc_bytes, 2**40), caps.base_align_bytes, isolate)
    state = place_state({**step.slots, **table_slots(tables)}, chosen, segments)
    memories = [GraphMemory(g, low, state, segments, isolate) for g, low in zip(chosen, lowered, strict=True)]
    arena = len(segments.sizes)
    for memory in memories:
        memory.place_arena(segments, arena)
    plans = {
        name: GraphPlan(graph, tuple(low), memory.places, memory.workspace, tuple(memory.copies), picked)
        for name, graph, low, memory, picked in zip(names, chosen, lowered, memories, tuned, strict=True)
    }
    plan = Plan(step, device, caps, plans, state, tuple(segments.sizes), arena, dict(options), tables)
    _check_memory(plan, limit)
    verify(plan)
    return plan


def _choose_all(graph: Graph, caps: DeviceCaps, choices: Mapping[str, Choice], naive: bool) -> dict[int, Choice]:
    """Returns node -> tuned variant, for the nodes that have one."""
    choice_of = {
        i: tuned_choice(node, graph, caps, choices)
        for i, node in enumerate(graph.nodes)
        if not (naive and node.op in NAIVE)
    }
    return {i: choice for i, choice in choice_of.items() if choice is not None}


def _lower_all(graph: Graph, caps: DeviceCaps, tuned: Mapping[int, Choice], naive: bool) -> list[Lowered]:
    if not caps.takes_launches:
        return [Lowered((), (), "run by the backend") for _ in graph.nodes]
    return [lower(node, graph, caps, tuned.get(i), naive) for i, node in enumerate(graph.nodes)]


def _check_memory(plan: Plan, limit: int | None) -> None:
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

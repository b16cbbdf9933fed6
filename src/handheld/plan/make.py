"""Makes plans: kernels for every node, places for every tensor, proved by the verifier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from handheld.device import DeviceCaps
from handheld.errors import OutOfMemory, PlanError
from handheld.graph.graph import Graph
from handheld.kernels.base import Lowered
from handheld.plan.lowering import lower
from handheld.plan.memory import GraphMemory, Segments, place_state
from handheld.plan.plan import GraphPlan, Plan
from handheld.plan.verify import verify

if TYPE_CHECKING:
    from handheld.step import Step


def plan_step(
    step: Step,
    device: str = "opencl",
    *,
    caps: DeviceCaps | None = None,
    graphs: Sequence[str] | None = None,
    memory_limit_bytes: int | None = None,
    isolate: bool = False,
) -> Plan:
    """A plan for a device in hand, or for a description (`caps`) of one that is not.

    `graphs` limits the plan to some of the step's graphs; `memory_limit_bytes` makes a larger plan
    an error; `isolate` gives every tensor memory of its own, for checking kernels.
    """
    if caps is None:
        from handheld.backends.base import describe

        caps = describe(device)
    names = list(step.graphs) if graphs is None else list(graphs)
    missing = [n for n in names if n not in step.graphs]
    if missing or not names:
        raise PlanError(
            f"the step has no graph {missing or '(none named)'}; it has {', '.join(step.graphs)}"
        )
    return make_plan(step, device, caps, names, memory_limit_bytes, isolate)


def make_plan(
    step: Step,
    device: str,
    caps: DeviceCaps,
    names: Sequence[str],
    limit: int | None,
    isolate: bool,
) -> Plan:
    chosen = [step.graphs[n] for n in names]
    lowered = [_lower_all(graph, caps) for graph in chosen]
    segments = Segments(min(caps.max_alloc_bytes, 2**40), caps.base_align_bytes, isolate)
    state = place_state(step.slots, chosen, segments)
    memories = [GraphMemory(g, low, state, segments, isolate) for g, low in zip(chosen, lowered)]
    arena = len(segments.sizes)
    for memory in memories:
        memory.place_arena(segments, arena)
    plans = {
        name: GraphPlan(graph, tuple(low), memory.places, memory.workspace, tuple(memory.copies))
        for name, graph, low, memory in zip(names, chosen, lowered, memories)
    }
    plan = Plan(
        step,
        device,
        caps,
        plans,
        state,
        tuple(segments.sizes),
        arena,
        {"memory_limit_bytes": limit, "isolate": isolate},
    )
    _check_memory(plan, limit)
    verify(plan)
    return plan


def _lower_all(graph: Graph, caps: DeviceCaps) -> list[Lowered]:
    if caps.kind in ("torch", "null"):
        return [Lowered((), (), "run by the backend") for _ in graph.nodes]
    return [lower(node, graph, caps) for node in graph.nodes]


def _check_memory(plan: Plan, limit: int | None) -> None:
    available = (
        plan.caps.global_mem_bytes if limit is None else min(limit, plan.caps.global_mem_bytes)
    )
    if plan.bytes <= available:
        return
    graph = max(
        plan.graphs.values(), key=lambda g: sum(t.nbytes for t in g.graph.tensors.values())
    ).graph
    largest = sorted(graph.tensors.values(), key=lambda t: -t.nbytes)[:5]
    rows = "; ".join(
        f"{t.role} {list(t.shape)} {t.nbytes / 2**20:.1f} MiB" + (f" ({t.name})" if t.name else "")
        for t in largest
    )
    raise OutOfMemory(
        f"the plan needs {plan.bytes / 2**20:.1f} MiB on {plan.device} and "
        f"{available / 2**20:.1f} MiB are available. Largest tensors of graph "
        f"{graph.name!r}: {rows}. Try a smaller batch"
    )


def other_variants(plan: Plan) -> Plan:
    """The same plan with the kernels meant for the other kind of device; both run on any."""
    caps = replace(plan.caps, kind="gpu" if plan.caps.kind == "cpu" else "cpu")
    limit = plan.options.get("memory_limit_bytes")
    isolate = bool(plan.options.get("isolate", False))
    return make_plan(plan.step, plan.device, caps, list(plan.graphs), limit, isolate)

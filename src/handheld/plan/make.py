"""Makes plans: kernels for every node, places for every tensor, proved by the verifier."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from handheld.collector import paused
from handheld.device import DeviceCaps, canonical
from handheld.errors import OutOfMemory, PlanError
from handheld.graph.graph import Graph
from handheld.kernels.base import Lowered
from handheld.passes.scale import GROWTH
from handheld.plan.lowering import NAIVE, Choice, lower, tuned_choice
from handheld.plan.memory import GraphMemory, Segments, place_state
from handheld.plan.plan import GraphPlan, Plan
from handheld.plan.precision import prepare, table_slots
from handheld.plan.tuning import Tuning, load_tuning
from handheld.plan.verify import verify

if TYPE_CHECKING:
    from handheld.step import Step


@paused()
def plan_step(
    step: Step,
    device: str = "opencl",
    *,
    caps: DeviceCaps | None = None,
    graphs: Sequence[str] | None = None,
    memory_limit_bytes: int | None = None,
    isolate: bool = False,
    tuning: bool | str | Path = True,
    naive: bool = False,
    precision: str = "float32",
    growth_steps: int = GROWTH,
) -> Plan:
    """A plan for a device in hand, or for a description (`caps`) of one that is not: Step.plan."""
    _check_options(device, caps, graphs, memory_limit_bytes, tuning)
    device = canonical(device)
    if caps is None:
        from handheld.backends.base import describe

        caps = describe(device)
    names = list(step.graphs) if graphs is None else list(graphs)
    missing = [n for n in names if n not in step.graphs]
    if missing or not names:
        raise PlanError(f"the step has no graph {missing or '(none named)'}; it has {', '.join(step.graphs)}")
    if naive and precision != "float32":
        raise PlanError("the naive product reads float32 only. Try: naive=True without precision=")
    options = {
        "memory_limit_bytes": memory_limit_bytes,
        "isolate": isolate,
        "tuning": str(tuning) if isinstance(tuning, Path) else tuning,
        "naive": naive,
        "precision": precision,
        "growth_steps": growth_steps,
    }
    return make_plan(step, device, caps, names, options)


def _check_options(device: object, caps: object, graphs: object, limit: object, tuning: object) -> None:
    if not isinstance(device, str):
        raise PlanError(f"device={device!r:.60} should be a name, such as 'opencl' or 'reference:cpu'")
    if caps is not None and not isinstance(caps, DeviceCaps):
        raise PlanError(f"caps={caps!r:.60} should be a DeviceCaps. Try: DeviceCaps.shipped('adreno-740')")
    if isinstance(graphs, str) or not isinstance(graphs, Iterable | None):
        raise PlanError(f"graphs={graphs!r:.60} should be a list of names: graphs=['train']")
    if limit is not None and (type(limit) is not int or limit < 1):
        raise PlanError(f"memory_limit_bytes={limit!r:.60} should be a number of bytes, such as 256 << 20")
    if not isinstance(tuning, bool | str | Path):
        raise PlanError(f"tuning={tuning!r:.60} should be True, False or the path of a record")


_told: set[str] = set()


def _tell(tuning: Tuning) -> None:
    """Once a process: which records are not used, if that leaves a device without any."""
    for message in tuning.ignored if not tuning.used else ():
        if message not in _told:
            _told.add(message)
            warnings.warn(message, stacklevel=5)


def make_plan(step: Step, device: str, caps: DeviceCaps, names: Sequence[str], options: Mapping[str, Any]) -> Plan:
    chosen, tables = prepare(step, names, options["precision"], options["growth_steps"], caps.base_align_bytes)
    limit, isolate, naive = (options[k] for k in ("memory_limit_bytes", "isolate", "naive"))
    found = load_tuning(caps, options["tuning"])
    _tell(found)
    choices = found.choices
    tuned = [_choose_all(graph, caps, choices, naive) for graph in chosen]
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
    """Node -> its tuned variant, for the nodes that have one."""
    found = {
        i: tuned_choice(node, graph, caps, choices)
        for i, node in enumerate(graph.nodes)
        if not (naive and node.op in NAIVE)
    }
    return {i: choice for i, choice in found.items() if choice is not None}


def _lower_all(graph: Graph, caps: DeviceCaps, tuned: Mapping[int, Choice], naive: bool) -> list[Lowered]:
    if caps.kind in ("reference", "null"):
        return [Lowered((), (), "run by the backend") for _ in graph.nodes]
    return [lower(node, graph, caps, tuned.get(i), naive) for i, node in enumerate(graph.nodes)]


def _check_memory(plan: Plan, limit: int | None) -> None:
    available = plan.caps.global_mem_bytes if limit is None else min(limit, plan.caps.global_mem_bytes)
    if plan.bytes <= available:
        return
    graph = max(plan.graphs.values(), key=lambda g: sum(t.nbytes for t in g.graph.tensors.values())).graph
    largest = sorted(graph.tensors.values(), key=lambda t: -t.nbytes)[:5]
    rows = "; ".join(
        f"{t.role} {list(t.shape)} {t.nbytes / 2**20:.1f} MiB" + (f" ({t.name})" if t.name else "") for t in largest
    )
    raise OutOfMemory(
        f"the plan needs {plan.bytes / 2**20:.1f} MiB on {plan.device} and "
        f"{available / 2**20:.1f} MiB are available. Largest tensors of graph "
        f"{graph.name!r}: {rows}. Try a smaller batch",
        plan.bytes,
        available,
    )


def fallbacks(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """Where the driver rejects a kernel: plans without it, by name. First without what was tuned,
    then without what its compiler is asked for, then with the kernels meant for the other kind of
    device, which most run."""
    if any(graph.tuned for graph in plan.graphs.values()):
        yield "variants that were not tuned", plan.again(tuning=False)
    if plan.caps.features:
        plain = replace(plan.caps, features="", vector_width=8)
        yield "vectors of 8 floats", plan.again(caps=plain, tuning=False)
    other = replace(plan.caps, kind="gpu" if plan.caps.kind == "cpu" else "cpu")
    yield f"the {other.kind} variants", plan.again(caps=other, tuning=False)

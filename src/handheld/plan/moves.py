"""What a plan keeps in the memory of the host, or in a file, to need less on the device.

`options["moves"]` has, per graph, the values of the forward pass that are moved away and back, and what that costs
(limits/moving.py decides). `options["stream"]` says whether slots that no graph changes are brought in when they are
read, and `options["spill_to"]` names the folder of the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from handheld.errors import PlanError
from handheld.graph.check import check
from handheld.graph.graph import Graph
from handheld.passes.transfer import Move, move_out, stream, streamable
from handheld.plan.transfers import moved_bytes
from handheld.units import count
from handheld.units import size as size_text

if TYPE_CHECKING:
    from handheld.plan.plan import Plan
    from handheld.step import Step

#: A smaller slot stays on the device: its copy would take longer than its bytes are worth.
LEAST_STREAMED = 2 << 10


def moves_of(options: Mapping[str, Any], graph: str) -> tuple[Move, ...]:
    """The values that a graph of a plan with these options moves away."""
    graphs: Mapping[str, Sequence[Sequence[int]]] = (options.get("moves") or {}).get("graphs", {})
    return tuple(Move(*fields) for fields in graphs.get(graph, ()))


def moved_values(options: Mapping[str, Any]) -> int:
    """The number of values that are moved."""
    return sum(len(moves) for moves in (options.get("moves") or {}).get("graphs", {}).values())


def time_of_moves(options: Mapping[str, Any]) -> float:
    """The predicted additional time of a plan that moves values, as a share of the step."""
    return float((options.get("moves") or {}).get("more", 0.0))


def moves_line(options: Mapping[str, Any], timed: bool = True) -> str:
    """What is moved and, if `timed`, what it costs, without the memory of the plan; "" if nothing is."""
    moves = options.get("moves") or {}
    if not moved_values(options):
        return ""
    more = moves["more"]
    time = ("no more time" if more < 0.005 else f"about {more:.0%} more time") + " at " if timed else ""
    values = count(moved_values(options), "value")
    return f"{values} moved to {moves['where']} and back ({size_text(moves['bytes'])}), {time}{moves['rate']}"


def with_transfers(step: Step, graphs: Sequence[Graph], options: Mapping[str, Any]) -> list[Graph]:
    """The graphs with the copies between the device and the host that the options ask for."""
    names = streamed_slots(step, graphs) if options.get("stream") else []
    if options.get("stream") and not names:
        raise PlanError(
            f"no parameter of at least {size_text(LEAST_STREAMED)} is frozen, so there is nothing to stream. "
            "Try: --only, --freeze or --lora (handheld.train_only, freeze, lora)"
        )
    changed = [stream(move_out(graph, moves_of(options, graph.name)), names) for graph in graphs]
    return [check(new) if new.host else new for new in changed]


def streamed_slots(step: Step, graphs: Sequence[Graph]) -> list[str]:
    """The slots that are streamed: frozen parameters, and the words and scales of packed ones."""
    every = [*graphs, *step.graphs.values(), *step.added.values()]
    sizes = {name: graph.tensors[tensor].nbytes for graph in graphs for name, tensor in graph.slots.items()}
    frozen = streamable(every) & {name for name in sizes if name in step.slots}
    return sorted(n for n in frozen if step.slots[n].role == "parameter" and sizes[n] >= LEAST_STREAMED)


def place_text(plan: Plan) -> str:
    """Where a plan keeps what is not on the device."""
    folder = plan.options.get("spill_to")
    if plan.caps.unified_memory or folder:
        return f"a file in {folder}" if folder else "a file"
    return "the memory of the host"


def moved_text(plan: Plan) -> str:
    """What a plan keeps outside the device and what a step moves, in one line; "" if nothing."""
    if not plan.host_bytes:
        return ""
    parts = []
    values = sum(len(moves_of(plan.options, name)) for name in plan.graphs)
    if values:
        parts.append(f"{count(values, 'value')} of the forward pass")
    if plan.host_state:
        parts.append(f"{count(len(plan.host_state), 'frozen parameter')}")
    out, into = moved_bytes_of(plan)
    return (
        f"{' and '.join(parts)} in {place_text(plan)} ({size_text(plan.host_bytes)}); "
        f"a step moves {size_text(out)} out and {size_text(into)} in"
    )


def moved_bytes_of(plan: Plan) -> tuple[int, int]:
    """The bytes that the step which moves most moves out and in."""
    return max((moved_bytes(entry.graph) for entry in plan.graphs.values()), key=sum, default=(0, 0))

"""What is alive while an op runs, by category, in bytes of the plan's own memory.

Tensors that share their place (an output made where an input was) count once, for the one that was
made later; a slot's place is always the slot's. State and inputs are always there. What a plan
allocates beyond the largest sum is alignment, other graphs, and room between lifetimes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from handheld.plan.memory import Place
from handheld.plan.plan import GraphPlan, Plan

#: roles of tensors -> what reports call them
CATEGORIES = {
    "parameter": "parameter", "gradient": "gradient", "optimizer": "optimizer state",
    "activation": "activation", "input": "input", "workspace": "workspace",
    "buffer": "buffer", "control": "other", "constant": "other",
}


@dataclass(frozen=True)
class Owner:
    """A tensor that is alive at the peak."""

    name: str
    category: str
    nbytes: int


@dataclass(frozen=True)
class Live:
    """Bytes by category while each node runs, and who owns the peak."""

    by_node: tuple[Mapping[str, int], ...]
    peak: int  # the node at which most is alive
    peak_bytes: int
    owners: tuple[Owner, ...]  # at the peak, largest first


def live(plan: Plan, graph: str) -> Live:
    made = plan.graphs[graph]
    spans = _spans(made)
    count = len(made.graph.nodes)
    state = {tensor: slot for slot, tensor in made.graph.slots.items()}
    slots = plan.slots
    roles = {tensor: slots[slot].role for slot, tensor in made.graph.writes}
    always: list[tuple[Place, str, int, str]] = [
        (place, CATEGORIES[slots[name].role], count, name)
        for name, place in plan.state.items()]
    pieces: list[list[tuple[Place, str, int, str]]] = [[] for _ in range(max(count, 1))]
    for tensor, (born, last) in spans.items():
        if tensor in state or tensor not in made.places:
            continue
        category = CATEGORIES[roles.get(tensor, made.graph.tensors[tensor].role)]
        name = made.graph.tensors[tensor].name or _maker(made, born)
        for node in range(max(born, 0), min(last, count - 1) + 1):
            pieces[node].append((made.places[tensor], category, born, name))
    for (node, _), place in made.workspace.items():
        pieces[node].append((place, "workspace", node, "workspace"))
    sums = [_by_category(always + one) for one in pieces]
    totals = [sum(one.values()) for one in sums]
    peak = max(range(len(totals)), key=totals.__getitem__)
    owners = sorted((Owner(name, category, place.nbytes)
                     for place, category, _, name in (always + pieces[peak])),
                    key=lambda owner: -owner.nbytes)
    return Live(tuple(sums), peak, totals[peak], tuple(owners[:12]))


def _spans(made: GraphPlan) -> dict[int, tuple[int, int]]:
    """Tensor -> (node that makes it, last node that reads it); inputs and outputs stay."""
    graph, count = made.graph, len(made.graph.nodes)
    spans: dict[int, tuple[int, int]] = {tensor: (-1, count) for _, tensor, _ in graph.inputs}
    for i, node in enumerate(graph.nodes):
        for tensor in node.outputs:
            for one in graph.packs.get(tensor, (tensor,)):  # a pack is its members, without gaps
                spans.setdefault(one, (i, i))
        for view in node.inputs:
            for one in graph.packs.get(view.tensor, (view.tensor,)):
                if one in spans:
                    spans[one] = (spans[one][0], max(spans[one][1], i))
    for tensor in [v.tensor for _, v, _ in graph.outputs] + [t for _, t in graph.writes]:
        if tensor in spans:
            spans[tensor] = (spans[tensor][0], count)
    return spans


def _maker(made: GraphPlan, node: int) -> str:
    """A tensor without a name, by what makes it."""
    if node < 0:
        return "input"
    origin = made.graph.nodes[node].origin
    return f"{origin.path or '(model)'} {made.graph.nodes[node].op} ({origin.phase})"


def _by_category(pieces: list[tuple[Place, str, int, str]]) -> dict[str, int]:
    """The union of the places: where two overlap, the later-made one counts."""
    found: dict[str, int] = {}
    taken: dict[int, list[tuple[int, int]]] = {}
    for place, category, _, _ in sorted(pieces, key=lambda piece: -piece[2]):
        begin, end = place.offset, place.offset + place.nbytes
        free = [(begin, end)]
        for a, b in taken.setdefault(place.segment, []):
            free = [part for lo, hi in free
                    for part in ((lo, min(hi, a)), (max(lo, b), hi)) if part[0] < part[1]]
        taken[place.segment].append((begin, end))
        found[category] = found.get(category, 0) + sum(hi - lo for lo, hi in free)
    return found

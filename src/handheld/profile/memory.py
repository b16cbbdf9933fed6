"""What is alive while an op runs, by category, in bytes of the plan's own memory.

Tensors that share their place (an output made where an input was) count once, for the one that was
made later; a slot's place is always the slot's. State and inputs are always there. What a plan
allocates beyond the largest sum is alignment, other graphs, and room between lifetimes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from handheld.plan.lifetimes import lifetimes
from handheld.plan.memory import Place
from handheld.plan.plan import GraphPlan, Plan

#: roles of tensors -> what reports call them
CATEGORIES = {
    "parameter": "parameter",
    "gradient": "gradient",
    "optimizer": "optimizer state",
    "activation": "activation",
    "input": "input",
    "workspace": "workspace",
    "buffer": "buffer",
    "control": "other",
    "constant": "other",
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


@dataclass(frozen=True)
class _Piece:
    """A place, who has it, and the nodes from which and to which."""

    place: Place
    category: str
    name: str
    born: int
    first: int
    last: int


def live(plan: Plan, graph: str) -> Live:
    made = plan.graphs[graph]
    count = max(len(made.graph.nodes), 1)
    pieces = _pieces(plan, made)
    sums = _by_category(pieces, count)
    totals = [sum(one.values()) for one in sums]
    peak = max(range(count), key=totals.__getitem__)
    owners = sorted(
        (Owner(one.name, one.category, one.place.nbytes) for one in pieces if one.first <= peak <= one.last),
        key=lambda owner: -owner.nbytes,
    )
    return Live(tuple(sums), peak, totals[peak], tuple(owners[:12]))


def _pieces(plan: Plan, made: GraphPlan) -> list[_Piece]:
    count = len(made.graph.nodes)
    state = set(made.graph.slots.values())
    slots = plan.slots
    roles = {write.tensor: slots[write.slot].role for write in made.graph.writes}
    found = [
        _Piece(place, CATEGORIES[slots[name].role], name, count, 0, max(count - 1, 0))
        for name, place in plan.state.items()
    ]
    for tensor, (born, last) in _spans(made).items():
        if tensor in state or tensor not in made.places:
            continue
        category = CATEGORIES[roles.get(tensor, made.graph.tensors[tensor].role)]
        name = made.graph.tensors[tensor].name or _maker(made, born)
        found.append(_Piece(made.places[tensor], category, name, born, max(born, 0), min(last, count - 1)))
    found += [
        _Piece(place, "workspace", "workspace", key.node, key.node, key.node) for key, place in made.workspace.items()
    ]
    return found


def _spans(made: GraphPlan) -> dict[int, tuple[int, int]]:
    """Tensor -> (node that makes it, last node that reads it); inputs, outputs and new values of slots stay."""
    graph, count = made.graph, len(made.graph.nodes)
    needed = lifetimes(graph)
    inputs = {given.tensor: (-1, count) for given in graph.inputs}
    written = {write.tensor for write in graph.writes}
    return inputs | {t: (born, count if t in written else needed.last[t]) for t, born in needed.born.items()}


def _maker(made: GraphPlan, node: int) -> str:
    """A tensor without a name, by what makes it."""
    if node < 0:
        return "input"
    origin = made.graph.nodes[node].origin
    return f"{origin.path or '(model)'} {made.graph.nodes[node].op} ({origin.phase})"


def _by_category(pieces: list[_Piece], count: int) -> list[dict[str, int]]:
    """Bytes by category while each node runs: the union of the places, where two overlap the
    later-made one. Memory is cut wherever a place begins or ends; a part has one owner a node."""
    names = list(dict.fromkeys(one.category for one in pieces))
    ends = [(one.place.segment, one.place.offset + n) for one in pieces for n in (0, one.place.nbytes)]
    cuts = {cut: i for i, cut in enumerate(sorted(set(ends)))}
    owner = np.full((count, len(cuts)), -1, np.int8)
    for one in sorted(pieces, key=lambda one: one.born):
        segment, begin = one.place.segment, one.place.offset
        parts = slice(cuts[segment, begin], cuts[segment, begin + one.place.nbytes])
        owner[one.first : one.last + 1, parts] = names.index(one.category)
    at = np.array([offset for _, offset in cuts], np.int64).reshape(-1)
    size = np.append(np.diff(at), 0)  # what lies between two segments belongs to nobody
    by = {name: (owner == i) @ size for i, name in enumerate(names)}
    return [{name: int(by[name][node]) for name in names if by[name][node]} for node in range(count)]

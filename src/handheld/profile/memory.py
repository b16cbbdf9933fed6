"""The memory that is alive while each op runs, per category, in bytes of the plan's memory.

Tensors that share memory (an output written over an input) count once, for the tensor that was written later. The
memory of a slot always counts for the slot. State and inputs are always alive. The plan may allocate more than the
largest sum: for alignment, for other graphs, and for gaps between lifetimes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from handheld.plan.lifetimes import lifetimes
from handheld.plan.memory import Place
from handheld.plan.plan import GraphPlan, Plan

#: Role of a tensor -> category in reports.
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
    """Live bytes per category while each node runs, and the tensors that are alive at the peak."""

    by_node: tuple[Mapping[str, int], ...]
    peak: int  # the node at which most is alive
    peak_bytes: int
    owners: tuple[Owner, ...]  # at the peak, largest first


@dataclass(frozen=True)
class _Piece:
    """A place in memory, its tensor, and the first and last node at which the tensor is alive."""

    place: Place
    category: str
    name: str
    born: int
    first: int
    last: int


def live(plan: Plan, graph: str) -> Live:
    graph_plan = plan.graphs[graph]
    count = max(len(graph_plan.graph.nodes), 1)
    pieces = _pieces(plan, graph_plan)
    sums = _by_category(pieces, count)
    totals = [sum(sizes.values()) for sizes in sums]
    peak = max(range(count), key=totals.__getitem__)
    owners = sorted(
        (
            Owner(piece.name, piece.category, piece.place.nbytes)
            for piece in pieces
            if piece.first <= peak <= piece.last
        ),
        key=lambda owner: -owner.nbytes,
    )
    return Live(tuple(sums), peak, totals[peak], tuple(owners[:12]))


def _pieces(plan: Plan, graph_plan: GraphPlan) -> list[_Piece]:
    graph = graph_plan.graph
    count = len(graph.nodes)
    state = set(graph.slots.values())
    slots = plan.slots
    roles = {write.tensor: slots[write.slot].role for write in graph.writes}
    pieces = [
        _Piece(place, CATEGORIES[slots[name].role], name, count, 0, max(count - 1, 0))
        for name, place in plan.state.items()
    ]
    for tensor, (born, last) in _spans(graph_plan).items():
        if tensor in state or tensor not in graph_plan.places:
            continue
        category = CATEGORIES[roles.get(tensor, graph.tensors[tensor].role)]
        name = graph.tensors[tensor].name or _maker(graph_plan, born)
        pieces.append(_Piece(graph_plan.places[tensor], category, name, born, max(born, 0), min(last, count - 1)))
    pieces += [
        _Piece(place, "workspace", "workspace", key.node, key.node, key.node)
        for key, place in graph_plan.workspace.items()
    ]
    return pieces


def _spans(graph_plan: GraphPlan) -> dict[int, tuple[int, int]]:
    """Tensor -> (node that makes it, last node that reads it). Inputs, outputs and new values of slots live to the
    end."""
    graph, count = graph_plan.graph, len(graph_plan.graph.nodes)
    needed = lifetimes(graph)
    inputs = {given.tensor: (-1, count) for given in graph.inputs}
    written = {write.tensor for write in graph.writes}
    return inputs | {t: (born, count if t in written else needed.last[t]) for t, born in needed.born.items()}


def _maker(graph_plan: GraphPlan, node: int) -> str:
    """A name for an unnamed tensor: the op that makes it."""
    if node < 0:
        return "input"
    origin = graph_plan.graph.nodes[node].origin
    return f"{origin.path or '(model)'} {graph_plan.graph.nodes[node].op} ({origin.phase})"


def _by_category(pieces: list[_Piece], count: int) -> list[dict[str, int]]:
    """Live bytes per category while each node runs. Where two places overlap, the bytes count for the tensor that was
    written later. Memory is split wherever a place begins or ends, so each part has one owner per node."""
    names = list(dict.fromkeys(piece.category for piece in pieces))
    ends = [(piece.place.segment, piece.place.offset + n) for piece in pieces for n in (0, piece.place.nbytes)]
    cuts = {cut: i for i, cut in enumerate(sorted(set(ends)))}
    owner = np.full((count, len(cuts)), -1, np.int8)
    for piece in sorted(pieces, key=lambda piece: piece.born):
        segment, begin = piece.place.segment, piece.place.offset
        parts = slice(cuts[segment, begin], cuts[segment, begin + piece.place.nbytes])
        owner[piece.first : piece.last + 1, parts] = names.index(piece.category)
    at = np.array([offset for _, offset in cuts], np.int64).reshape(-1)
    size = np.append(np.diff(at), 0)  # The part between two segments has no owner, so its size does not matter.
    by = {name: (owner == i) @ size for i, name in enumerate(names)}
    return [{name: int(by[name][node]) for name in names if by[name][node]} for node in range(count)]

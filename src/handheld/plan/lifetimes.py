"""Computes the lifetime of each tensor: the node that writes it and the last node that needs it."""

from __future__ import annotations

from dataclasses import dataclass, field

from handheld.graph.graph import Graph


@dataclass(frozen=True)
class Lifetimes:
    """Positions in `graph.nodes`, by tensor. A pack counts as its members.

    `born` has the node that writes a tensor; it does not contain inputs and slots. `last` has the last node that
    writes or reads it. For an output this is the number of nodes, because the caller reads it after the last node.
    """

    born: dict[int, int] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)


def lifetimes(graph: Graph) -> Lifetimes:
    """Returns the lifetimes of the tensors of a graph."""
    result = Lifetimes()
    for i, node in enumerate(graph.nodes):
        for out in node.outputs:
            for tensor in graph.packs.get(out, (out,)):
                result.born.setdefault(tensor, i)
                result.last[tensor] = i
        for view in node.inputs:
            for tensor in graph.packs.get(view.tensor, (view.tensor,)):
                result.last[tensor] = i
    for shown in graph.outputs:
        result.last[shown.view.tensor] = len(graph.nodes)
    return result

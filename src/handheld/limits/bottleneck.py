"""What keeps a plan from being smaller: the op during which most values are in memory."""

from __future__ import annotations

import numpy as np

from handheld.graph.graph import Graph, Node, Tensor
from handheld.plan.lifetimes import lifetimes
from handheld.plan.plan import Plan
from handheld.units import size

#: How many values are named.
NAMED = 3


def bottleneck(plan: Plan) -> str:
    """The op of a plan that needs most values at one time, and the largest of them."""
    found = [_largest(entry.graph) for entry in plan.graphs.values() if entry.graph.nodes]
    node, alive = max(found, key=lambda pair: sum(tensor.nbytes for tensor in pair[1]))
    op = node.origin.torch_op.removeprefix("aten.").removesuffix(".default") or node.op
    where = f"{op} of {node.origin.path or 'the model'} in the {node.origin.phase} pass"
    named = ", ".join(f"{t.role} {list(t.shape)} {size(t.nbytes)}" for t in alive[:NAMED])
    return f"{where} ({named})" if named else where


def _largest(graph: Graph) -> tuple[Node, list[Tensor]]:
    """The node of a graph at which most bytes are alive that a step makes, and these tensors, the largest first."""
    alive = lifetimes(graph)
    outside = set(graph.slots.values()) | {given.tensor for given in graph.inputs}
    outside |= graph.host | {write.tensor for write in graph.writes}  # Most are made in the memory of their slots.
    made = {t: (born, alive.last[t]) for t, born in alive.born.items() if t not in outside}
    change = np.zeros(len(graph.nodes) + 1, np.int64)
    for tensor, (born, last) in made.items():
        change[max(born, 0)] += graph.tensors[tensor].nbytes
        change[min(last, len(graph.nodes) - 1) + 1] -= graph.tensors[tensor].nbytes
    at = int(np.cumsum(change[:-1]).argmax())
    there = [graph.tensors[t] for t, (born, last) in made.items() if born <= at <= last]
    return graph.nodes[at], sorted(there, key=lambda tensor: -tensor.nbytes)

"""Orders the backward pass for less memory: what frees memory comes early, what needs more comes late.

The recorded order is that of autograd. It computes the gradient of a convolution's input before that of its weights,
for example. The second one is the last to read the convolution's input, which is then in memory beside its gradient.
"""

from __future__ import annotations

from handheld.graph.graph import Graph, Node
from handheld.passes.again import turning_point
from handheld.passes.pack import schedule_updates

#: The roles of tensors that are made in a step.
_MADE = ("activation", "gradient", "workspace")


def reorder(graph: Graph) -> Graph:
    """Returns the graph with the nodes of the backward pass in another order."""
    turn = turning_point(graph)
    late = [node for node in graph.nodes[turn:] if node.origin.phase != "update"]
    updates = [node for node in graph.nodes[turn:] if node.origin.phase == "update"]
    late = _frees_early(graph, _needs_late(graph, late))
    return schedule_updates(graph.with_nodes([*graph.nodes[:turn], *late, *updates]))


def _needs_late(graph: Graph, nodes: list[Node]) -> list[Node]:
    """Moves each node that needs more memory than it frees to just before the first node that reads its results."""
    last = _last_readers(nodes)
    order: list[Node] = []  # from the end to the start
    where: dict[int, int] = {}  # tensor -> the number of nodes from its first reader to the end
    for node in reversed(nodes):
        place = max((where[t] for t in node.outputs if t in where), default=len(order))
        if place < len(order) and _growth(graph, node, last) > 0:
            order.insert(place, node)
            where = {t: n + (n > place) for t, n in where.items()}
        else:
            place = len(order)
            order.append(node)
        for view in node.inputs:
            where[view.tensor] = max(where.get(view.tensor, 0), place + 1)
    return order[::-1]


def _frees_early(graph: Graph, nodes: list[Node]) -> list[Node]:
    """Moves each node that frees more memory than it needs to just after the last of its inputs."""
    last = _last_readers(nodes)
    order: list[Node] = []
    for node in nodes:
        needed, place = {view.tensor for view in node.inputs}, len(order)
        while place and not needed & set(order[place - 1].outputs) and _growth(graph, node, last) < 0:
            place -= 1
        order.insert(place, node)
    return order


def _last_readers(nodes: list[Node]) -> dict[int, int]:
    """Tensor -> the identity of the node that reads it last."""
    return {view.tensor: id(node) for node in nodes for view in node.inputs}


def _growth(graph: Graph, node: Node, last: dict[int, int]) -> int:
    """The bytes of a node's results, less those of the inputs that no later node reads."""
    freed = {v.tensor for v in node.inputs if last[v.tensor] == id(node) and graph.tensors[v.tensor].role in _MADE}
    return sum(graph.tensors[t].nbytes for t in node.outputs) - sum(graph.tensors[t].nbytes for t in freed)

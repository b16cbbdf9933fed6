"""`Editor`: a graph that passes can change in place.

The nodes are always in an order that respects dependencies. Two nodes can be joined unless a path leads from one
to the other through a third node; `reaches` finds such a path. Joining may move other nodes.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from handheld.graph.graph import Graph, Node


class Editor:
    """Nodes by number; for each tensor, the node that writes it (`maker`) and the nodes that read it (`readers`)."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.tensors = dict(graph.tensors)
        self.nodes: dict[int, Node] = dict(enumerate(graph.nodes))
        self.rank: dict[int, float] = {i: float(i) for i in self.nodes}
        self.maker: dict[int, int] = {}
        self.readers: dict[int, set[int]] = {}
        self.kept = graph.kept
        self._next = len(self.nodes)
        for i, node in self.nodes.items():
            self._link(i, node)

    def _link(self, i: int, node: Node) -> None:
        for out in node.outputs:
            self.maker[out] = i
        for view in node.inputs:
            self.readers.setdefault(view.tensor, set()).add(i)

    def _unlink(self, i: int) -> None:
        node = self.nodes.pop(i)
        for view in node.inputs:
            self.readers.get(view.tensor, set()).discard(i)
        for out in node.outputs:
            if self.maker.get(out) == i:
                del self.maker[out]

    def needed(self, tensor: int, without: Iterable[int] = ()) -> bool:
        """Whether a node that is not in `without` reads the tensor, or it is needed after the step."""
        return tensor in self.kept or bool(self.readers.get(tensor, set()) - set(without))

    def replace(self, old: Iterable[int], new: Node, rank: float) -> int:
        """Replaces several nodes by one and returns its number."""
        for i in old:
            self._unlink(i)
        number = self._next
        self._next += 1
        self.nodes[number] = new
        self.rank[number] = rank
        self._link(number, new)
        return number

    def remove(self, i: int) -> None:
        self._unlink(i)

    def successors(self, i: int) -> set[int]:
        return {r for out in self.nodes[i].outputs for r in self.readers.get(out, ())}

    def reaches(self, start: int, goal: int) -> bool:
        """Whether a path leads from start to goal through a third node."""
        limit = self.rank[goal]
        stack = [n for n in self.successors(start) if n != goal]
        seen = set(stack)
        while stack:
            here = stack.pop()
            for after in self.successors(here):
                if after == goal:
                    return True
                # Ranks respect dependencies, so no node with a higher rank than the goal leads to it.
                if after not in seen and self.rank[after] <= limit:
                    seen.add(after)
                    stack.append(after)
        return False

    def reorder(self) -> None:
        """Computes ranks that respect dependencies and change the old order as little as possible."""
        waiting = {i: 0 for i in self.nodes}
        for i, node in self.nodes.items():
            waiting[i] = len({self.maker[v.tensor] for v in node.inputs if v.tensor in self.maker} - {i})
        ready = [(self.rank[i], i) for i, n in waiting.items() if n == 0]
        heapq.heapify(ready)
        order: list[int] = []
        while ready:
            _, i = heapq.heappop(ready)
            order.append(i)
            for after in self.successors(i):
                waiting[after] -= 1
                if waiting[after] == 0:
                    heapq.heappush(ready, (self.rank[after], after))
        assert len(order) == len(self.nodes), "a pass made a cycle"
        self.rank = {i: float(n) for n, i in enumerate(order)}

    def ordered(self) -> list[int]:
        return sorted(self.nodes, key=lambda i: self.rank[i])

    def finish(self) -> Graph:
        self.reorder()
        graph = self.graph
        graph = Graph(
            graph.name,
            self.tensors,
            graph.nodes,
            graph.inputs,
            graph.slots,
            graph.writes,
            graph.outputs,
            graph.notes,
            graph.packs,
        )
        return graph.with_nodes([self.nodes[i] for i in self.ordered()])

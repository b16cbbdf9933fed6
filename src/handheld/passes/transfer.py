"""Moves tensors between the memory of the device and that of the host (or a file), so that the device needs less.

`move_out` moves values of the forward pass away until the backward pass needs them; `stream` keeps slots that no graph
changes in the host's memory, and brings each in before the nodes that read it:

    x ──► nodes of the forward pass        x' ──► nodes of the backward pass
    └──► copy out ──► (host) ──► copy in ──┘

Such copies are nodes of the graph, so everything else knows about them: lifetimes, the verifier, the reference. They
change no bits. plan/transfers.py says when they run beside other nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from handheld.errors import PlanError
from handheld.graph.graph import Graph, Node, Origin, Tensor, consumers, copy_node, producers
from handheld.passes.again import turning_point

#: A copy of a streamed tensor keeps its memory for this many nodes, in case another one reads it.
NEAR = 2
#: A streamed tensor is copied at most this many nodes before it is read.
AHEAD = 8


class Move(NamedTuple):
    """A value of the forward pass that leaves the memory of the device.

    Its copy may take until `hold` nodes after its last reader of the forward pass. The copy back begins `ahead` nodes
    before its first reader of the backward pass.
    """

    tensor: int
    hold: int = 0
    ahead: int = 0


class Gap(NamedTuple):
    """The last node of the forward pass that needs a value, and the first node of the backward pass that does."""

    last: int
    next: int


def movable(graph: Graph) -> dict[int, Gap]:
    """The values of the forward pass that the backward pass reads, and that can leave the memory in between."""
    turn, readers = turning_point(graph), consumers(graph)
    fixed = graph.kept | graph.host | set(graph.packs) | {m for members in graph.packs.values() for m in members}
    gaps = {}
    for tensor, maker in producers(graph).items():
        late = [r for r in readers.get(tensor, ()) if r >= turn]
        if maker < turn and late and tensor not in fixed and graph.tensors[tensor].size:
            early = [r for r in readers[tensor] if r < turn]
            gaps[tensor] = Gap(max(early, default=maker), late[0])
    return gaps


def move_out(graph: Graph, moves: Collection[Move]) -> Graph:
    """Returns the graph in which these values are copied to the host and back."""
    if not moves:
        return graph
    gaps, turn, maker = movable(graph), turning_point(graph), producers(graph)
    unknown = sorted(move.tensor for move in moves if move.tensor not in gaps)
    if unknown:
        raise PlanError(
            f"graph {graph.name!r} has no values {unknown[:5]} to move to the host. Try: plan again with spill=True"
        )
    work = _Copies(graph)
    back: dict[int, int] = {}
    for move in sorted(moves, key=lambda move: (gaps[move.tensor].last, move.tensor)):
        gap, source = gaps[move.tensor], graph.nodes[maker[move.tensor]].origin
        away = work.tensor(move.tensor, "activation", host=True)
        work.copy(min(gap.last + move.hold, turn - 1) + 1, move.tensor, away, replace(source, phase="forward"))
        back[move.tensor] = work.tensor(move.tensor, graph.tensors[move.tensor].role)
        first = max(gap.next - move.ahead, turn)
        work.copy(first, away, back[move.tensor], replace(source, phase="backward"))
    return work.result([_reading(node, back) if i >= turn else node for i, node in enumerate(graph.nodes)])


def stream(graph: Graph, slots: Iterable[str]) -> Graph:
    """Returns the graph in which these slots are in the host's memory. Each is copied to the device for the nodes that
    read it; the copy begins when the readers of the copy before begin, so that two are in memory at a time."""
    own = {graph.slots[name] for name in slots if name in graph.slots}
    if not own:
        return graph
    work = _Copies(graph)
    work.host |= own
    nodes, here = list(graph.nodes), dict[int, tuple[int, int]]()  # slot's tensor -> (its copy, its last reader)
    before = 0
    for i, node in enumerate(graph.nodes):
        read = [t for t in dict.fromkeys(view.tensor for view in node.inputs) if t in own]
        missing = [t for t in read if t not in here or here[t][1] < i - NEAR]
        for tensor in missing:
            copy = work.tensor(tensor, "workspace")
            work.copy(max(before, i - AHEAD), tensor, copy, node.origin)
            here[tensor] = copy, i
        if missing:
            before = i
        here |= {t: (here[t][0], i) for t in read}
        nodes[i] = _reading(node, {t: here[t][0] for t in read})
    return work.result(nodes)


def streamable(graphs: Iterable[Graph]) -> set[str]:
    """The slots that no graph changes, and whose whole value only nodes read."""
    graphs = list(graphs)
    changed = {write.slot for graph in graphs for write in graph.writes}
    shown = set()
    for graph in graphs:
        packed = {m for members in graph.packs.values() for m in members}
        kept = graph.kept | packed
        shown |= {name for name, tensor in graph.slots.items() if tensor in kept}
    return {name for graph in graphs for name in graph.slots} - changed - shown


class _Copies:
    """The copies that are added to a graph, by the node that they come before."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.tensors, self.host = graph, dict(graph.tensors), set(graph.host)
        self._before: dict[int, list[Node]] = {}
        self._next = max(graph.tensors) + 1

    def tensor(self, like: int, role: str, host: bool = False) -> int:
        number, self._next = self._next, self._next + 1
        old = self.tensors[like]
        self.tensors[number] = Tensor(number, old.shape, old.dtype, role, old.name)
        if host:
            self.host.add(number)
        return number

    def copy(self, before: int, source: int, target: int, origin: Origin) -> None:
        with_tensors = replace(self.graph, tensors=self.tensors)
        self._before.setdefault(before, []).append(copy_node(with_tensors, source, target, origin))

    def result(self, nodes: Sequence[Node]) -> Graph:
        every = [new for i in range(len(nodes) + 1) for new in (*self._before.get(i, ()), *nodes[i : i + 1])]
        graph = replace(self.graph, tensors=self.tensors, host=frozenset(self.host))
        return graph.with_nodes(every)


def _reading(node: Node, renamed: dict[int, int]) -> Node:
    """The node with other tensors as inputs. A node that reads none of them stays the same object."""
    if not any(view.tensor in renamed for view in node.inputs):
        return node
    return replace(node, inputs=tuple(replace(v, tensor=renamed.get(v.tensor, v.tensor)) for v in node.inputs))

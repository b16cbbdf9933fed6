"""When copies between the device and the host run. They run beside other nodes, on a second queue if there is one.

A copy to the host begins once its value is made, and is over before its own node: from then on, other values may use
the memory. A copy to the device begins at its own node, and is over before the first node that reads it.

    nodes    make x │ read x │ ····· │ copy out │ other values │ copy in │ ····· │ read x'
    copies          └── out ─────────┘                         └── in ──────────┘

`schedule` turns a graph into actions in this order. The copies of a step run one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from handheld.graph.graph import Graph, consumers, producers, transfer_of

if TYPE_CHECKING:
    from handheld.backends.base import Counters

RUN, BEGIN, END = "run", "begin", "end"


class Action(NamedTuple):
    """Runs nodes one after the other, begins the copy of a node, or waits for its end."""

    kind: str
    nodes: tuple[int, ...]


class Transfer(NamedTuple):
    """A copy: its node, "in" or "out", the tensor on the device and the one in the host's memory."""

    node: int
    way: str
    tensor: int
    host: int
    nbytes: int

    def add_to(self, counters: Counters) -> None:
        """Counts the copy among the transfers of a session."""
        if self.way == "in":
            counters.uploads += 1
            counters.upload_bytes += self.nbytes
        else:
            counters.downloads += 1
            counters.download_bytes += self.nbytes


def transfers(graph: Graph) -> dict[int, Transfer]:
    """The copies of a graph by their nodes."""
    found = {}
    for i, node in enumerate(graph.nodes):
        way = transfer_of(graph, node)
        if way:
            source, target = node.inputs[0].tensor, node.outputs[0]
            device, host = (source, target) if way == "out" else (target, source)
            found[i] = Transfer(i, way, device, host, graph.tensors[device].nbytes)
    return found


def moved_bytes(graph: Graph) -> tuple[int, int]:
    """The bytes that a step moves to the host and back."""
    found = transfers(graph).values()
    return sum(t.nbytes for t in found if t.way == "out"), sum(t.nbytes for t in found if t.way == "in")


def schedule(graph: Graph) -> tuple[Action, ...]:
    """The actions of a step, in order."""
    return tuple(_joined(_actions(graph)))


def _actions(graph: Graph) -> Iterator[Action]:
    known, maker, readers = transfers(graph), producers(graph), consumers(graph)
    begin: dict[int, list[int]] = {}  # node -> copies that begin after it
    end: dict[int, list[int]] = {}  # node -> copies that must be over before it
    for copy in known.values():
        if copy.way == "out":
            begin.setdefault(maker[copy.tensor], []).append(copy.node)
        elif readers.get(copy.tensor):
            end.setdefault(readers[copy.tensor][0], []).append(copy.node)
    for i in range(len(graph.nodes)):
        yield from (Action(END, (copy,)) for copy in end.get(i, ()))
        if i in known:
            yield Action(BEGIN if known[i].way == "in" else END, (i,))
        else:
            yield Action(RUN, (i,))
        yield from (Action(BEGIN, (copy,)) for copy in begin.get(i, ()))


def _joined(actions: Iterator[Action]) -> Iterator[Action]:
    """The same actions, with nodes that follow each other in one."""
    nodes: tuple[int, ...] = ()
    for action in actions:
        if action.kind == RUN:
            nodes += action.nodes
            continue
        if nodes:
            yield Action(RUN, nodes)
            nodes = ()
        yield action
    if nodes:
        yield Action(RUN, nodes)

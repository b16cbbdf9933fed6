"""What a memory limit can be met with: the values of a graph that can be dropped, and what each would cost.

A dropped value is computed again in the backward pass (passes/again.py). A `Ledger` holds all that `simulate` needs to
know about the graph as numbers, because a search asks many hundreds of times.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from handheld.graph.graph import Graph, Node, consumers, producers
from handheld.passes.again import droppable, node_again, turning_point
from handheld.plan.in_place import in_place
from handheld.plan.lifetimes import lifetimes

NONE: frozenset[int] = frozenset()

#: A value with less than this share of all droppable bytes is in memory whenever the backward pass reads it.
SMALL = 1 / 2000


class Price(NamedTuple):
    """The predicted seconds of a node, and the bytes of its scratch buffers."""

    seconds: float
    workspace: int


#: Returns the prices of nodes that read and write tensors of a graph.
Prices = Callable[[Sequence[Node], Graph], list[Price]]


@dataclass(frozen=True)
class Entry:
    """A value that can be dropped. Positions are those of nodes in the graph."""

    tensor: int
    nbytes: int
    born: int
    #: The last node of the forward pass that needs it.
    early: int
    #: The last node of the backward pass that reads it; -1 if none does.
    late: int
    #: The other entries that computing it again reads, and the entries that this makes, itself included.
    needs: tuple[int, ...]
    makes: tuple[int, ...]
    seconds: float
    workspace: int
    #: Its bytes if it is dropped: less than `nbytes` if it is then computed in pieces.
    less: int


@dataclass(frozen=True)
class Ledger:
    """A graph for the search."""

    turn: int
    entries: Mapping[int, Entry]
    #: The values that the search decides about, in the order in which they are made. The backward pass reads them.
    choices: tuple[int, ...]
    #: The entries that the backward pass does not read. They are always dropped.
    unread: frozenset[int]
    #: Per node of the backward pass, from `turn` on: the entries that it reads.
    reads: tuple[tuple[int, ...], ...]
    #: Per node: the bytes of all other tensors while it runs, and between it and the node before.
    fixed: np.ndarray
    between: np.ndarray
    #: Entry and the node that reads it last -> the bytes that its output may take over from it.
    taken_over: Mapping[tuple[int, int], int]
    seconds: float

    @functools.cached_property
    def first_reads(self) -> tuple[tuple[int, int], ...]:
        """The first node of the backward pass that reads each entry, and the entry, in the order of the nodes."""
        first: dict[int, int] = {}
        for n, reads in enumerate(self.reads, self.turn):
            for tensor in reads:
                first.setdefault(tensor, n)
        return tuple((n, tensor) for tensor, n in first.items())

    @functools.cached_property
    def able(self) -> frozenset[int]:
        """The choices as a set."""
        return frozenset(self.choices)

    @functools.cached_property
    def first_read(self) -> dict[int, int]:
        """Entry -> the first node of the backward pass that reads it."""
        return {tensor: n for n, tensor in self.first_reads}

    @functools.cached_property
    def columns(self) -> Columns:
        entries = self.entries.values()
        taken = self.taken_over
        return Columns(
            {entry.tensor: k for k, entry in enumerate(entries)},
            *(
                np.array(list(numbers), np.int64)
                for numbers in (
                    (entry.nbytes for entry in entries),
                    (entry.less for entry in entries),
                    (entry.born for entry in entries),
                    (entry.early for entry in entries),
                    (entry.late for entry in entries),
                    (taken.get((entry.tensor, entry.early), 0) for entry in entries),
                    (taken.get((entry.tensor, entry.late), 0) for entry in entries),
                )
            ),
        )


class Columns(NamedTuple):
    """The entries of a ledger as arrays, and the place of each entry in them."""

    place: Mapping[int, int]
    nbytes: np.ndarray
    less: np.ndarray
    born: np.ndarray
    early: np.ndarray
    late: np.ndarray
    #: The bytes that an output takes over if the value ends with its node `early` or `late`.
    taken_early: np.ndarray
    taken_late: np.ndarray


def make_ledger(graph: Graph, prices: Prices, thin: Set[int] = NONE, pieces: int = 1) -> Ledger:
    """Reads a graph, as `plan.fit.spread_out` returns it. `thin` are values of which one piece at a time may exist."""
    turn, maker = turning_point(graph), producers(graph)
    found = droppable(graph)
    least = sum(graph.tensors[t].nbytes for t in found) * SMALL
    readers = consumers(graph)
    large = {t for t in found if graph.tensors[t].nbytes >= least}
    # A small value that the backward pass reads stays in memory; one that it does not read costs little to compute.
    known = large | {t for t in found if not any(r >= turn for r in readers.get(t, ()))}
    nodes = {t: node_again(graph, maker, t) for t in sorted(known)}
    own = prices(graph.nodes, graph)
    again = dict(zip(nodes, prices(list(nodes.values()), graph), strict=True))
    entries = {t: _entry(graph, node, maker[t], t, readers, known, turn, again[t]) for t, node in nodes.items()}
    entries |= {t: replace(entries[t], less=-(-entries[t].nbytes // pieces)) for t in thin & entries.keys()}
    late = [tuple(dict.fromkeys(v.tensor for v in node.inputs if v.tensor in entries)) for node in graph.nodes[turn:]]
    sizes = {t: -(-graph.tensors[t].nbytes // pieces) for t in thin}
    fixed, between = bytes_of_all(graph, [price.workspace for price in own], entries, sizes)
    return Ledger(
        turn,
        entries,
        tuple(sorted((t for t in large if entries[t].late >= 0), key=lambda t: (entries[t].born, t))),
        frozenset(t for t, entry in entries.items() if entry.late < 0),
        tuple(late),
        fixed,
        between,
        _taken_over(graph, entries),
        sum(price.seconds for price in own),
    )


def _entry(
    graph: Graph,
    again: Node,
    born: int,
    tensor: int,
    readers: Mapping[int, list[int]],
    known: set[int],
    turn: int,
    price: Price,
) -> Entry:
    read = readers.get(tensor, [])
    return Entry(
        tensor,
        max(graph.tensors[tensor].nbytes, 4),
        born,
        max((r for r in read if r < turn), default=born),
        max((r for r in read if r >= turn), default=-1),
        tuple(dict.fromkeys(v.tensor for v in again.inputs if v.tensor in known)),
        tuple(out for out in again.outputs if out in known),
        price.seconds,
        price.workspace,
        max(graph.tensors[tensor].nbytes, 4),
    )


def bytes_of_all(
    graph: Graph,
    workspace: Sequence[int],
    entries: Collection[int] = (),
    sizes: Mapping[int, int] = MappingProxyType({}),
) -> tuple[np.ndarray, np.ndarray]:
    """The bytes at and between nodes of everything that is made in the step and is no entry. `sizes` has those of
    tensors that are not there as a whole."""
    count = len(graph.nodes)
    change, between = np.zeros(count + 2, np.int64), np.zeros(count + 2, np.int64)
    alive = lifetimes(graph)
    inside = {m: pack for pack, members in graph.packs.items() for m in members}
    outside = set(entries) | set(graph.slots.values()) | {shown.view.tensor for shown in graph.outputs}
    written = {write.tensor for write in graph.writes}  # most are made in the memory of their slots
    spans: dict[int, tuple[int, int]] = {}
    for tensor, born in alive.born.items():
        if tensor in outside or tensor in written:
            continue
        whole = inside.get(tensor, tensor)
        low, high = spans.get(whole, (born, born))
        spans[whole] = min(low, born), max(high, alive.last[tensor])
    for tensor, (low, high) in spans.items():
        nbytes = sizes.get(tensor, graph.tensors[tensor].nbytes)
        change[low] += nbytes
        change[high + 1] -= nbytes
        between[low + 1] += nbytes
        between[high + 1] -= nbytes
    at = np.cumsum(change)[:count] + np.array(workspace, np.int64)
    for i, node in enumerate(graph.nodes):
        for j, out in enumerate(node.outputs):
            if out not in sizes:
                at[i] -= _shared(graph, node, i, j, out, spans)
    return at, np.cumsum(between)[: count + 1]


def _shared(graph: Graph, node: Node, i: int, j: int, out: int, spans: Mapping[int, tuple[int, int]]) -> int:
    """The bytes that output j of a node takes over from a tensor in `spans` that ends there."""
    nbytes = graph.tensors[out].nbytes
    if out not in spans:
        return 0
    for k, view in enumerate(node.inputs):
        ends = spans.get(view.tensor, (0, -1))[1] == i and view.tensor not in graph.packs
        if ends and graph.tensors[view.tensor].nbytes == nbytes and in_place(node, k, j):
            return nbytes
    return 0


def _taken_over(graph: Graph, entries: Mapping[int, Entry]) -> dict[tuple[int, int], int]:
    found: dict[tuple[int, int], int] = {}
    for i, node in enumerate(graph.nodes):
        for k, view in enumerate(node.inputs):
            nbytes = graph.tensors[view.tensor].nbytes
            if view.tensor in entries and any(
                graph.tensors[out].nbytes == nbytes and in_place(node, k, j) for j, out in enumerate(node.outputs)
            ):
                found[view.tensor, i] = nbytes
    return found

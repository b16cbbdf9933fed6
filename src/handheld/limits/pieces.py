"""Chooses the values that are computed in pieces (passes/pieces.py), for a limit that other means do not meet.

What is computed again is decided first: as for the smallest plan, or by a search that counts large values with the
bytes of one piece (ledger.py). Then values become *thin* until the limit is met: those that are in memory at the
highest moment, the largest first.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from handheld.graph.graph import Graph, Node
from handheld.limits.ledger import Prices, bytes_of_all, make_ledger
from handheld.limits.search import Choice, Search
from handheld.passes.again import compute_again, turning_point
from handheld.passes.epilogue import HOSTS
from handheld.passes.pieces import can_be_thin, sketch
from handheld.plan.in_place import replaces
from handheld.plan.lifetimes import lifetimes

#: The numbers of pieces that are tried.
COUNTS = (8, 32)
#: A value with less than this share of the room is not computed in pieces.
LARGE = 1 / 12
#: Values of at least this share of the largest one at a moment become thin together.
ALIKE = 0.5
#: Thin values are computed again by each loop that reads them. So many products may be needed to compute one.
PRODUCTS = 2
#: How often more values become thin without a smaller peak.
PATIENCE = 4
#: How often others are tried instead.
REVERTS = 6
#: A graph in pieces has at most so many nodes.
MOST_NODES = 6000


class Way(NamedTuple):
    """How a choice of what is computed again is found: for a graph in which large values are thin, or none is, and for
    a share of the room."""

    thin: bool
    share: float = 1.0


WAYS = (Way(False), Way(True), Way(True, 0.88))


@dataclass(frozen=True)
class Pieces:
    """A choice for one graph: what is computed again, the values in pieces, their number, and the predicted time."""

    choice: Choice
    thin: tuple[int, ...]
    count: int
    seconds: float
    way: Way


class PieceSearch:
    """Searches for one graph, as `plan.fit.spread_out` returns it. `plain` is the search without pieces."""

    def __init__(self, graph: Graph, plain: Search, prices: Prices) -> None:
        self._graph, self._plain, self._prices = graph, plain, prices
        self._smallest: Choice | None = None

    def within(self, room: int, count: int, way: Way) -> Pieces | None:
        """The choice whose peak is at most `room`, with `count` pieces; None if none is found."""
        choice = self._choice(room, count, way)
        if choice is None:
            return None
        small = compute_again(self._graph, choice.dropped | self._plain.ledger.unread, choice.brief)
        return _Thinning(small, count, room, self._prices).result(choice, way)

    def fewer(self, found: Pieces, room: int) -> Pieces:
        """The same choice without the thin values that are not needed."""
        return self._thinning(found, room).fewer(found)

    def more(self, found: Pieces, room: int) -> Pieces | None:
        """The same choice with as many more thin values as a smaller room asks for; None if that is not enough."""
        return self._thinning(found, room).result(found.choice, found.way, frozenset(found.thin))

    def _thinning(self, found: Pieces, room: int) -> _Thinning:
        small = compute_again(self._graph, found.choice.dropped | self._plain.ledger.unread, found.choice.brief)
        return _Thinning(small, found.count, room, self._prices)

    def _least(self) -> Choice:
        if self._smallest is None:
            self._smallest = self._plain.smallest()
        return self._smallest

    def _choice(self, room: int, count: int, way: Way) -> Choice | None:
        if not way.thin:
            return self._least()
        able = Able(self._graph, count, int(room * LARGE))
        ledger = make_ledger(self._graph, self._prices, able.values, count)
        return Search(ledger, self._plain.start.dropped).within(int(room * way.share))


@dataclass
class Able:
    """The values of a graph that can be computed in `count` pieces, and have at least `least` bytes."""

    graph: Graph
    count: int
    least: int
    touching: dict[int, list[Node]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in self.graph.nodes:
            for tensor in {*node.outputs, *(view.tensor for view in node.inputs)}:
                self.touching.setdefault(tensor, []).append(node)
        self.values = self._shallow(frozenset(t for t in self.graph.tensors if self.add((), t)))

    def _shallow(self, found: frozenset[int]) -> frozenset[int]:
        """The values that are not computed from too many others that could be thin."""
        reach: dict[int, frozenset[int]] = {}  # value -> the products that make it, if it is thin
        for i, node in enumerate(self.graph.nodes):
            if not found.isdisjoint(node.outputs):
                own = frozenset((i,) if node.op in (*HOSTS, "conv_weight") else ())
                products = own.union(*(reach.get(view.tensor, ()) for view in node.inputs))
                if len(products) <= PRODUCTS:
                    reach.update((t, products) for t in found.intersection(node.outputs))
        return frozenset(reach)

    def add(self, thin: Collection[int], tensor: int) -> bool:
        """Whether a value can be thin together with others."""
        whole = self.graph.tensors[tensor]
        if whole.nbytes < self.least or whole.role not in ("activation", "gradient", "workspace"):
            return False
        part = replace(self.graph, nodes=tuple(self.touching.get(tensor, ())))
        return bool(part.nodes) and can_be_thin(part, {*thin, tensor}, self.count, tensor)


class _Look(NamedTuple):
    """What some thin values make of a graph: a sketch of it, its fullest moment with the bytes there, the seconds of a
    step, and the number of nodes of the whole graph."""

    graph: Graph
    at: int
    peak: int
    seconds: float
    nodes: float


@dataclass
class _Thinning:
    """Makes values of a graph thin until it needs no more than `room`."""

    graph: Graph
    count: int
    room: int
    prices: Prices

    def __post_init__(self) -> None:
        self.able = Able(self.graph, self.count, int(self.room * LARGE))
        turn = turning_point(self.graph)
        early = {t for node in self.graph.nodes[:turn] for t in node.outputs}
        late = {view.tensor for node in self.graph.nodes[turn:] for view in node.inputs}
        #: What stays for the backward pass, and what was looked at already.
        self.tried = early & late
        self.last = lifetimes(self.graph).last
        self.maker = {t: node for node in self.graph.nodes for t in node.outputs}

    def result(self, choice: Choice, way: Way, thin: frozenset[int] = frozenset()) -> Pieces | None:
        """As few thin values as the room asks for; None if that is not enough. Making a value thin may first need more
        memory, until what it is computed from is thin as well; if that does not help soon, it is given up."""
        scratch, best, lowest, since, reverts = False, thin, math.inf, 0, 0
        tried, first = set(self.tried), frozenset[int]()  # when the best was found, and what was added next
        while True:
            look = self._look(thin, scratch)
            if not scratch and look.peak <= self.room:
                scratch, look = True, self._look(thin, True)  # Scratch takes time to find, so it comes last.
            if scratch and look.peak <= self.room:
                return Pieces(choice, tuple(sorted(thin)), self.count, look.seconds, way)
            since += 1
            if look.peak < lowest:
                best, lowest, since, tried, first = thin, look.peak, 0, set(self.tried), frozenset()
            more = self._more(look.graph, thin, look.at) if look.nodes <= MOST_NODES else thin
            first = first or more - thin
            if more != thin and since <= PATIENCE:
                thin = more
            elif first and reverts < REVERTS:  # Others may help more than what was added to the best.
                self.tried, thin, since, reverts = tried | first, best, 0, reverts + 1
                tried, first = set(self.tried), frozenset()
            else:
                return None

    def fewer(self, found: Pieces) -> Pieces:
        """The same choice without the thin values that are not needed, those that take most time first."""
        thin, seconds = frozenset(found.thin), found.seconds
        for tensor in sorted(thin, key=lambda t: (self.graph.tensors[t].nbytes, t)):
            rest = thin - {tensor}
            if not can_be_thin(self.graph, rest, self.count) or self._look(rest, False).peak > self.room:
                continue
            look = self._look(rest, True)
            if look.peak <= self.room and look.seconds < seconds:
                thin, seconds = rest, look.seconds
        return replace(found, thin=tuple(sorted(thin)), seconds=seconds)

    def _look(self, thin: frozenset[int], scratch: bool) -> _Look:
        made, weights, parts = sketch(self.graph, thin, self.count)
        seconds, sizes = math.inf, [0] * len(made.nodes)
        if scratch:
            found = self.prices(made.nodes, made)
            seconds = sum(price.seconds * weight for price, weight in zip(found, weights, strict=True))
            sizes = [price.workspace for price in found]
        total = bytes_of_all(replace(made, packs=_apart(made)), sizes, (), parts)[0]
        return _Look(made, int(total.argmax()), int(total.max(initial=0)), seconds, sum(weights))

    def _more(self, made: Graph, thin: frozenset[int], at: int) -> frozenset[int]:
        """The thin values, and more of those that are in memory at a moment."""
        there = [t for t in _alive(made, at) if t in self.able.values and t not in self.tried]
        there = [t for t in there if self._helps(thin, t)] or there
        least = 0.0
        for tensor in sorted(there, key=lambda t: (-made.tensors[t].nbytes, t)):
            if made.tensors[tensor].nbytes < least:
                break
            self.tried.add(tensor)
            if self.able.add(thin, tensor):
                thin |= {tensor}
                least = least or made.tensors[tensor].nbytes * ALIKE
        return thin

    def _helps(self, thin: frozenset[int], tensor: int) -> bool:
        """Whether a thin value frees more memory than what it is computed from needs for longer."""
        stack, seen, longer = [tensor], {tensor}, 0
        while stack:
            node = self.maker.get(stack.pop())
            for read in {view.tensor for view in node.inputs} - seen if node is not None else ():
                seen.add(read)
                if read in thin:
                    stack.append(read)
                elif read in self.maker and self.last[read] < self.last[tensor]:
                    longer += self.graph.tensors[read].nbytes
        return longer < self.graph.tensors[tensor].nbytes // 2


def _apart(graph: Graph) -> dict[int, tuple[int, ...]]:
    """The packs of a graph without those whose members take over the memory of others one by one."""
    alive = lifetimes(graph)
    born, last = alive.born, alive.last
    made = {pack: members for pack, members in graph.packs.items() if born.keys() >= set(members)}

    def follows(members: tuple[int, ...]) -> bool:
        at = born[members[0]]
        olds = [own for own in made.values() if len(own) == len(members) and born[own[0]] < at <= last[own[-1]]]
        return any(all(replaces(graph, born, last, *both) for both in zip(members, own, strict=True)) for own in olds)

    return {pack: members for pack, members in graph.packs.items() if pack not in made or not follows(members)}


def _alive(graph: Graph, at: int) -> list[int]:
    """The tensors that are in memory while a node runs. A pack is there as soon as one of its members is."""
    alive = lifetimes(graph)
    there = {t for t, born in alive.born.items() if born <= at <= alive.last[t]}
    packs: Mapping[int, tuple[int, ...]] = graph.packs
    for pack, members in packs.items():
        born, last = (f(table.get(m, -1) for m in members) for f, table in ((min, alive.born), (max, alive.last)))
        if 0 <= born <= at <= last:
            there.add(pack)
    return sorted(there)

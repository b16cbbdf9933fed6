"""Computes large values in pieces along the batch, so that they never exist as a whole.

`thin` names values. Each is computed one piece at a time, within a loop over the pieces that ends with what is read as
a whole: a sum over the batch, or a tensor that is not thin. Two loops that read the same thin value both compute it.

    conv ──► y ──► sum            for i: y[i] = conv(x[i]);  s += sum(y[i])
             │                    for i: y[i] = conv(x[i]);  z[i] = norm(y[i], s);  out[i] = conv(z[i])
             └──► norm ──► z ──► conv ──► out

A tensor that is written in pieces and read as a whole is a pack of its pieces, so nothing is copied. What a loop reads
and replaces by a tensor of the same size is made in pieces too, so that a piece can take over the memory of another.
A graph has no loops: the nodes of all pieces follow each other. Sums are added in the order of the pieces; nothing else
is rounded differently.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from handheld.graph.dtypes import DTYPES, F32
from handheld.graph.graph import PACK_ALIGN, Graph, Node, Tensor, View, contiguous_strides
from handheld.graph.program import Builder, Store
from handheld.passes.clean import trim
from handheld.passes.pack import schedule_updates
from handheld.passes.slices import Cut, cuts, sliced
from handheld.passes.spaces import respace, store_strides
from handheld.passes.stages import in_stages

#: A piece of a tensor that is also read as a whole begins at a multiple of this many bytes.
ALIGN_BYTES = 512


def in_pieces(graph: Graph, thin: Collection[int], count: int) -> Graph:
    """Returns the graph that computes these values in `count` pieces. `can_be_thin` says which can be named."""
    return _walked(_Pieces(staged(graph, frozenset(thin), count), frozenset(thin), count, count))


class Sketch(NamedTuple):
    """A graph with two pieces of each loop only, to see quickly what it needs. It is no legal graph. `weights` says
    how many nodes each node stands for, and `sizes` has the bytes that the pieces of whole tensors stand for."""

    graph: Graph
    weights: list[float]
    sizes: dict[int, int]


def sketch(graph: Graph, thin: Collection[int], count: int) -> Sketch:
    """A sketch of what `in_pieces` returns."""
    work = _Pieces(staged(graph, frozenset(thin), count), frozenset(thin), count, min(count, 2))
    made, looped = _walked(work), {id(node) for node in work.looped}
    sizes = {m: graph.tensors[t].nbytes // work.made for t, ms in work.packs.items() for m in ms}
    return Sketch(made, [count / work.made if id(node) in looped else 1.0 for node in made.nodes], sizes)


def _walked(work: _Pieces) -> Graph:
    graph = work.graph
    updates = [node for node in graph.nodes if node.origin.phase == "update"]
    for node in graph.nodes:
        if node.origin.phase != "update":
            work.add(node)
    work.close()
    tensors, packs = work.tensors, {**graph.packs, **work.packs}
    return schedule_updates(replace(graph, tensors=tensors, packs=packs).with_nodes([*work.nodes, *updates]))


def staged(graph: Graph, thin: frozenset[int], count: int) -> Graph:
    """The graph whose loops can be cut where they read or make thin values: reductions are in stages, and the outermost
    dimensions of a map are one, if the first has too few elements."""
    tensors, nodes = dict(graph.tensors), list[Node]()
    for node in graph.nodes:
        reads = any(view.tensor in thin for view in node.inputs)
        if node.op == "reduce" and (reads or thin.intersection(node.outputs)) and needs_stages(graph, node, thin):
            nodes += in_stages(node, tensors, reads)
        elif node.op == "map" and (reads or thin.intersection(node.outputs)):
            nodes.append(_wide(node, count))
        else:
            nodes.append(node)
    return replace(graph, tensors=tensors).with_nodes(nodes)


def _wide(node: Node, count: int) -> Node:
    shape = tuple(node.attrs["shape"])
    while len(shape) > 1 and shape[0] % count:
        shape = (shape[0] * shape[1], *shape[2:])
    return (respace(node, shape) or node) if shape[0] % count == 0 else node


def needs_stages(graph: Graph, node: Node, thin: frozenset[int]) -> bool:
    """Whether a reduction sums over what its thin values are cut along."""
    axes, shape = tuple(node.attrs["axes"]), tuple(node.attrs["shape"])
    for view, instr in ((node.inputs[i.params[0]], i) for i in node.program if i.op in ("load", "gather")):
        if view.tensor in thin:
            if instr.op == "gather":
                return 0 in axes
            walked = [d for d, n in enumerate(shape) if n > 1 and view.strides[d]]
            return bool(walked) and max(walked, key=lambda d: view.strides[d]) in axes
    first = next((d for d, n in enumerate(shape) if n > 1), None)
    return first is not None and first in axes


def cut_of(graph: Graph, node: Node, thin: frozenset[int], count: int) -> Cut | None:
    """How a node that reads or makes thin values is cut; None if it cannot be."""
    for cut in cuts(node):
        if cut.extent % count or cut.extent == 0:
            continue
        if cut.sums and thin.intersection(node.outputs):
            continue
        if not cut.sums and not all(_divides(graph, t, thin, count) for t in node.outputs):
            continue
        touched = [k for k, view in enumerate(node.inputs) if view.tensor in thin]
        if all(cut.inside(graph, node, count, k) for k in touched):
            return cut
    return None


def _divides(graph: Graph, tensor: int, thin: frozenset[int], count: int) -> bool:
    """Whether an output can be made in pieces: thin, or as a pack of them."""
    whole = graph.tensors[tensor]
    if whole.size % count or tensor in graph.packs:
        return False
    if tensor in thin:
        return True
    packed = tensor in graph.kept or any(tensor in members for members in graph.packs.values())
    aligned = (whole.size // count) % PACK_ALIGN == 0 and (whole.nbytes // count) % ALIGN_BYTES == 0
    return aligned and not packed


def can_be_thin(graph: Graph, thin: Collection[int], count: int, new: int | None = None) -> bool:
    """Whether all nodes that read or make these values can be cut into pieces together. With `new`, the others are
    known to be possible, and the graph needs no nodes that do not touch the new one."""
    chosen = frozenset(thin)
    asked = chosen if new is None else {new}
    if asked & graph.kept or any(asked.intersection((pack, *members)) for pack, members in graph.packs.items()):
        return False
    touched = [n for n in graph.nodes if chosen.intersection((*n.outputs, *(view.tensor for view in n.inputs)))]
    if any(node.origin.phase == "update" for node in touched):
        return False
    parts = staged(replace(graph, nodes=tuple(touched)), chosen, count) if touched else graph
    return all(
        cut_of(parts, node, chosen, count) is not None
        for node in parts.nodes
        if chosen.intersection((*node.outputs, *(view.tensor for view in node.inputs)))
    )


@dataclass
class _Loop:
    """Nodes whose pieces are computed together: `roots` make what is read as a whole, `members` are these and the nodes
    that make the thin values that they read. Numbers are positions in the graph."""

    roots: list[int] = field(default_factory=list)
    members: set[int] = field(default_factory=set)
    made: set[int] = field(default_factory=set)
    phase: str = ""


@dataclass
class _Pieces:
    """The nodes so far, while the graph is walked. `made` is how many of the pieces are made."""

    graph: Graph
    thin: frozenset[int]
    count: int
    made: int
    nodes: list[Node] = field(default_factory=list)
    packs: dict[int, tuple[int, ...]] = field(default_factory=dict)
    loop: _Loop = field(default_factory=_Loop)

    def __post_init__(self) -> None:
        self.tensors: dict[int, Tensor] = dict(self.graph.tensors)
        self._next = max(self.tensors, default=0) + 1
        self._at = {id(node): i for i, node in enumerate(self.graph.nodes)}
        self._maker = {t: i for i, node in enumerate(self.graph.nodes) for t in node.outputs if t in self.thin}
        self._cuts: dict[int, Cut] = {}
        #: The nodes of pieces.
        self.looped: list[Node] = []
        self._packed = self._replaced()

    def _replaced(self) -> set[int]:
        """The nodes that make what a loop reads and replaces by a tensor of the same size."""
        makers = {t: i for i, node in enumerate(self.graph.nodes) for t in node.outputs}
        found = set[int]()
        for at, node in enumerate(self.graph.nodes):
            touched = self.thin.intersection((*node.outputs, *(view.tensor for view in node.inputs)))
            if not touched or self.thin.issuperset(node.outputs) or self._cut(at).sums:
                continue
            sizes = {self.graph.tensors[t].nbytes for t in node.outputs if t not in self.thin}
            for k, view in enumerate(node.inputs):
                maker = makers.get(view.tensor)
                if maker is None or view.tensor in self.thin or self.graph.tensors[view.tensor].nbytes not in sizes:
                    continue
                made = self.graph.nodes[maker]
                cut = cut_of(self.graph, made, self.thin, self.count)
                able = made.origin.phase != "update" and cut is not None and not cut.sums
                if able and self._cut(at).inside(self.graph, node, self.count, k):
                    found.add(maker)
        return found

    def add(self, node: Node) -> None:
        """Adds the next node of the graph: to a loop if it reads or makes thin values."""
        reads = {view.tensor for view in node.inputs}
        here = self._at[id(node)] in self._packed
        if not here and not self.thin.intersection(reads | set(node.outputs)):
            if self.loop.made & self._with_members(reads):
                self.close()
            self.nodes.append(node)
        elif not self.thin.issuperset(node.outputs):
            self._join(self._at[id(node)], node)

    def _join(self, at: int, node: Node) -> None:
        members = self._members(at)
        reads = {v.tensor for m in members for v in self.graph.nodes[m].inputs}
        loop = self.loop
        if loop.roots and (
            loop.made & self._with_members(reads) or not loop.members & members or loop.phase != node.origin.phase
        ):
            self.close()
        self.loop.roots.append(at)
        self.loop.members |= members
        self.loop.made.update(set(node.outputs) - self.thin)
        self.loop.phase = node.origin.phase

    def _members(self, at: int) -> set[int]:
        """A node and those that make the thin values that it reads, directly or not."""
        found, stack = set[int](), [at]
        while stack:
            here = stack.pop()
            if here not in found:
                found.add(here)
                stack += [self._maker[v.tensor] for v in self.graph.nodes[here].inputs if v.tensor in self._maker]
        return found

    def _with_members(self, tensors: set[int]) -> set[int]:
        return tensors | {m for t in tensors for m in self.graph.packs.get(t, ())}

    def close(self) -> None:
        """Adds the nodes of the open loop, piece by piece."""
        loop, self.loop = self.loop, _Loop()
        sums: dict[int, int] = {}  # the output of a sum -> the sum of the pieces so far
        parts: dict[int, list[int]] = {}
        before = len(self.nodes)
        for i in range(self.made) if loop.roots else ():
            thin: dict[int, int] = {}
            for at in sorted(loop.members):
                node = self.graph.nodes[at]
                if at in loop.roots and self._cut(at).sums:
                    self._add_terms(at, i, thin, sums)
                    continue
                if at not in loop.roots:
                    node = replace(node, origin=replace(node.origin, phase=loop.phase))
                new = tuple(self._like(t, self.graph.tensors[t].size // self.count) for t in node.outputs)
                there = {**thin, **self._parts_there(at, i)}
                piece = replace(sliced(self.graph, node, self._cut(at), self.count, i, there), outputs=new)
                thin.update((t, n) for t, n in zip(node.outputs, new, strict=True) if t in self.thin)
                for tensor, number in zip(node.outputs, new, strict=True) if at in loop.roots else ():
                    if tensor not in self.thin:
                        parts.setdefault(tensor, []).append(number)
                if at not in loop.roots and "program" in node.attrs:
                    piece = trim(piece, {k for k, t in enumerate(node.outputs) if t in self.thin})
                self.nodes.append(piece)
        self.looped += self.nodes[before:]
        for tensor, pieces in parts.items():
            whole = self.tensors[tensor]
            self.tensors[tensor] = replace(whole, shape=(whole.size,))
            self.packs[tensor] = tuple(pieces)

    def _parts_there(self, at: int, i: int) -> dict[int, int]:
        """The i-th pieces of the packs of which a node reads no other piece."""
        node, cut = self.graph.nodes[at], self._cut(at)
        found: dict[int, int] = {}
        for tensor in {view.tensor for view in node.inputs} & self.packs.keys():
            own = [k for k, view in enumerate(node.inputs) if view.tensor == tensor]
            if all(cut.inside(self.graph, node, self.count, k) for k in own):
                found[tensor] = self.packs[tensor][i]
        return found

    def _cut(self, at: int) -> Cut:
        if at not in self._cuts:
            cut = cut_of(self.graph, self.graph.nodes[at], self.thin, self.count)
            assert cut is not None, f"node {at} cannot be cut into pieces"
            self._cuts[at] = cut
        return self._cuts[at]

    def _like(self, tensor: int, size: int, dtype: str = "") -> int:
        """A new tensor of the role and type of another one."""
        number = self._next
        self._next += 1
        old = self.graph.tensors[tensor]
        parts = old.size // size if size else 1
        shape = (old.shape[0] // parts, *old.shape[1:]) if old.shape and old.shape[0] % parts == 0 else (size,)
        self.tensors[number] = replace(old, id=number, shape=shape, dtype=dtype or old.dtype)
        return number

    def _add_terms(self, at: int, i: int, thin: Mapping[int, int], sums: dict[int, int]) -> None:
        """Adds the nodes of a piece of a sum: its term, added to those before it."""
        source, last = self.graph.nodes[at], i == self.made - 1
        node = sliced(self.graph, source, self._cut(at), self.count, i, {**thin, **self._parts_there(at, i)})
        before = [sums[t] for t in source.outputs] if i else []
        if node.op == "conv_weight":
            self._add_weight(node, before, last)
        else:
            outputs = source.outputs if last else tuple(self._partial(t, node) for t in source.outputs)
            make = _product_term if node.op == "matmul" else _loop_term
            self.nodes.append(make(node, outputs, before, self.tensors, last))
        sums.update(zip(source.outputs, self.nodes[-1].outputs, strict=True))

    def _partial(self, tensor: int, node: Node) -> int:
        dtype = self.tensors[tensor].dtype
        return self._like(tensor, self.tensors[tensor].size, F32 if DTYPES[dtype].is_float else dtype)

    def _add_weight(self, node: Node, before: list[int], last: bool) -> None:
        (out,) = node.outputs
        if not before:
            first = self._partial(out, node)
            self.nodes.append(replace(node, outputs=(first,)))
            return
        term = self._partial(out, node)
        self.nodes.append(replace(node, outputs=(term,)))
        total = out if last else self._partial(out, node)
        shape = tuple(node.attrs["shape"])
        views = tuple(View(t, shape, contiguous_strides(shape)) for t in (*before, term))
        builder = Builder()
        both = builder.op("add", F32, builder.load(0, F32), builder.load(1, F32))
        attrs = {"shape": shape, "axes": (), "program": builder.program, "stores": (Store(both),)}
        self.nodes.append(Node("map", views, (total,), attrs, node.origin))


def _loop_term(
    node: Node, outputs: tuple[int, ...], before: list[int], tensors: Mapping[int, Tensor], last: bool
) -> Node:
    """A reduction that adds its sums to those before."""
    shape, axes = tuple(node.attrs["shape"]), tuple(node.attrs["axes"])
    builder, inputs, stores = Builder(node.program), list(node.inputs), list(node.stores)
    for k, tensor in enumerate(before):
        dtype = node.program[stores[k].position].dtype
        earlier = builder.load(len(inputs), dtype)
        inputs.append(View(tensor, shape, store_strides(shape, axes, False)))
        stores[k] = replace(stores[k], position=builder.op("add", dtype, earlier, stores[k].position))
    attrs = {**node.attrs, "program": builder.program, "stores": tuple(stores)}
    return replace(node, inputs=tuple(inputs), outputs=outputs, attrs=attrs)


def _product_term(
    node: Node, outputs: tuple[int, ...], before: list[int], tensors: Mapping[int, Tensor], last: bool
) -> Node:
    """A product that adds to the sum before. The last one has the epilogue."""
    shape, builder = tuple(node.attrs["shape"]), Builder()
    inputs = list(node.inputs if last else node.inputs[:2])
    total = builder.op("acc", F32)
    if before:
        earlier = builder.load(len(inputs), F32)
        inputs.append(View(before[0], shape, contiguous_strides(shape)))
        total = builder.op("add", F32, earlier, total)
    if not last:
        attrs = {**node.attrs, "program": builder.program, "stores": (Store(total),)}
        return replace(node, inputs=tuple(inputs), outputs=outputs[:1], attrs=attrs)
    where = builder.append(node.program, {k: total for k, instr in enumerate(node.program) if instr.op == "acc"})
    stores = tuple(replace(store, position=where[store.position]) for store in node.stores)
    return replace(
        node, inputs=tuple(inputs), outputs=outputs, attrs={**node.attrs, "program": builder.program, "stores": stores}
    )

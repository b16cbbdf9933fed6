"""Reads packed weights: each op that needs a weight unpacks it, just before, into memory that is free again after it.

packing.py has the layout. A weight is unpacked for every op again, also in the backward pass, so that the plan holds
one unpacked weight at a time and never all of them. An op that only gathers from a weight (an embedding) reads the
packed words itself. A product with a very large weight (the head of a language model) is cut into parts (split.py).

           slot w                        slots w.words, w.scales
             │                                     │
    x ──► matmul ──► y             x ──► matmul ◄── unpack
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from handheld.errors import GraphError
from handheld.graph.dtypes import F32, I32
from handheld.graph.graph import Graph, Node, Origin, Tensor, View, contiguous_strides
from handheld.graph.ops import OPS
from handheld.graph.program import Builder, Instr, Program, Store
from handheld.packing import GROUP, Packing, scales_of, words_of
from handheld.passes.split import Rows, by_columns, by_terms, row_dimension

#: Bytes. A product with a larger weight is cut into parts with about as many bytes of it each.
LARGE = 32 << 20
_SHIFT = GROUP.bit_length() - 1


def unpack_weights(graph: Graph, packings: Mapping[str, Packing]) -> Graph:
    """Returns the graph with the slots of packed weights replaced by their words and scales."""
    packings = {slot: packing for slot, packing in packings.items() if slot in graph.slots}
    if not packings:
        return graph
    written = [write.slot for write in graph.writes if write.slot in packings]
    if written:
        raise GraphError(f"graph {graph.name!r} writes {written[0]}, so it cannot be packed")
    weights = _Weights(graph, packings)
    nodes = [new for node in graph.nodes for new in weights.reading(node)]
    slots = {name: tensor for name, tensor in graph.slots.items() if name not in packings} | weights.slots
    return replace(graph, tensors=weights.tensors, slots=slots).with_nodes(nodes)


class _Weights:
    """The packed weights of a graph while its nodes are rewritten."""

    def __init__(self, graph: Graph, packings: Mapping[str, Packing]) -> None:
        self.tensors = dict(graph.tensors)
        self._next = max(self.tensors) + 1
        self.slots: dict[str, int] = {}
        #: Tensor of the weight -> how it is packed, its words and its scales.
        self.packed: dict[int, tuple[Packing, int, int]] = {}
        for slot, packing in packings.items():
            role = graph.tensors[graph.slots[slot]].role
            words = self._new((packing.words,), I32, role, words_of(slot))
            scales = self._new((packing.scales,), F32, role, scales_of(slot))
            self.slots |= {words_of(slot): words, scales_of(slot): scales}
            self.packed[graph.slots[slot]] = packing, words, scales

    def _new(self, shape: tuple[int, ...], dtype: str, role: str, name: str) -> int:
        number = self._next
        self._next += 1
        self.tensors[number] = Tensor(number, shape, dtype, role, name)
        return number

    def _whole(self, tensor: int) -> View:
        shape = self.tensors[tensor].shape
        return View(tensor, shape, contiguous_strides(shape))

    def reading(self, node: Node) -> list[Node]:
        """Returns the node without packed weights among its inputs, after the nodes that unpack them."""
        for weight in {view.tensor for view in node.inputs if view.tensor in self.packed}:
            parts = self._parts(weight)
            width = self.packed[weight][0].width
            rows = row_dimension(node, weight, width, self.packed[weight][0].shape[0]) if len(parts) > 1 else None
            if rows is not None:
                return self._cut(node, weight, parts, rows)
        before: list[Node] = []
        for weight in dict.fromkeys(view.tensor for view in node.inputs if view.tensor in self.packed):
            if _only_gathers(node, weight):
                node = self._gathering(node, weight)
            else:
                made = self._unpacking(weight, node.origin)
                before.append(made)
                views = (replace(v, tensor=made.outputs[0]) if v.tensor == weight else v for v in node.inputs)
                node = replace(node, inputs=tuple(views))
        return [*before, node]

    def _parts(self, weight: int) -> list[Rows]:
        """Returns the parts in which a weight is unpacked: whole blocks, and about LARGE bytes each."""
        packing = self.packed[weight][0]
        rows = packing.shape[0]
        step = math.lcm(packing.block, packing.width) // packing.width  # the least number of rows that are whole blocks
        if packing.size % packing.block or 4 * packing.size <= LARGE:
            return [Rows(0, rows)]
        count = max(LARGE // (4 * packing.width) // step, 1) * step
        return [Rows(first, min(first + count, rows)) for first in range(0, rows, count)]

    def _cut(self, node: Node, weight: int, parts: list[Rows], dimension: int) -> list[Node]:
        """Returns a product as several products with parts of the weight."""

        def like(tensor: int, shape: tuple[int, ...]) -> int:
            old = self.tensors[tensor]
            return self._new(shape, old.dtype, old.role, old.name)

        def unpack(rows: Rows) -> Node:
            return self._unpacking(weight, node.origin, rows)

        if dimension == -1:
            return by_columns(node, parts, self.tensors, like, unpack)
        return by_terms(node, parts, like, unpack)

    def _unpacking(self, weight: int, origin: Origin, rows: Rows | None = None) -> Node:
        """Returns a map that writes the weight, or some of its rows, as floats. Whole blocks are read as views, else by
        position."""
        packing, words, scales = self.packed[weight]
        rows = rows or Rows(0, packing.shape[0])
        sizes = (rows.last - rows.first, *packing.shape[1:])
        out = self._new(sizes, F32, "workspace", self.tensors[weight].name)
        origin = replace(origin, torch_op="unpack")
        builder = Builder()
        if packing.size % packing.block:
            value = _at(builder, packing, builder.op("index", I32), 0, 1)
            inputs: tuple[View, ...] = (self._whole(words), self._whole(scales))
            shape: tuple[int, ...] = (packing.size,)
        else:
            first = rows.first * packing.width // packing.block
            shape = (math.prod(sizes) // packing.block, packing.groups_per_block, GROUP)
            inputs = (
                View(words, shape, (GROUP, 0, 1), first * GROUP),
                View(scales, shape, (packing.groups_per_block, 1, 0), first * packing.groups_per_block),
            )
            group = builder.op("iota", I32, params=(1,))
            value = _value(builder, packing, builder.load(0, I32), group, builder.load(1, F32))
        attrs = {"shape": shape, "axes": (), "program": builder.program, "stores": (Store(value),)}
        return Node("map", inputs, (out,), attrs, origin)

    def _gathering(self, node: Node, weight: int) -> Node:
        """Returns the node with gathers from the words and scales instead of gathers from the weight."""
        packing, words, scales = self.packed[weight]
        inputs = [*node.inputs, self._whole(words), self._whole(scales)]
        of_words, of_scales = len(inputs) - 2, len(inputs) - 1
        old = {k for k, view in enumerate(node.inputs) if view.tensor == weight}
        builder, where = Builder(), dict[int, int]()
        for i, instr in enumerate(node.program):
            if instr.op == "gather" and instr.params[0] in old:
                where[i] = _at(builder, packing, where[instr.args[0]], of_words, of_scales)
            else:
                where[i] = builder.add(replace(instr, args=tuple(where[a] for a in instr.args)))
        return _without(node, builder.program, where, inputs, old)


def _only_gathers(node: Node, weight: int) -> bool:
    """Whether the node reads the weight only at computed positions."""
    own = OPS[node.op].inputs or 0
    mine = {k for k, view in enumerate(node.inputs) if view.tensor == weight}
    reads = [i.op for i in node.attrs.get("program", ()) if i.op in ("load", "gather") and i.params[0] in mine]
    return bool(reads) and all(op == "gather" for op in reads) and not any(k < own for k in mine)


def _at(builder: Builder, packing: Packing, position: int, words: int, scales: int) -> int:
    """Adds the value at a position of the weight, from operands that hold its words and its scales.

    A position outside the weight is moved to its nearest end, as gather does.
    """

    def op(name: str, a: int, number: int) -> int:
        return builder.op(name, I32, a, builder.const(number, I32))

    position = op("min", op("max", position, 0), packing.size - 1)
    group = op("shr", position, _SHIFT)
    block = op("shr", group, packing.groups_per_block.bit_length() - 1)
    word = builder.op("add", I32, op("shl", block, _SHIFT), op("and", position, GROUP - 1))
    code = builder.add(Instr("gather", I32, (word,), (words,)))
    scale = builder.add(Instr("gather", F32, (group,), (scales,)))
    return _value(builder, packing, code, op("and", group, packing.groups_per_block - 1), scale)


def _value(builder: Builder, packing: Packing, word: int, group: int, scale: int) -> int:
    """Adds the value of a group's code in a word."""

    def op(name: str, a: int, number: int) -> int:
        return builder.op(name, I32, a, builder.const(number, I32))

    code = builder.op("shr", I32, word, op("mul", group, packing.bits))
    signed = op("sub", op("and", code, 2 * packing.zero - 1), packing.zero)
    return builder.op("mul", F32, builder.op("cast", F32, signed), scale)


def _without(node: Node, program: Program, where: dict[int, int], inputs: list[View], gone: set[int]) -> Node:
    """Returns the node with a new program, without the inputs `gone`."""
    kept = [k for k in range(len(inputs)) if k not in gone]
    number = {k: n for n, k in enumerate(kept)}
    program = tuple(
        replace(i, params=(number[i.params[0]], *i.params[1:])) if i.op in ("load", "gather") else i for i in program
    )
    stores = tuple(replace(store, position=where[store.position]) for store in node.stores)
    attrs = {**node.attrs, "program": program, "stores": stores}
    return replace(node, inputs=tuple(inputs[k] for k in kept), attrs=attrs)

"""Cuts one node into slices along one of its dimensions: the samples of a batch, or rows.

Slice i of `count` computes the i-th part of each output, or a term of it if the node sums over the dimension:

    part    conv, conv_input, pooling, maps, products by rows: out[i] from the i-th part of what it reads
    sum     conv_weight, products over rows, sums over the batch: out = ((s0 + s1) + s2) + ... in the order of slices

An operand is *thin* if only its slices exist. It must be read so that slice i of the node reads slice i of the operand
alone. All other operands are read whole, through a view that begins at the slice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from handheld.graph.graph import Graph, Node, View
from handheld.graph.program import REDUCTIONS, Builder, Guard, Instr, Program, Store

#: Ops that compute each sample on its own, and those of their operands whose dimension 0 is the batch.
_BY_SAMPLE: Mapping[str, tuple[int, ...]] = {
    "conv": (0,),
    "conv_input": (0,),
    "conv_weight": (0, 1),
    "max_pool": (0,),
    "max_pool_grad": (0, 1),
    "avg_pool": (0,),
    "avg_pool_grad": (0,),
}
_OWN = 2


@dataclass(frozen=True)
class Cut:
    """A way to cut a node: the extent of the dimension, where it is in each input (None: read whole by each slice),
    whether outputs are sums over it, and where it is in the node's `shape` (None if the shape does not have it)."""

    extent: int
    dims: tuple[int | None, ...]
    sums: bool
    dim: int | None

    def inside(self, graph: Graph, node: Node, count: int, operand: int) -> bool:
        """Whether slice i of the node reads only slice i of this operand, for all slices."""
        view = node.inputs[operand]
        elements = graph.tensors[view.tensor].size // count
        reads = [i for i in node.attrs.get("program", ()) if i.op in ("load", "gather") and i.params[0] == operand]
        if any(i.op == "gather" for i in reads):
            return self.dim is not None and all(
                i.op == "gather" and gathers_inside(graph, node, i, self.dim, self.extent // count, elements)
                for i in reads
            )
        dim = self.dims[operand]
        if dim is None or view.strides[dim] * (self.extent // count) != elements:
            return False
        guards = [i.params[1] for i in reads] or [()]
        return all(_reach(view, dim, self.extent // count, guard, elements) for guard in guards)


def _reach(view: View, dim: int, extent: int, guards: tuple[Guard, ...], elements: int) -> bool:
    """Whether the first slice of a view stays inside the first elements of its tensor."""
    low, high = [0] * len(view.shape), list(view.shape)
    high[dim] = extent
    for where, start, stop in guards:
        low[where], high[where] = max(low[where], start), min(high[where], stop)
    if any(a >= b for a, b in zip(low, high, strict=True)):
        return True
    ends = [sorted((a * s, (b - 1) * s)) for a, b, s in zip(low, high, view.strides, strict=True)]
    first, last = (view.offset + sum(end[k] for end in ends) for k in (0, 1))
    return first >= 0 and last < elements


def cuts(node: Node) -> Iterator[Cut]:
    """The ways to cut a node."""
    if node.op in ("map", "reduce"):
        yield from _cuts_of_loop(node)
    elif node.op == "matmul":
        yield from _cuts_of_product(node)
    elif node.op in _BY_SAMPLE:
        own, rest = _BY_SAMPLE[node.op], node.inputs
        if "program" not in node.attrs or _position_free(node, 0):
            dims = tuple(0 if k in own or k >= _OWN else None for k in range(len(rest)))
            sums = node.op == "conv_weight"
            yield Cut(rest[0].shape[0], dims, sums, None if sums else 0)


def _leads(sizes: tuple[int, ...], dim: int) -> bool:
    return math.prod(sizes[:dim]) == 1


def _position_free(node: Node, dim: int) -> bool:
    """Whether the program of a node can be moved along a dimension: no guard there, and no position in the whole shape
    that is not simply larger by a constant."""
    leads = _leads(tuple(node.attrs["shape"]), dim)
    for instr in node.program:
        if instr.op == "load" and any(guard[0] == dim for guard in instr.params[1]):
            return False
        if instr.op == "index" and not leads:
            return False
    return True


def _cuts_of_loop(node: Node) -> Iterator[Cut]:
    shape, axes = tuple(node.attrs["shape"]), tuple(node.attrs["axes"])
    full = any(store.full for store in node.stores)
    rows = not all(store.full for store in node.stores)
    loaded, gathered = _operands(node, "load"), _operands(node, "gather")
    if loaded & gathered:
        return
    for dim, extent in enumerate(shape):
        if extent == 1 or not _position_free(node, dim):
            continue
        dims = (dim,) * len(node.inputs)
        if dim in axes:
            if not full and all(_is_sum(node, store) for store in node.stores):
                yield Cut(extent, dims, True, dim)
            continue
        outer = tuple(1 if d in axes else n for d, n in enumerate(shape))
        if (not full or _leads(shape, dim)) and (not rows or _leads(outer, dim)):
            yield Cut(extent, dims, False, dim)


def _operands(node: Node, op: str) -> set[int]:
    return {instr.params[0] for instr in node.attrs.get("program", ()) if instr.op == op}


def _is_sum(node: Node, store: Store) -> bool:
    """Whether a store is a sum of what depends on no other reduction."""
    return node.program[store.position].op == "sum" and depths(node.program)[store.position] == 1


def depths(program: Program) -> list[int]:
    """Per instruction: how many reductions follow each other up to it."""
    found: list[int] = []
    for instr in program:
        before = max((found[a] for a in instr.args), default=0)
        found.append(before + (instr.op in REDUCTIONS))
    return found


def _cuts_of_product(node: Node) -> Iterator[Cut]:
    shape, rest = tuple(node.attrs["shape"]), len(node.inputs) - _OWN
    rank = len(shape)
    for dim in range(rank - 1):
        if shape[dim] > 1 and _leads(shape, dim) and _position_free(node, dim):
            yield Cut(shape[dim], (dim, dim if dim < rank - 2 else None, *(dim,) * rest), False, dim)
    if node.inputs[0].shape[-1] > 1:
        yield Cut(node.inputs[0].shape[-1], (rank - 1, rank - 2, *(None,) * rest), True, None)


def gathers_inside(graph: Graph, node: Node, gather: Instr, dim: int, extent: int, elements: int) -> bool:
    """Whether the index of a gather is row * length + a number below `length`, where `row` is the coordinate in `dim`
    and a slice has `elements` elements."""
    found = _spread(graph, node, gather.args[0], dim)
    return found is not None and found[0] * extent == elements and 0 <= found[1] <= found[2] < found[0]


def _spread(graph: Graph, node: Node, at: int, dim: int) -> tuple[int, int, int] | None:
    """An integer as (factor of the coordinate in `dim`, lowest rest, highest rest); None if that is not known."""
    instr = node.program[at]
    if instr.op == "const":
        return 0, int(instr.params[0]), int(instr.params[0])
    if instr.op == "iota":
        own = instr.params[0]
        return (1, 0, 0) if own == dim else (0, 0, node.attrs["shape"][own] - 1)
    if instr.op == "load":
        known = _range_of(graph, node, instr)
        if known is None or known[2] is not None:
            return None
        return 0, known[0], known[1]
    if instr.op == "where":
        return _chosen(graph, node, instr, dim)
    if instr.op not in ("add", "mul"):
        return None
    a, b = (_spread(graph, node, arg, dim) for arg in instr.args)
    if a is None or b is None:
        return None
    if instr.op == "add":
        return a[0] + b[0], a[1] + b[1], a[2] + b[2]
    for one, other in ((a, b), (b, a)):
        if one[0] == 0 and one[1] == one[2] >= 0:
            return other[0] * one[1], other[1] * one[1], other[2] * one[1]
    return None


def _chosen(graph: Graph, node: Node, where: Instr, dim: int) -> tuple[int, int, int] | None:
    """An input that is used as an index, with another number where it has the value to ignore."""
    program = node.program
    test, value = program[where.args[0]], program[where.args[1]]
    other = _spread(graph, node, where.args[2], dim)
    known = _range_of(graph, node, value) if value.op == "load" else None
    if known is None or other is None or other[0]:
        return None
    ignored = [program[a].params[0] for a in test.args if program[a].op == "const"]
    if test.op != "ne" or where.args[1] not in test.args or known[2] not in (None, *ignored):
        return None
    return 0, min(known[0], other[1]), max(known[1], other[2])


def _range_of(graph: Graph, node: Node, load: Instr) -> tuple[int, int, int | None] | None:
    """The lowest and the highest value of an input that is used as an index, and the one to ignore."""
    tensor = node.inputs[load.params[0]].tensor
    name = next((given.name for given in graph.inputs if given.tensor == tensor), None)
    known = graph.ranges.get(name) if name is not None else None
    return None if known is None or load.params[1] else (known.low, known.high - 1, known.ignore)


def sliced(graph: Graph, node: Node, cut: Cut, count: int, i: int, thin: Mapping[int, int]) -> Node:
    """Slice i of a node, with the outputs of the whole node. `thin` has the i-th slice of each thin operand."""
    extent = cut.extent // count
    gathered = _operands(node, "gather")
    inputs = tuple(
        _gathered(view, thin, graph.tensors[view.tensor].size // count)
        if k in gathered
        else _operand(view, dim, extent, i, thin)
        for k, (view, dim) in enumerate(zip(node.inputs, cut.dims, strict=True))
    )
    attrs: dict[str, Any] = dict(node.attrs)
    if cut.dim is not None:
        shape = tuple(node.attrs["shape"])
        attrs["shape"] = (*shape[: cut.dim], extent, *shape[cut.dim + 1 :])
        if "program" in attrs:
            whole = {k for k, view in enumerate(node.inputs) if view.tensor not in thin}
            attrs["program"], attrs["stores"] = _moved(node, cut.dim, i * extent, whole)
    return replace(node, inputs=inputs, attrs=attrs)


def _gathered(view: View, thin: Mapping[int, int], elements: int) -> View:
    return View(thin[view.tensor], (elements,), (1,)) if view.tensor in thin else view


def _operand(view: View, dim: int | None, extent: int, i: int, thin: Mapping[int, int]) -> View:
    if dim is None:
        return view
    shape = (*view.shape[:dim], extent, *view.shape[dim + 1 :])
    if view.tensor in thin:
        return replace(view, tensor=thin[view.tensor], shape=shape)
    return replace(view, shape=shape, offset=view.offset + i * extent * view.strides[dim])


def _moved(node: Node, dim: int, start: int, whole: set[int]) -> tuple[Program, tuple[Store, ...]]:
    """The program with coordinates in `dim` that begin at `start`, except in the indices of gathers from slices."""
    builder, program = Builder(), node.program
    places: dict[tuple[int, bool], int] = {}
    inner = math.prod(node.attrs["shape"][dim + 1 :])

    def visit(at: int, here: bool) -> int:
        if (at, here) not in places:
            instr = program[at]
            inside = here or (instr.op == "gather" and instr.params[0] not in whole)
            new = builder.add(replace(instr, args=tuple(visit(a, inside) for a in instr.args)))
            moves = instr.op == "index" or (instr.op == "iota" and instr.params[0] == dim)
            if moves and start and not here:
                step = inner if instr.op == "index" else 1
                new = builder.op("add", instr.dtype, new, builder.const(start * step, instr.dtype))
            places[at, here] = new
        return places[at, here]

    stores = tuple(replace(store, position=visit(store.position, False)) for store in node.stores)
    return builder.program, stores

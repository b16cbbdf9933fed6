"""Cuts a product with a large packed weight into products with some rows of it, so that few rows are unpacked at once.

The rows of the weight w[R, C] are the columns of the result (x w^T, the forward pass of a linear layer), or the terms
of its sums (x w, the backward pass).

    columns     out[:, r0:r1] = x w[r0:r1]^T           each part is written into its region of the result
    terms       out += x[:, r0:r1] w[r0:r1]            each part adds the sum of the parts before it
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from handheld.graph.dtypes import F32
from handheld.graph.graph import Node, Tensor, View, contiguous_strides
from handheld.graph.program import Builder, Program, Store


class Rows(NamedTuple):
    """The rows [first, last) of a weight."""

    first: int
    last: int


#: Adds a tensor like another one, of another shape, and returns its number.
NewLike = Callable[[int, tuple[int, ...]], int]
#: Returns a node that unpacks some rows of the weight.
Unpack = Callable[[Rows], Node]

_OWN = 2


def row_dimension(node: Node, weight: int, width: int, rows: int) -> int | None:
    """Returns which dimension of a product's second operand walks over all rows of the weight: -1 (columns) or -2
    (terms). None if the product cannot be cut."""
    if node.op != "matmul" or [v.tensor == weight for v in node.inputs].count(True) != 1:
        return None
    view = node.inputs[1]
    lead = zip(view.shape[:-2], view.strides[:-2], strict=True)
    if view.tensor != weight or view.offset or any(n != 1 and s for n, s in lead):
        return None
    walks = {dim: (view.shape[dim], view.strides[dim]) for dim in (-1, -2)}
    dim = next((d for d in walks if walks[d] == (rows, width) and walks[-3 - d] == (width, 1)), None)
    if dim == -1 and not _sliceable(node):
        return None
    return dim


def _sliceable(node: Node) -> bool:
    """Whether the epilogue computes the same in a part of the columns: it names no position."""
    return not any(
        i.op in ("iota", "index", "gather", "random") or (i.op == "load" and i.params[1]) for i in node.program
    )


def by_columns(
    node: Node, parts: Sequence[Rows], tensors: dict[int, Tensor], new: NewLike, unpack: Unpack
) -> list[Node]:
    """Returns the nodes of a product whose columns are rows of the weight."""
    shape = tuple(node.attrs["shape"])
    strides = contiguous_strides(shape)
    nodes, so_far = list[Node](), dict[int, int]()
    for out in node.outputs:
        so_far[out] = new(out, tensors[out].shape)
        nodes.append(_zeros(node, shape, so_far[out], tensors[out].dtype))
    for number, rows in enumerate(parts):
        size = (*shape[:-1], rows.last - rows.first)
        made = unpack(rows)
        outputs = tuple(new(out, size) for out in node.outputs)
        weight = replace(node.inputs[1], tensor=made.outputs[0], shape=(*node.inputs[1].shape[:-1], size[-1]))
        rest = (replace(v, shape=size, offset=v.offset + rows.first * v.strides[-1]) for v in node.inputs[_OWN:])
        attrs = {**node.attrs, "shape": size}
        nodes += [made, replace(node, inputs=(node.inputs[0], weight, *rest), outputs=outputs, attrs=attrs)]
        last = number == len(parts) - 1
        for out, part in zip(node.outputs, outputs, strict=True):
            whole = out if last else new(out, tensors[out].shape)
            nodes.append(
                _assign(
                    node, View(so_far[out], shape, strides), View(part, size, contiguous_strides(size)), rows, whole
                )
            )
            so_far[out] = whole
    return nodes


def by_terms(node: Node, parts: Sequence[Rows], new: NewLike, unpack: Unpack) -> list[Node]:
    """Returns the nodes of a product whose terms are rows of the weight. The last one has the epilogue."""
    shape = tuple(node.attrs["shape"])
    nodes, before = list[Node](), list[View]()
    for number, rows in enumerate(parts):
        x, w = node.inputs[:_OWN]
        count = rows.last - rows.first
        made = unpack(rows)
        left = replace(x, shape=(*x.shape[:-1], count), offset=x.offset + rows.first * x.strides[-1])
        right = replace(w, tensor=made.outputs[0], shape=(*w.shape[:-2], count, w.shape[-1]))
        last = number == len(parts) - 1
        rest = node.inputs[_OWN:] if last else ()
        program, where = _after(node.program if last else Builder().program, _OWN + len(rest) if before else None)
        stores = tuple(Store(where[s.position]) for s in node.stores) if last else (Store(len(program) - 1),)
        outputs = node.outputs if last else (new(node.outputs[0], shape),)
        attrs = {**node.attrs, "program": program, "stores": stores}
        nodes += [made, replace(node, inputs=(left, right, *rest, *before), outputs=outputs, attrs=attrs)]
        before = [View(outputs[0], shape, contiguous_strides(shape))]
    return nodes


def _after(program: Program, before: int | None) -> tuple[Program, dict[int, int]]:
    """Returns the program with the operand `before` added to `acc`, and where each of its instructions is now."""
    builder = Builder()
    total = builder.op("acc", F32)
    if before is not None:
        total = builder.op("add", F32, builder.load(before, F32), total)
    where = builder.append(program, {i: total for i, instr in enumerate(program) if instr.op == "acc"})
    return builder.program, where


def _zeros(node: Node, shape: tuple[int, ...], out: int, dtype: str) -> Node:
    builder = Builder()
    attrs = {"shape": shape, "axes": (), "program": (), "stores": (Store(builder.const(0, dtype)),)}
    return Node("map", (), (out,), {**attrs, "program": builder.program}, node.origin)


def _assign(node: Node, base: View, value: View, rows: Rows, out: int) -> Node:
    attrs = {"region_shape": value.shape, "region_strides": base.strides, "region_offset": rows.first}
    return Node("assign", (base, value), (out,), attrs, node.origin)

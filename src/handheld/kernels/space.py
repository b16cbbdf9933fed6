"""Iteration spaces: merging dimensions that every operand walks in one stride.

A kernel over [32, 16, 112, 112] whose operands are all dense is a kernel over one dimension; a
batch norm over the same shape with axes (0, 2, 3) is one over rows of 16 and inner [32, 12544].
"""

from __future__ import annotations

from dataclasses import dataclass

from handheld.graph.graph import Graph, Node, contiguous_strides


@dataclass(frozen=True, slots=True)
class Space:
    """`sizes` in order, `inner[d]` tells whether dimension d is reduced; `keep` maps a dimension of
    the node's shape that the program names (iota, guard) to its place here."""

    sizes: tuple[int, ...]
    inner: tuple[bool, ...]
    operands: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    #: how the row-major position in the node's shape is walked, if the program asks for it
    linear: tuple[int, ...]
    keep: dict[int, int]


def collapse(node: Node, graph: Graph) -> Space:
    """The smallest space with the same walk."""
    shape = tuple(node.attrs["shape"])
    axes = set(node.attrs["axes"])
    named = {i.params[0] for i in node.program if i.op == "iota"}
    for instr in node.program:
        if instr.op == "load":
            named.update(d for d, _, _ in instr.params[1])
    full = contiguous_strides(shape)
    outer_shape = tuple(n for d, n in enumerate(shape) if d not in axes)
    packed = iter(contiguous_strides(outer_shape))
    outer = tuple(0 if d in axes else next(packed) for d in range(len(shape)))
    outs = [full if store.full else outer for store in node.stores]
    loaded = {i.params[0] for i in node.program if i.op == "load"}
    rank = len(shape)
    rows = [node.inputs[k].strides if k in loaded else (0,) * rank for k in range(len(node.inputs))]
    indexed = any(i.op == "index" for i in node.program)
    walks = [*rows, *outs, full if indexed else (0,) * rank]
    sizes: list[int] = []
    inner: list[bool] = []
    strides: list[list[int]] = [[] for _ in walks]
    keep: dict[int, int] = {}
    closed = True  # nothing may be merged into the last dimension
    for d in range(rank):
        if shape[d] == 1 and d not in named:
            continue
        merge = (
            not closed
            and d not in named
            and inner[-1] == (d in axes)
            and all(s[-1] == w[d] * shape[d] for s, w in zip(strides, walks, strict=True))
        )
        if merge:
            sizes[-1] *= shape[d]
            for s, w in zip(strides, walks, strict=True):
                s[-1] = w[d]
        else:
            sizes.append(shape[d])
            inner.append(d in axes)
            for s, w in zip(strides, walks, strict=True):
                s.append(w[d] if shape[d] != 1 else 0)
            if d in named:
                keep[d] = len(sizes) - 1
        closed = d in named
    count = len(rows)
    done = [tuple(s) for s in strides]
    return Space(tuple(sizes), tuple(inner), tuple(done[:count]), tuple(done[count:-1]), done[-1], keep)

"""Iteration spaces of map and reduce: merges dimensions that every operand walks with one stride.

    map     [32, 16, 112, 112], all operands dense        ──►  [6422528]
    reduce  [32, 16, 112, 112] over the axes (0, 2, 3)    ──►  16 rows, reduced over [32, 12544]

Fewer dimensions mean less index arithmetic, and one program text serves more nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

from handheld.graph.graph import Graph, Node, contiguous_strides


@dataclass(frozen=True, slots=True)
class Space:
    """The dimensions that a kernel loops over, and the strides of each operand and output along them."""

    sizes: tuple[int, ...]
    #: Whether each dimension is reduced.
    inner: tuple[bool, ...]
    operands: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    #: The strides of the row-major position in the node's shape; zeros if the program does not use it.
    linear: tuple[int, ...]
    #: For each dimension of the node's shape that the program names (iota, guard), its dimension here.
    keep: dict[int, int]


def collapse(node: Node, graph: Graph) -> Space:
    """The space with the fewest dimensions that visits the same elements in the same order."""
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
    closed = True  # Whether nothing may be merged into the last dimension.
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

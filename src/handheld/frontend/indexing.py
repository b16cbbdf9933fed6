"""Lowerings of indexing and gathering, and of writes through indices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

from handheld.frontend.aten import MaybeTensor
from handheld.frontend.layout import expand
from handheld.frontend.record import Recorder
from handheld.frontend.registry import lowering
from handheld.frontend.scattering import scatter
from handheld.frontend.state import ir_dtype
from handheld.frontend.values import Val, gather, iota
from handheld.graph.dtypes import BOOL
from handheld.graph.graph import View, contiguous_strides
from handheld.graph.program import Builder


def wrap(index: Val, size: int) -> Val:
    """Makes negative positions count from the end."""
    return index.lt(0).where(index + size, index)


def _pick(
    rec: Recorder,
    shape: Sequence[int],
    table: View,
    positions: Sequence[View],
    build: Callable[[Builder, list[Val]], Val],
) -> View:
    """Adds a map that gathers from `table` at a position that `build` computes from the other operands."""
    table = rec.contiguous(table)
    kind = rec.dtype_of(table)

    def program(b: Builder, *vals: Val) -> Val:
        return gather(b, len(vals), kind, build(b, list(vals)))

    return rec.map(tuple(shape), list(positions), program, gathered=[table])


@lowering("embedding.default")
def embedding(rec: Recorder, out: torch.Tensor, table: torch.Tensor, index: torch.Tensor, *options: object) -> None:
    rec.note_range(index, 0, table.shape[0])
    width, view = table.shape[1], rec.read(index)
    wide = View(view.tensor, tuple(out.shape), (*view.strides, 0), view.offset)
    rec.bind(
        out, _pick(rec, out.shape, rec.read(table), [wide], lambda b, v: v[0] * width + iota(b, len(out.shape) - 1))
    )


@lowering("index_select.default")
def index_select(rec: Recorder, out: torch.Tensor, x: torch.Tensor, dim: int, index: torch.Tensor) -> None:
    if x.dim() == 0:
        rec.bind(out, rec.map(tuple(out.shape), [rec.read(x)], lambda a: a))
        return
    dim = dim % x.dim()
    rec.note_range(index, 0, x.shape[dim])
    view = rec.read(index)
    shape = tuple(out.shape)
    strides = tuple(view.strides[0] if d == dim and view.strides else 0 for d in range(len(shape)))
    rec.bind(out, _along_dim(rec, shape, rec.read(x), dim, View(view.tensor, shape, strides, view.offset)))


@lowering("gather.default")
def gather_op(
    rec: Recorder, out: torch.Tensor, x: torch.Tensor, dim: int, index: torch.Tensor, **options: object
) -> None:
    shape = tuple(out.shape)
    if x.dim() == 0:
        rec.bind(out, rec.map(shape, [rec.read(x)], lambda a: a))
        return
    rec.note_range(index, 0, x.shape[dim])
    rec.bind(out, _along_dim(rec, shape, rec.read(x), dim % x.dim(), rec.read(index)))


def _along_dim(rec: Recorder, shape: tuple[int, ...], table: View, dim: int, index: View) -> View:
    """Computes out[.., i, ..] = table[.., index, ..]. Only the coordinate `dim` comes from the index."""
    strides, size = contiguous_strides(table.shape), table.shape[dim]

    def position(b: Builder, v: list[Val]) -> Val:
        total = wrap(v[0], size) * strides[dim]
        for d in range(len(shape)):
            if d != dim and table.shape[d] > 1:
                total = total + iota(b, d) * strides[d]
        return total

    return _pick(rec, shape, table, [index], position)


def _index_plan(x: torch.Tensor, indices: Sequence[MaybeTensor]) -> tuple[list[int], tuple[int, ...], int]:
    """Returns the indexed dimensions, the broadcast shape of the indices, and its position in the result."""
    dims = [d for d, i in enumerate(indices) if i is not None]
    shape: tuple[int, ...] = ()
    for index in indices:
        if index is not None:
            shape = np.broadcast_shapes(shape, tuple(index.shape))
    adjacent = dims == list(range(dims[0], dims[0] + len(dims)))
    return dims, tuple(shape), dims[0] if adjacent else 0


def _positions(rec: Recorder, indices: Sequence[MaybeTensor]) -> list[MaybeTensor]:
    """Returns the indices. Masks are replaced by the positions where they are true, which are frozen at capture."""
    positions: list[MaybeTensor] = []
    for index in indices:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            positions += rec.baked_positions(index)
        else:
            positions.append(index)
    return positions


@lowering("index.Tensor", "_unsafe_index.Tensor")
def index_tensor(rec: Recorder, out: torch.Tensor, x: torch.Tensor, indices: Sequence[MaybeTensor]) -> None:
    indices = _positions(rec, indices)
    _note_ranges(rec, x, indices)
    dims, block, start = _index_plan(x, indices)
    strides = contiguous_strides(tuple(x.shape))
    shape = tuple(out.shape)
    views = [_placed(rec.read(i), block, start, shape) for i in indices if i is not None]
    others = [d for d in range(x.dim()) if d not in dims]
    places = [p for p in range(len(shape)) if not start <= p < start + len(block)]

    def position(b: Builder, v: list[Val]) -> Val:
        total = None
        for d, val in zip(dims, v, strict=True):
            term = wrap(val, x.shape[d]) * strides[d]
            total = term if total is None else total + term
        for d, p in zip(others, places, strict=True):
            total = total + iota(b, p) * strides[d]  # type: ignore[operator]
        assert total is not None
        return total

    rec.bind(out, _pick(rec, shape, rec.read(x), views, position))


def _placed(view: View, block: tuple[int, ...], start: int, shape: tuple[int, ...]) -> View:
    """Views an index over the shape of the result. It varies only along the block."""
    wide = expand(view, block)
    strides = [0] * len(shape)
    strides[start : start + len(block)] = wide.strides
    return View(view.tensor, shape, tuple(strides), view.offset)


@lowering("index_put.default", "_unsafe_index_put.default", "_index_put_impl.default")
def index_put(
    rec: Recorder,
    out: torch.Tensor,
    x: torch.Tensor,
    indices: Sequence[MaybeTensor],
    values: torch.Tensor,
    accumulate: bool = False,
    *_: object,
) -> None:
    masks = [i for i in indices if i is not None and i.dtype in (torch.bool, torch.uint8)]
    if masks and len(indices) == 1 and values.numel() == 1:
        _masked_put(rec, out, x, masks[0], values, accumulate)
        return
    indices = _positions(rec, indices)
    _note_ranges(rec, x, indices)
    dims, block, start = _index_plan(x, indices)
    rest = [d for d in range(x.dim()) if d not in dims]
    # Move the indexed dimensions to the front, as one flat dimension.
    order = [*dims, *rest]
    xv = rec.read(x)
    base = rec.contiguous(
        View(xv.tensor, tuple(xv.shape[d] for d in order), tuple(xv.strides[d] for d in order), xv.offset)
    )
    sizes = [x.shape[d] for d in dims]
    index = rec.map(block, [rec.read(i) for i in indices if i is not None], lambda *v: _flat(v, sizes))
    inner = math.prod(x.shape[d] for d in rest)
    count = math.prod(block)
    result_shape = list(x.shape)
    for d in reversed(dims):
        del result_shape[d]
    result_shape[start:start] = block
    vv = expand(rec.read(values), tuple(result_shape))
    # Bring the values into the order (block, rest).
    move = [
        *range(start, start + len(block)),
        *(p for p in range(len(result_shape)) if not start <= p < start + len(block)),
    ]
    vv = View(vv.tensor, tuple(vv.shape[p] for p in move), tuple(vv.strides[p] for p in move), vv.offset)
    kind = ir_dtype(out.dtype)
    flat = rec.map(vv.shape, [vv], lambda a: a.to(kind))
    result = scatter(
        rec,
        (1, math.prod(sizes), inner),
        View(index.tensor, (1, count, inner), (0, 1, 0), 0),
        View(flat.tensor, (1, count, inner), (0, inner, 1), 0),
        "add" if accumulate else "set",
        base,
    )
    strides = contiguous_strides(base.shape)
    back = [order.index(d) for d in range(x.dim())]
    rec.bind(out, View(result.tensor, tuple(x.shape), tuple(strides[p] for p in back), 0))


def _flat(vals: Sequence[Val], sizes: Sequence[int]) -> Val:
    total: Val | None = None
    for v, n in zip(vals, sizes, strict=True):
        here = wrap(v, n)
        total = here if total is None else total * n + here
    assert total is not None
    return total


def _note_ranges(rec: Recorder, x: torch.Tensor, indices: Sequence[MaybeTensor]) -> None:
    for d, index in enumerate(indices):
        if index is not None:
            rec.note_range(index, -x.shape[d], x.shape[d])


def _masked_put(
    rec: Recorder, out: torch.Tensor, x: torch.Tensor, where: torch.Tensor, values: torch.Tensor, accumulate: bool
) -> None:
    """Lowers x[mask] = number to a select. With more than one value, positions are needed instead."""
    mask = rec.read(where)
    if rec.dtype_of(mask) != BOOL:
        mask = rec.map(mask.shape, [mask], lambda m: m.to(BOOL))
    lead = len(x.shape) - len(mask.shape)
    wide = View(mask.tensor, tuple(x.shape), (*mask.strides, *(0,) * lead), mask.offset)
    value = rec.read(values)
    scalar = View(value.tensor, (), (), value.offset)
    kind = ir_dtype(out.dtype)
    rec.bind(
        out,
        rec.map(
            tuple(x.shape),
            [rec.read(x), wide, scalar],
            lambda a, m, v: m.where(a + v.to(kind) if accumulate else v.to(kind), a),
        ),
    )

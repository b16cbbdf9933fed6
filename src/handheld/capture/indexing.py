"""Indexing, gathering and scattering."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from handheld.capture.joining import raw_map
from handheld.capture.layout import expand
from handheld.capture.record import Recorder
from handheld.capture.registry import lowering
from handheld.capture.state import ir_dtype
from handheld.capture.values import Val, constant, gather, iota
from handheld.errors import UnsupportedOp
from handheld.graph.graph import View, contiguous_strides
from handheld.graph.program import Builder


def wrap(index: Val, size: int) -> Val:
    """Negative positions count from the end."""
    return index.lt(0).where(index + size, index)


def _pick(rec: Recorder, shape: Sequence[int], table: View, positions: Sequence[View],
          build: Callable[[Builder, list[Val]], Val]) -> View:
    """A map that gathers from `table` (whole and dense) at a position made of other operands."""
    table = rec.contiguous(table)
    kind = rec.dtype_of(table)

    def program(b: Builder, *vals: Val) -> Val:
        return gather(b, len(vals), kind, build(b, list(vals)))

    return rec.map(tuple(shape), list(positions), program, gathered=[table])


@lowering("embedding.default")
def embedding(rec: Recorder, out: torch.Tensor, table: torch.Tensor, index: torch.Tensor, *options: Any) -> None:
    rec.note_range(index, 0, table.shape[0])
    width, view = table.shape[1], rec.read(index)
    wide = View(view.tensor, tuple(out.shape), (*view.strides, 0), view.offset)
    rec.bind(out, _pick(rec, out.shape, rec.read(table), [wide],
                        lambda b, v: v[0] * width + iota(b, len(out.shape) - 1)))


def scatter(rec: Recorder, shape: tuple[int, int, int], index: View, src: View, mode: str, base: View | None) -> View:
    """index, src over [o, k, i]; result (and base) over [o, v, i]."""
    inputs = [index, src]
    if base is not None:
        inputs.append(View(rec.contiguous(base).tensor, shape, contiguous_strides(shape)))
    kind = rec.dtype_of(src)
    made = rec.emit("scatter", inputs, [(shape, kind)], {"mode": mode, "base": base is not None, "shape": shape})
    return rec.dense(made[0])


@lowering("embedding_dense_backward.default")
def embedding_backward(rec: Recorder, out: torch.Tensor, g: torch.Tensor, index: torch.Tensor, rows: int,
                       padding: int, by_frequency: bool) -> None:
    width, count = g.shape[-1], index.numel()
    flat = rec.contiguous(rec.read(index))
    grad = rec.contiguous(rec.read(g))
    if by_frequency:
        grad = _by_frequency(rec, grad, flat, rows, width, count)
    if padding >= 0:
        flat = rec.map(flat.shape, [flat], lambda a: a.eq(padding).where(-1, a))
    result = scatter(rec, (1, rows, width), View(flat.tensor, (1, count, width), (0, 1, 0), 0),
                     View(grad.tensor, (1, count, width), (0, width, 1), 0), "add", None)
    rec.bind(out, View(result.tensor, tuple(out.shape), contiguous_strides(tuple(out.shape)), 0))


def _by_frequency(rec: Recorder, grad: View, index: View, rows: int, width: int, count: int) -> View:
    """The gradient of each lookup divided by how often its row is looked up."""
    line = View(index.tensor, (1, count, 1), (0, 1, 0), 0)
    one = rec.map((1, count, 1), [], lambda b: constant(b, 1.0, "f32"))
    often = scatter(rec, (1, rows, 1), line, one, "add", None)
    at = View(index.tensor, (count, width), (1, 0), 0)
    return rec.map((count, width), [at, View(grad.tensor, (count, width), (width, 1), 0)],
                   lambda b, i, a: a / gather(b, 2, "f32", i), gathered=[rec.dense(often.tensor)])


@lowering("index_select.default")
def index_select(rec: Recorder, out: torch.Tensor, x: torch.Tensor, dim: int, index: torch.Tensor) -> None:
    dim = dim % max(x.dim(), 1)
    rec.note_range(index, 0, x.shape[dim] if x.dim() else 1)
    view = rec.read(index)
    shape = tuple(out.shape)
    strides = tuple(view.strides[0] if d == dim and view.strides else 0 for d in range(len(shape)))
    rec.bind(out, _along_dim(rec, shape, rec.read(x), dim, View(view.tensor, shape, strides, view.offset)))


@lowering("gather.default")
def gather_op(rec: Recorder, out: torch.Tensor, x: torch.Tensor, dim: int, index: torch.Tensor, **options: Any) -> None:
    shape = tuple(out.shape)
    if x.dim() == 0:
        rec.bind(out, rec.map(shape, [rec.read(x)], lambda a: a))
        return
    rec.note_range(index, 0, x.shape[dim])
    rec.bind(out, _along_dim(rec, shape, rec.read(x), dim % x.dim(), rec.read(index)))


def _along_dim(rec: Recorder, shape: tuple[int, ...], table: View, dim: int, index: View) -> View:
    """out[.., i, ..] = table[.., index, ..]: every coordinate but one is the point's own."""
    strides, size = contiguous_strides(table.shape), table.shape[dim]

    def position(b: Builder, v: list[Val]) -> Val:
        total = wrap(v[0], size) * strides[dim]
        for d in range(len(shape)):
            if d != dim and table.shape[d] > 1:
                total = total + iota(b, d) * strides[d]
        return total

    return _pick(rec, shape, table, [index], position)


def _index_plan(x: torch.Tensor, indices: Sequence[Any]) -> tuple[list[int], tuple[int, ...], int]:
    """Indexed dimensions, the broadcast shape of the indices, and where it lands in the result."""
    dims = [d for d, i in enumerate(indices) if i is not None]
    shape = torch.broadcast_shapes(*(tuple(indices[d].shape) for d in dims))
    adjacent = dims == list(range(dims[0], dims[0] + len(dims)))
    return dims, tuple(shape), dims[0] if adjacent else 0


def _positions(rec: Recorder, indices: Sequence[Any]) -> list[Any]:
    """The indices with masks replaced by where they are true, which is fixed at capture."""
    found: list[Any] = []
    for index in indices:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            found += rec.baked_positions(index)
        else:
            found.append(index)
    return found


@lowering("index.Tensor", "_unsafe_index.Tensor")
def index_tensor(rec: Recorder, out: torch.Tensor, x: torch.Tensor, indices: Sequence[Any]) -> None:
    indices = _positions(rec, indices)
    _note_ranges(rec, x, indices)
    dims, block, start = _index_plan(x, indices)
    strides = contiguous_strides(tuple(x.shape))
    shape = tuple(out.shape)
    views = [_placed(rec.read(indices[d]), block, start, shape) for d in dims]
    others = [d for d in range(x.dim()) if d not in dims]
    places = [p for p in range(len(shape)) if not start <= p < start + len(block)]

    def position(b: Builder, v: list[Val]) -> Val:
        total = None
        for d, val in zip(dims, v):
            term = wrap(val, x.shape[d]) * strides[d]
            total = term if total is None else total + term
        for d, p in zip(others, places):
            total = total + iota(b, p) * strides[d]  # type: ignore[operator]
        assert total is not None
        return total

    rec.bind(out, _pick(rec, shape, rec.read(x), views, position))


def _placed(view: View, block: tuple[int, ...], start: int, shape: tuple[int, ...]) -> View:
    """An index operand over the result's shape: it varies along the block only."""
    wide = expand(view, block)
    strides = [0] * len(shape)
    strides[start : start + len(block)] = wide.strides
    return View(view.tensor, shape, tuple(strides), view.offset)


@lowering("index_put.default", "_unsafe_index_put.default", "_index_put_impl.default")
def index_put(rec: Recorder, out: torch.Tensor, x: torch.Tensor, indices: Sequence[Any], values: torch.Tensor,
              accumulate: bool = False, *_: Any) -> None:
    masks = [i for i in indices if i is not None and i.dtype in (torch.bool, torch.uint8)]
    if masks and len(indices) == 1 and values.numel() == 1:
        _masked_put(rec, out, x, masks[0], values, accumulate)
        return
    indices = _positions(rec, indices)
    _note_ranges(rec, x, indices)
    dims, block, start = _index_plan(x, indices)
    rest = [d for d in range(x.dim()) if d not in dims]
    # bring the indexed dimensions to the front, as one flat dimension, the others behind it
    order = [*dims, *rest]
    xv = rec.read(x)
    base = rec.contiguous(View(xv.tensor, tuple(xv.shape[d] for d in order), tuple(xv.strides[d] for d in order), xv.offset))
    sizes = [x.shape[d] for d in dims]
    index = rec.map(block, [rec.read(indices[d]) for d in dims], lambda *v: _flat(v, sizes))
    inner = math.prod(x.shape[d] for d in rest)
    count = math.prod(block)
    result_shape = list(x.shape)
    for d in reversed(dims):
        del result_shape[d]
    result_shape[start:start] = block
    vv = expand(rec.read(values), tuple(result_shape))
    # the values in the order (block, rest)
    move = [*range(start, start + len(block)), *(p for p in range(len(result_shape)) if not start <= p < start + len(block))]
    vv = View(vv.tensor, tuple(vv.shape[p] for p in move), tuple(vv.strides[p] for p in move), vv.offset)
    kind = ir_dtype(out.dtype)
    flat = rec.map(vv.shape, [vv], lambda a: a.to(kind))
    result = scatter(rec, (1, math.prod(sizes), inner), View(index.tensor, (1, count, inner), (0, 1, 0), 0),
                     View(flat.tensor, (1, count, inner), (0, inner, 1), 0), "add" if accumulate else "set", base)
    strides = contiguous_strides(base.shape)
    back = [order.index(d) for d in range(x.dim())]
    rec.bind(out, View(result.tensor, tuple(x.shape), tuple(strides[p] for p in back), 0))


def _flat(vals: Sequence[Val], sizes: Sequence[int]) -> Val:
    total: Val | None = None
    for v, n in zip(vals, sizes):
        here = wrap(v, n)
        total = here if total is None else total * n + here
    assert total is not None
    return total


def _note_ranges(rec: Recorder, x: torch.Tensor, indices: Sequence[Any]) -> None:
    for d, index in enumerate(indices):
        if index is not None:
            rec.note_range(index, -x.shape[d], x.shape[d])


def _masked_put(rec: Recorder, out: torch.Tensor, x: torch.Tensor, where: torch.Tensor, values: torch.Tensor,
                accumulate: bool) -> None:
    """x[mask] = number is a select; anything with as many values as the mask has is not."""
    mask = rec.read(where)
    if rec.dtype_of(mask) != "bool":
        mask = rec.map(mask.shape, [mask], lambda m: m.to("bool"))
    lead = len(x.shape) - len(mask.shape)
    wide = View(mask.tensor, tuple(x.shape), (*mask.strides, *(0,) * lead), mask.offset)
    value = rec.read(values)
    one = View(value.tensor, (), (), value.offset)
    kind = ir_dtype(out.dtype)
    rec.bind(out, rec.map(tuple(x.shape), [rec.read(x), wide, one],
                          lambda a, m, v: m.where(a + v.to(kind) if accumulate else v.to(kind), a)))


@lowering("scatter.src", "scatter.value", "scatter_add.default", "scatter.reduce", "scatter.value_reduce")
def scatter_op(rec: Recorder, out: torch.Tensor, x: torch.Tensor, dim: int, index: torch.Tensor, src: Any, **options: Any) -> None:
    if options.get("reduce", "add") != "add":
        raise UnsupportedOp(f"scatter with reduce={options['reduce']!r} has no lowering")
    mode = "add" if "add" in rec.source or "reduce" in options else "set"
    _scatter_along(rec, out, x, dim, index, src, mode)


@lowering("index_add.default", "index_copy.default")
def index_add(rec: Recorder, out: torch.Tensor, x: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor, *,
              alpha: float = 1) -> None:
    dim = dim % max(x.dim(), 1)
    mode = "add" if "add" in rec.source else "set"
    shape = tuple(src.shape)
    view = rec.read(index)
    wide = View(view.tensor, shape, tuple(view.strides[0] if d == dim and view.strides else 0 for d in range(len(shape))), view.offset)
    source = rec.read(src)
    if alpha != 1:
        source = rec.map(shape, [source], lambda a: a * alpha)
    _scatter_views(rec, out, rec.read(x), dim, wide, source, mode)


def _scatter_along(rec: Recorder, out: torch.Tensor, x: torch.Tensor, dim: int, index: torch.Tensor, src: Any, mode: str) -> None:
    iv, kind = rec.read(index), ir_dtype(out.dtype)
    if isinstance(src, torch.Tensor):
        sv = rec.read(src)
        sv = View(sv.tensor, iv.shape, sv.strides, sv.offset)  # src may be larger than index
    else:
        sv = rec.map(iv.shape, [], lambda b: constant(b, float(src) if kind == "f32" else int(src), kind))
    _scatter_views(rec, out, rec.read(x), dim % max(x.dim(), 1), iv, sv, mode)


def _scatter_views(rec: Recorder, out: torch.Tensor, x: View, dim: int, index: View, src: View, mode: str) -> None:
    """Scatter along one dimension; the index may cover only part of the other dimensions."""
    shape, part, rank = x.shape, index.shape, len(x.shape)
    size = shape[dim] if rank else 1
    others = [d for d in range(rank) if d != dim]
    order = [*others, dim]
    base = rec.contiguous(View(x.tensor, tuple(shape[d] for d in order), tuple(x.strides[d] for d in order), x.offset))
    full = tuple(shape[d] for d in others)
    moved = [View(v.tensor, tuple(part[d] for d in order), tuple(v.strides[d] for d in order), v.offset) for v in (index, src)]
    count = part[dim] if rank else 1
    wanted = (*full, count)
    made = []
    for v, kind, fill in ((moved[0], "i32", -1), (moved[1], ir_dtype(out.dtype), 0)):
        made.append(_padded(rec, v, wanted, kind, fill))
    outer = math.prod(full)
    result = scatter(rec, (outer, size, 1), View(made[0].tensor, (outer, count, 1), (count, 1, 0), 0),
                     View(made[1].tensor, (outer, count, 1), (count, 1, 0), 0), mode, base)
    strides = contiguous_strides(tuple(shape[d] for d in order))
    rec.bind(out, View(result.tensor, shape, tuple(strides[order.index(d)] for d in range(rank)), 0))


def _padded(rec: Recorder, view: View, shape: tuple[int, ...], kind: str, fill: int) -> View:
    """The view grown to `shape`, `fill` outside."""
    guards = tuple((d, 0, n) for d, (n, want) in enumerate(zip(view.shape, shape)) if n != want)

    def program(b: Builder) -> Val:
        source = rec.dtype_of(view)
        return Val(b, b.load(0, source, guards, fill), source).to(kind)

    grown = View(view.tensor, shape, view.strides, view.offset)
    return raw_map(rec, shape, [grown], program)

"""Indexing, gathering, scattering, joining, padding, pooling, resizing, scans and sorts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from handheld.capture.contractions import matmul
from handheld.capture.record import Recorder, expand
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
    if by_frequency:
        raise UnsupportedOp("embedding with scale_grad_by_freq has no lowering")
    width, count = g.shape[-1], index.numel()
    flat = rec.contiguous(rec.read(index))
    if padding >= 0:
        flat = rec.map(flat.shape, [flat], lambda a: a.eq(padding).where(-1, a))
    grad = rec.contiguous(rec.read(g))
    result = scatter(rec, (1, rows, width), View(flat.tensor, (1, count, width), (0, 1, 0), 0),
                     View(grad.tensor, (1, count, width), (0, width, 1), 0), "add", None)
    rec.bind(out, View(result.tensor, tuple(out.shape), contiguous_strides(tuple(out.shape)), 0))


@lowering("index_select.default")
def index_select(rec: Recorder, out: torch.Tensor, x: torch.Tensor, dim: int, index: torch.Tensor) -> None:
    dim = dim % max(x.dim(), 1)
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


def _checked(indices: Sequence[Any]) -> list[Any]:
    for index in indices:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            raise UnsupportedOp(
                "indexing with a boolean mask has a result whose size depends on values. "
                "Use torch.where, or multiply by the mask")
    return list(indices)


@lowering("index.Tensor", "_unsafe_index.Tensor")
def index_tensor(rec: Recorder, out: torch.Tensor, x: torch.Tensor, indices: Sequence[Any]) -> None:
    indices = _checked(indices)
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
    if any(i is not None and i.dtype == torch.bool for i in indices):
        _masked_put(rec, out, x, indices, values, accumulate)
        return
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


def _masked_put(rec: Recorder, out: torch.Tensor, x: torch.Tensor, indices: Sequence[Any], values: torch.Tensor,
                accumulate: bool) -> None:
    """x[mask] = number is a where; anything with as many values as the mask has is not."""
    if len(indices) != 1 or values.numel() != 1:
        raise UnsupportedOp("writing through a boolean mask is supported for a single value only. Use torch.where")
    mask = rec.read(indices[0])
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
    return _raw_map(rec, shape, [grown], program)


def _raw_map(rec: Recorder, shape: tuple[int, ...], views: Sequence[View], program: Callable[[Builder], Val]) -> View:
    """A map whose program writes its own loads."""
    builder = Builder()
    value = program(builder)
    attrs = {"shape": shape, "axes": (), "program": builder.program, "stores": ((value.index, True),)}
    return rec.dense(rec.emit("map", views, [(shape, value.dtype)], attrs)[0])


# ── joining and padding ───────────────────────────────────────────────────────────────────────────


@lowering("cat.default")
def cat(rec: Recorder, out: torch.Tensor, tensors: Sequence[torch.Tensor], dim: int = 0) -> None:
    parts = [t for t in tensors if t.numel() or t.dim() == out.dim()]
    parts = [t for t in parts if t.shape[dim % out.dim()] > 0] or parts[:1]
    dim, shape, kind = dim % out.dim(), tuple(out.shape), ir_dtype(out.dtype)
    while len(parts) > 12:  # kernels take only so many pointers
        joined = _cat(rec, [rec.read(t) if isinstance(t, torch.Tensor) else t for t in parts[:12]], dim, kind)
        parts = [joined, *parts[12:]]  # type: ignore[list-item]
    view = _cat(rec, [rec.read(t) if isinstance(t, torch.Tensor) else t for t in parts], dim, kind)
    rec.bind(out, View(view.tensor, shape, contiguous_strides(shape), 0))


def _cat(rec: Recorder, views: Sequence[View], dim: int, kind: str) -> View:
    starts = [0]
    for v in views:
        starts.append(starts[-1] + v.shape[dim])
    shape = list(views[0].shape)
    shape[dim] = starts[-1]
    grown = [View(v.tensor, tuple(shape), v.strides, v.offset - start * v.strides[dim]) for v, start in zip(views, starts)]

    def program(b: Builder) -> Val:
        value: Val | None = None
        for k in reversed(range(len(views))):
            guards = ((dim, starts[k], starts[k + 1]),) if len(views) > 1 else ()
            source = rec.dtype_of(views[k])
            here = Val(b, b.load(k, source, guards, 0), source).to(kind)
            value = here if value is None else iota(b, dim).lt(starts[k + 1]).where(here, value)
        assert value is not None
        return value

    return _raw_map(rec, tuple(shape), grown, program)


@lowering("constant_pad_nd.default")
def constant_pad(rec: Recorder, out: torch.Tensor, x: torch.Tensor, pad: Sequence[int], value: float = 0) -> None:
    view, shape, kind = rec.read(x), tuple(out.shape), rec.dtype_of(rec.read(x))
    offset, guards = view.offset, []
    for k in range(len(pad) // 2):
        d, before = x.dim() - 1 - k, pad[2 * k]
        offset -= before * view.strides[d]
        guards.append((d, max(before, 0), min(before + x.shape[d], shape[d])))
    fill = float(value) if kind == "f32" else int(value)
    grown = View(view.tensor, shape, view.strides, offset)
    rec.bind(out, _raw_map(rec, shape, [grown], lambda b: Val(b, b.load(0, kind, tuple(guards), fill), kind)))


@lowering("flip.default")
def flip(rec: Recorder, out: torch.Tensor, x: torch.Tensor, dims: Sequence[int]) -> None:
    view = rec.read(x)
    strides, offset = list(view.strides), view.offset
    for d in dims:
        offset += (view.shape[d] - 1) * strides[d] if view.shape[d] else 0
        strides[d] = -strides[d]
    rec.bind(out, rec.map(view.shape, [View(view.tensor, view.shape, tuple(strides), offset)], lambda a: a))


# ── pooling ───────────────────────────────────────────────────────────────────────────────────────


def _two(values: Any, default: Any = None) -> tuple[int, int]:
    values = default if values is None or (isinstance(values, (list, tuple)) and not values) else values
    if isinstance(values, int):
        return (values, values)
    values = list(values)
    return (values[0], values[0]) if len(values) == 1 else (values[0], values[1])


def _image(rec: Recorder, x: torch.Tensor) -> View:
    """[c, h, w] as [1, c, h, w]."""
    view = rec.read(x)
    if len(view.shape) == 4:
        return view
    return View(view.tensor, (1, *view.shape), (0, *view.strides), view.offset)


def _bind_image(rec: Recorder, out: torch.Tensor, tensor: int) -> None:
    shape = tuple(out.shape)
    rec.bind(out, View(tensor, shape, contiguous_strides(shape), 0))


def _shape4(t: torch.Tensor) -> tuple[int, ...]:
    return tuple(t.shape) if t.dim() == 4 else (1, *t.shape)


@lowering("max_pool2d_with_indices.default")
def max_pool(rec: Recorder, out: Any, x: torch.Tensor, kernel: Any, stride: Any = None, padding: Any = 0,
             dilation: Any = 1, ceil_mode: bool = False) -> None:
    shape = _shape4(out[0])
    attrs = {"kernel": _two(kernel), "stride": _two(stride, kernel), "padding": _two(padding), "dilation": _two(dilation),
             "adaptive": False, "shape": shape}
    made = rec.emit("max_pool", [_image(rec, x)], [(shape, "f32"), (shape, "i32")], attrs)
    _bind_image(rec, out[0], made[0])
    _bind_image(rec, out[1], made[1])


@lowering("max_pool2d_with_indices_backward.default")
def max_pool_backward(rec: Recorder, out: torch.Tensor, g: torch.Tensor, x: torch.Tensor, kernel: Any, stride: Any,
                      padding: Any, dilation: Any, ceil_mode: bool, index: torch.Tensor) -> None:
    shape = _shape4(x)
    attrs = {"kernel": _two(kernel), "stride": _two(stride, kernel), "padding": _two(padding), "dilation": _two(dilation),
             "adaptive": False, "shape": shape}
    _bind_image(rec, out, rec.emit("max_pool_grad", [_image(rec, g), _image(rec, index)], [(shape, "f32")], attrs)[0])


_ADAPTIVE = {"kernel": (1, 1), "stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "adaptive": True}


@lowering("adaptive_max_pool2d.default")
def adaptive_max_pool(rec: Recorder, out: Any, x: torch.Tensor, size: Any) -> None:
    shape = _shape4(out[0])
    made = rec.emit("max_pool", [_image(rec, x)], [(shape, "f32"), (shape, "i32")], {**_ADAPTIVE, "shape": shape})
    _bind_image(rec, out[0], made[0])
    _bind_image(rec, out[1], made[1])


@lowering("adaptive_max_pool2d_backward.default")
def adaptive_max_pool_backward(rec: Recorder, out: torch.Tensor, g: torch.Tensor, x: torch.Tensor, index: torch.Tensor) -> None:
    shape = _shape4(x)
    inputs = [_image(rec, g), _image(rec, index)]
    _bind_image(rec, out, rec.emit("max_pool_grad", inputs, [(shape, "f32")], {**_ADAPTIVE, "shape": shape})[0])


@lowering("avg_pool2d.default")
def avg_pool(rec: Recorder, out: torch.Tensor, x: torch.Tensor, kernel: Any, stride: Any = None, padding: Any = 0,
             ceil_mode: bool = False, count_pad: bool = True, divisor: Any = None) -> None:
    shape = _shape4(out)
    attrs = {"kernel": _two(kernel), "stride": _two(stride, kernel), "padding": _two(padding), "count_pad": count_pad,
             "divisor": int(divisor or 0), "shape": shape}
    _bind_image(rec, out, rec.emit("avg_pool", [_image(rec, x)], [(shape, "f32")], attrs)[0])


@lowering("avg_pool2d_backward.default")
def avg_pool_backward(rec: Recorder, out: torch.Tensor, g: torch.Tensor, x: torch.Tensor, kernel: Any, stride: Any,
                      padding: Any, ceil_mode: bool, count_pad: bool, divisor: Any) -> None:
    shape = _shape4(x)
    attrs = {"kernel": _two(kernel), "stride": _two(stride, kernel), "padding": _two(padding), "count_pad": count_pad,
             "divisor": int(divisor or 0), "shape": shape}
    _bind_image(rec, out, rec.emit("avg_pool_grad", [_image(rec, g)], [(shape, "f32")], attrs)[0])


# ── linear maps along an axis: adaptive average pooling and interpolation are matrix products ─────


def _along_axes(rec: Recorder, x: View, matrices: Sequence[np.ndarray]) -> View:
    """Applies matrices[i] ([out, in]) along the trailing dimensions of x."""
    rank, first = len(x.shape), len(x.shape) - len(matrices)
    for i, matrix in enumerate(matrices):
        dim = first + i
        if matrix.shape[0] == matrix.shape[1] and np.array_equal(matrix, np.eye(len(matrix))):
            continue
        weights = rec.constant(matrix.astype(np.float32))
        lead = x.shape[:dim]
        behind = math.prod(x.shape[dim + 1 :])
        x = rec.contiguous(x)
        left = View(weights.tensor, (math.prod(lead), *matrix.shape), (0, matrix.shape[1], 1), 0)
        right = View(x.tensor, (math.prod(lead), x.shape[dim], behind), (x.shape[dim] * behind, behind, 1), 0)
        if behind == 1:  # one product of [lead, in] with [in, out]
            left = View(x.tensor, (math.prod(lead), x.shape[dim]), (x.shape[dim], 1), 0)
            right = View(weights.tensor, (matrix.shape[1], matrix.shape[0]), (1, matrix.shape[1]), 0)
        product = matmul(rec, left, right)
        shape = (*lead, matrix.shape[0], *x.shape[dim + 1 :])
        x = View(product.tensor, shape, contiguous_strides(shape), 0)
    assert rank == len(x.shape)
    return x


def _pooling_matrix(size: int, out: int) -> np.ndarray:
    matrix = np.zeros((out, size))
    for i in range(out):
        low, high = i * size // out, -(-(i + 1) * size // out)
        matrix[i, low:high] = 1 / (high - low)
    return matrix


@lowering("_adaptive_avg_pool2d.default")
def adaptive_avg_pool(rec: Recorder, out: torch.Tensor, x: torch.Tensor, size: Any) -> None:
    matrices = [_pooling_matrix(x.shape[d], out.shape[d]) for d in (-2, -1)]
    _bind_image(rec, out, rec.contiguous(_along_axes(rec, rec.read(x), matrices)).tensor)


@lowering("_adaptive_avg_pool2d_backward.default")
def adaptive_avg_pool_backward(rec: Recorder, out: torch.Tensor, g: torch.Tensor, x: torch.Tensor) -> None:
    matrices = [_pooling_matrix(x.shape[d], g.shape[d]).T for d in (-2, -1)]
    _bind_image(rec, out, rec.contiguous(_along_axes(rec, rec.read(g), matrices)).tensor)


def _resize_matrix(mode: str, size: int, out: int, align: bool, scale: float | None) -> np.ndarray:
    """Column of weights of each output position, found by resizing an identity in PyTorch itself."""
    with torch.utils._python_dispatch._disable_current_modes():
        unit = torch.eye(size, dtype=torch.float64)[:, None, :]
        if mode == "nearest":
            y = torch.ops.aten.upsample_nearest1d(unit, [out], scale)
        elif mode == "nearest-exact":
            y = torch.ops.aten._upsample_nearest_exact1d(unit, [out], scale)
        elif mode == "linear":
            y = torch.ops.aten.upsample_linear1d(unit, [out], align, scale)
        else:
            y = torch.ops.aten.upsample_bicubic2d(unit[:, :, None, :], [1, out], align, None, scale)[:, :, 0]
        return np.ascontiguousarray(y[:, 0].numpy().T)


_MODES = {"upsample_nearest": "nearest", "_upsample_nearest_exact": "nearest-exact", "upsample_linear": "linear",
          "upsample_bilinear": "linear", "upsample_bicubic": "cubic"}


def _resize(rec: Recorder, out: torch.Tensor, x: torch.Tensor, sizes_in: Sequence[int], sizes_out: Sequence[int],
            options: Sequence[Any], backward: bool) -> None:
    name = rec.source.split(".")[1].removesuffix("_backward")
    mode = _MODES[name[:-2]]
    rest = list(options)
    align = bool(rest.pop(0)) if mode in ("linear", "cubic") else False
    scales = (rest + [None] * len(sizes_in))[: len(sizes_in)]
    matrices = [_resize_matrix(mode, i, o, align, s) for i, o, s in zip(sizes_in, sizes_out, scales)]
    if backward:
        matrices = [m.T for m in matrices]
    _bind_image(rec, out, rec.contiguous(_along_axes(rec, rec.read(x), matrices)).tensor)


@lowering("upsample_nearest1d.default", "upsample_nearest2d.default", "_upsample_nearest_exact1d.default",
          "_upsample_nearest_exact2d.default", "upsample_linear1d.default", "upsample_bilinear2d.default",
          "upsample_bicubic2d.default")
def upsample(rec: Recorder, out: torch.Tensor, x: torch.Tensor, size: Any, *options: Any) -> None:
    _resize(rec, out, x, x.shape[2:], out.shape[2:], options, backward=False)


@lowering("upsample_nearest1d_backward.default", "upsample_nearest2d_backward.default",
          "_upsample_nearest_exact1d_backward.default", "_upsample_nearest_exact2d_backward.default",
          "upsample_linear1d_backward.default", "upsample_bilinear2d_backward.default",
          "upsample_bicubic2d_backward.default")
def upsample_backward(rec: Recorder, out: torch.Tensor, g: torch.Tensor, size: Any, input_size: Any, *options: Any) -> None:
    _resize(rec, out, g, tuple(input_size)[2:], g.shape[2:], options, backward=True)


# ── scans and sorts ───────────────────────────────────────────────────────────────────────────────


@lowering("cumsum.default", "cumprod.default")
def scan(rec: Recorder, out: torch.Tensor, x: torch.Tensor, dim: int, *, dtype: Any = None) -> None:
    kind, mode = ir_dtype(out.dtype), "add" if "cumsum" in rec.source else "mul"
    view = rec.read(x)
    if x.dim() == 0:
        rec.bind(out, rec.map((), [view], lambda a: a.to(kind)))
        return
    dim = dim % x.dim()
    shape = tuple(x.shape)
    source = rec.map(shape, [view], lambda a: a.to(kind)) if rec.dtype_of(view) != kind else rec.contiguous(view)
    three = (math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :]))
    made = rec.emit("scan", [View(source.tensor, three, contiguous_strides(three), 0)], [(shape, kind)],
                    {"mode": mode, "reverse": False})
    rec.bind(out, rec.dense(made[0]))


def _sorted(rec: Recorder, x: torch.Tensor, dim: int, descending: bool) -> tuple[View, View]:
    """Values and positions along `dim`, as views of x's shape."""
    view, rank = rec.read(x), x.dim()
    dim = dim % max(rank, 1)
    order = [d for d in range(rank) if d != dim] + ([dim] if rank else [])
    moved = View(view.tensor, tuple(view.shape[d] for d in order), tuple(view.strides[d] for d in order), view.offset)
    source = rec.contiguous(moved)
    length = moved.shape[-1] if rank else 1
    rows = moved.size // max(length, 1)
    made = rec.emit("sort", [View(source.tensor, (rows, length), (length, 1), 0)],
                    [(moved.shape, rec.dtype_of(view)), (moved.shape, "i32")], {"descending": descending})
    strides = contiguous_strides(moved.shape)
    back = tuple(strides[order.index(d)] for d in range(rank))
    return View(made[0], tuple(x.shape), back, 0), View(made[1], tuple(x.shape), back, 0)


@lowering("sort.default", "sort.stable")
def sort(rec: Recorder, out: Any, x: torch.Tensor, *args: Any, **options: Any) -> None:
    stable_overload = rec.source.endswith("stable")
    names = ["stable", "dim", "descending"] if stable_overload else ["dim", "descending"]
    given = dict(zip(names, args)) | options
    values, index = _sorted(rec, x, given.get("dim", -1), bool(given.get("descending", False)))
    rec.bind(out[0], values)
    rec.bind(out[1], index)


@lowering("topk.default")
def topk(rec: Recorder, out: Any, x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, is_sorted: bool = True) -> None:
    values, index = _sorted(rec, x, dim, largest)
    for target, view in zip(out, (values, index)):
        rec.bind(target, View(view.tensor, tuple(target.shape), view.strides, 0))

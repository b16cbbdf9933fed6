"""Lowerings of scatter ops: gradients of lookups, and writes at computed positions."""

from __future__ import annotations

import math

import torch

from handheld.errors import UnsupportedOp
from handheld.frontend.joining import raw_map
from handheld.frontend.record import Recorder
from handheld.frontend.registry import lowering
from handheld.frontend.state import ir_dtype
from handheld.frontend.values import Val, constant, gather
from handheld.graph.dtypes import F32, I32
from handheld.graph.graph import View, contiguous_strides
from handheld.graph.program import Builder, Guard


def scatter(rec: Recorder, shape: tuple[int, int, int], index: View, src: View, mode: str, base: View | None) -> View:
    """Adds a scatter node. `index` and `src` have the shape [o, k, i]; the result and `base` have [o, v, i]."""
    inputs = [index, src]
    if base is not None:
        inputs.append(View(rec.contiguous(base).tensor, shape, contiguous_strides(shape)))
    kind = rec.dtype_of(src)
    outputs = rec.emit("scatter", inputs, [(shape, kind)], {"mode": mode, "base": base is not None, "shape": shape})
    return rec.dense(outputs[0])


@lowering("embedding_dense_backward.default")
def embedding_backward(
    rec: Recorder, out: torch.Tensor, g: torch.Tensor, index: torch.Tensor, rows: int, padding: int, by_frequency: bool
) -> None:
    width, count = g.shape[-1], index.numel()
    flat = rec.contiguous(rec.read(index))
    grad = rec.contiguous(rec.read(g))
    if by_frequency:
        grad = _by_frequency(rec, grad, flat, rows, width, count)
    if padding >= 0:
        flat = rec.map(flat.shape, [flat], lambda a: a.eq(padding).where(-1, a))
    result = scatter(
        rec,
        (1, rows, width),
        View(flat.tensor, (1, count, width), (0, 1, 0), 0),
        View(grad.tensor, (1, count, width), (0, width, 1), 0),
        "add",
        None,
    )
    rec.bind(out, View(result.tensor, tuple(out.shape), contiguous_strides(tuple(out.shape)), 0))


def _by_frequency(rec: Recorder, grad: View, index: View, rows: int, width: int, count: int) -> View:
    """Divides the gradient of each lookup by the number of lookups of its row."""
    line = View(index.tensor, (1, count, 1), (0, 1, 0), 0)
    ones = rec.map((1, count, 1), [], lambda b: constant(b, 1.0, F32))
    counts = scatter(rec, (1, rows, 1), line, ones, "add", None)
    at = View(index.tensor, (count, width), (1, 0), 0)
    return rec.map(
        (count, width),
        [at, View(grad.tensor, (count, width), (width, 1), 0)],
        lambda b, i, a: a / gather(b, 2, F32, i),
        gathered=[rec.dense(counts.tensor)],
    )


@lowering("scatter.src", "scatter.value", "scatter_add.default", "scatter.reduce", "scatter.value_reduce")
def scatter_op(
    rec: Recorder,
    out: torch.Tensor,
    x: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    src: torch.Tensor | float,
    **options: object,
) -> None:
    if options.get("reduce", "add") != "add":
        raise UnsupportedOp(f"scatter with reduce={options['reduce']!r} has no lowering. Try: scatter_reduce")
    mode = "add" if "add" in rec.torch_op or "reduce" in options else "set"
    _scatter_along(rec, out, x, dim, index, src, mode)


@lowering("index_add.default", "index_copy.default")
def index_add(
    rec: Recorder,
    out: torch.Tensor,
    x: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    src: torch.Tensor,
    *,
    alpha: float = 1,
) -> None:
    mode = "add" if "add" in rec.torch_op else "set"
    source, view, kind = rec.read(src), rec.read(index), ir_dtype(out.dtype)
    dim, shape = dim % max(x.dim(), 1), tuple(x.shape) or (1,)
    outer, inner, count = math.prod(shape[:dim]), math.prod(shape[dim + 1 :]), index.numel()
    if alpha != 1 or rec.dtype_of(source) != kind:
        source = rec.map(source.shape, [source], lambda a: (a * alpha if alpha != 1 else a).to(kind))
    flat_shape = (outer, count, inner)
    step = view.strides[0] if view.strides else 0
    result = scatter(
        rec,
        (outer, shape[dim], inner),
        View(view.tensor, flat_shape, (0, step, 0), view.offset),
        View(rec.contiguous(source).tensor, flat_shape, contiguous_strides(flat_shape)),
        mode,
        rec.read(x),
    )
    rec.bind(out, View(result.tensor, tuple(out.shape), contiguous_strides(tuple(out.shape))))


def _scatter_along(
    rec: Recorder,
    out: torch.Tensor,
    x: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    src: torch.Tensor | float,
    mode: str,
) -> None:
    iv, kind = rec.read(index), ir_dtype(out.dtype)
    if isinstance(src, torch.Tensor):
        sv = rec.read(src)
        sv = View(sv.tensor, iv.shape, sv.strides, sv.offset)  # src may be larger than index.
    else:
        sv = rec.map(iv.shape, [], lambda b: constant(b, float(src) if kind == F32 else int(src), kind))
    _scatter_views(rec, out, rec.read(x), dim % max(x.dim(), 1), iv, sv, mode)


def _scatter_views(rec: Recorder, out: torch.Tensor, x: View, dim: int, index: View, src: View, mode: str) -> None:
    """Scatters along one dimension. The index may cover only a part of the other dimensions."""
    shape, part = x.shape or (1,), index.shape or (1,)
    if not x.shape:
        index, src = (View(v.tensor, part, v.strides or (0,), v.offset) for v in (index, src))
    padded_shape = tuple(part[d] if d == dim else n for d, n in enumerate(shape))
    outer, inner = math.prod(shape[:dim]), math.prod(shape[dim + 1 :])
    flat_shape = (outer, part[dim], inner)
    where, values = (
        View(_padded(rec, v, padded_shape, kind, fill).tensor, flat_shape, contiguous_strides(flat_shape))
        for v, kind, fill in ((index, I32, -1), (src, ir_dtype(out.dtype), 0))
    )
    result = scatter(rec, (outer, shape[dim], inner), where, values, mode, x)
    rec.bind(out, View(result.tensor, tuple(out.shape), contiguous_strides(tuple(out.shape))))


def _padded(rec: Recorder, view: View, shape: tuple[int, ...], kind: str, fill: int) -> View:
    """Returns the view as a dense tensor of type `kind`, extended to `shape` with `fill`."""
    if view.shape == shape and rec.dtype_of(view) == kind:
        return rec.contiguous(view)
    guards = tuple(Guard(d, 0, n) for d, (n, target) in enumerate(zip(view.shape, shape, strict=True)) if n != target)

    def program(b: Builder) -> Val:
        source = rec.dtype_of(view)
        return Val(b, b.load(0, source, guards, fill), source).to(kind)

    grown = View(view.tensor, shape, view.strides, view.offset)
    return raw_map(rec, shape, [grown], program)

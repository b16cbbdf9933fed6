"""Lowerings of reductions and softmax.

Each op becomes plain reduce and map nodes. The fusion pass joins them into one kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from handheld.errors import UnsupportedOp
from handheld.frontend.aten import Dims, Results
from handheld.frontend.record import Recorder
from handheld.frontend.registry import lowering
from handheld.frontend.state import ir_dtype
from handheld.frontend.values import Val, iota
from handheld.graph.dtypes import BOOL, F32, I32
from handheld.graph.graph import View


def axes_of(x: torch.Tensor, dim: Dims) -> tuple[int, ...]:
    """Returns the reduced dimensions in ascending order. No `dim` means all of them."""
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return tuple(range(x.dim()))
    dims = [dim] if isinstance(dim, int) else dim
    return tuple(sorted({d % x.dim() for d in dims})) if x.dim() else ()


def keepdim(view: View, shape: Sequence[int], axes: Sequence[int]) -> View:
    """Views a reduced result over `shape`, with stride 0 along the reduced axes."""
    strides = iter(view.strides)
    return View(
        view.tensor, tuple(shape), tuple(0 if d in set(axes) else next(strides) for d in range(len(shape))), view.offset
    )


def fold(rec: Recorder, x: View, axes: Sequence[int], build: Callable[..., Val], more: Sequence[View] = ()) -> View:
    """Adds a reduction of x over `axes`. `build` gets x and then `more`."""
    return rec.reduce(x.shape, axes, [x, *more], build)


@lowering("sum.default", "sum.dim_IntList", "prod.default", "prod.dim_int")
def total(
    rec: Recorder,
    out: torch.Tensor,
    x: torch.Tensor,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> None:
    kind, op = ir_dtype(out.dtype), "prod" if ".prod." in rec.torch_op else "sum"
    rec.bind_dense(out, fold(rec, rec.read(x), axes_of(x, dim), lambda a: a.to(kind).reduce(op)))


@lowering("mean.default", "mean.dim")
def mean(
    rec: Recorder,
    out: torch.Tensor,
    x: torch.Tensor,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> None:
    axes = axes_of(x, dim)
    count = math.prod(x.shape[a] for a in axes)
    scale = 1.0 / count if count else math.nan
    rec.bind_dense(out, fold(rec, rec.read(x), axes, lambda a: a.to(F32).reduce("sum") * scale))


@lowering("any.default", "any.dim", "any.dims", "all.default", "all.dim", "all.dims")
def truth(rec: Recorder, out: torch.Tensor, x: torch.Tensor, dim: Dims = None, keepdim: bool = False) -> None:
    op = "any_of" if ".any." in rec.torch_op else "all_of"
    rec.bind_dense(out, fold(rec, rec.read(x), axes_of(x, dim), lambda a: a.to(BOOL).reduce(op)))


@lowering("amax.default", "amin.default", "max.default", "min.default")
def extreme(rec: Recorder, out: torch.Tensor, x: torch.Tensor, dim: Dims = None, keepdim: bool = False) -> None:
    op = "max_of" if "max" in rec.torch_op else "min_of"
    rec.bind_dense(out, fold(rec, rec.read(x), axes_of(x, dim), lambda a: a.reduce(op)))


@lowering("argmax.default", "argmin.default")
def arg_extreme(rec: Recorder, out: torch.Tensor, x: torch.Tensor, dim: Dims = None, keepdim: bool = False) -> None:
    op = "arg_max" if "argmax" in rec.torch_op else "arg_min"
    rec.bind_dense(out, fold(rec, rec.read(x), axes_of(x, dim), lambda a: a.reduce(op, I32)))


@lowering("max.dim", "min.dim")
def extreme_dim(rec: Recorder, out: Results, x: torch.Tensor, dim: int, keepdim: bool = False) -> None:
    name = "max" if ".max." in rec.torch_op else "min"
    axes, view = axes_of(x, dim), rec.read(x)

    def build(a: Val) -> list[Val]:
        return [a.reduce(f"{name}_of"), a.reduce(f"arg_{name}", I32)]

    value, index = rec.loops(view.shape, axes, [view], build)
    rec.bind_dense(out[0], value)
    rec.bind_dense(out[1], index)


def moments(rec: Recorder, x: View, axes: Sequence[int], correction: float) -> tuple[View, View]:
    """Returns mean and variance over `axes`. Two passes keep the variance exact for data far from zero."""
    count = math.prod(x.shape[a] for a in axes)
    average = fold(rec, x, axes, lambda a: a.reduce("sum") * (1.0 / count if count else math.nan))
    rest = count - correction
    scale = 1.0 / rest if rest > 0 else math.nan
    wide = keepdim(average, x.shape, axes)
    variance = fold(rec, x, axes, lambda a, m: ((a - m) * (a - m)).reduce("sum") * scale, [wide])
    return average, variance


def _correction(args: tuple[Any, ...], options: dict[str, Any]) -> float:
    if "correction" in options:
        return float(1 if options["correction"] is None else options["correction"])
    flag = next((a for a in args if isinstance(a, bool)), options.get("unbiased", True))
    return 1.0 if flag else 0.0


@lowering("var.correction", "var.dim", "var.default", "std.correction", "std.dim", "std.default")
def variance(
    rec: Recorder, out: torch.Tensor, x: torch.Tensor, dim: Dims = None, *args: object, **options: object
) -> None:
    if isinstance(dim, bool):
        dim, args = None, (dim, *args)
    _, view = moments(rec, rec.read(x), axes_of(x, dim), _correction(args[:1], options))
    if ".std." in rec.torch_op:
        view = rec.map(view.shape, [view], lambda a: a.unary("sqrt"))
    rec.bind_dense(out, view)


@lowering("var_mean.correction", "var_mean.dim", "var_mean.default")
def var_mean(rec: Recorder, out: Results, x: torch.Tensor, dim: Dims = None, *args: object, **options: object) -> None:
    average, view = moments(rec, rec.read(x), axes_of(x, dim), _correction(args[:1], options))
    rec.bind_dense(out[0], view)
    rec.bind_dense(out[1], average)


@lowering("histc.default")
def histc(rec: Recorder, out: torch.Tensor, x: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0) -> None:
    """Counts the elements in `bins` equal parts of [min, max]. Elements outside are not counted."""
    if not min < max:
        raise UnsupportedOp("histc without a range has no lowering. Try: give it min and max, with min < max")
    view = rec.read(x)
    values = View(view.tensor, (bins, *view.shape), (0, *view.strides), view.offset)
    low, high = float(min), float(max)

    def build(a: Val) -> Val:
        a = a.to(F32)
        place = ((a - low) * (bins / (high - low))).to(I32).binary("min", bins - 1)
        inside = a.ge(low).both(a.le(high))
        return inside.both(place.eq(iota(a.builder, 0))).to(F32).reduce("sum")

    rec.bind_dense(out, fold(rec, values, tuple(range(1, x.dim() + 1)), build))


# ── softmax ───────────────────────────────────────────────────────────────────────────────────────


@lowering("_softmax.default", "_log_softmax.default", "_safe_softmax.default")
def softmax(rec: Recorder, out: torch.Tensor, x: torch.Tensor, dim: int, *rest: object, **options: object) -> None:
    view, axes = rec.read(x), axes_of(x, dim)
    rec.bind(out, softmax_view(rec, view, axes, "_log" in rec.torch_op, "_safe" in rec.torch_op))


def softmax_view(rec: Recorder, x: View, axes: tuple[int, ...], log: bool, safe: bool = False) -> View:
    """Adds a softmax, or its logarithm. With `safe`, a row of -inf gives zeros."""
    if not axes:
        return rec.map(x.shape, [x], lambda a: a - a if log else a - a + 1.0)
    top = keepdim(fold(rec, x, axes, lambda a: a.to(F32).reduce("max_of")), x.shape, axes)
    norm = keepdim(fold(rec, x, axes, lambda a, m: (a.to(F32) - m).unary("exp").reduce("sum"), [top]), x.shape, axes)

    def build(a: Val, m: Val, s: Val) -> Val:
        if log:
            return (a.to(F32) - m) - s.unary("log")
        soft = (a.to(F32) - m).unary("exp") / s
        return m.eq(-math.inf).where(0.0, soft) if safe else soft

    return rec.map(x.shape, [x, top, norm], build)


@lowering("_softmax_backward_data.default")
def softmax_backward(rec: Recorder, out: torch.Tensor, g: torch.Tensor, y: torch.Tensor, dim: int, *_: object) -> None:
    gv, yv, axes = rec.read(g), rec.read(y), axes_of(y, dim)
    dot = keepdim(fold(rec, gv, axes, lambda a, b: (a * b).reduce("sum"), [yv]), yv.shape, axes)
    rec.bind(out, rec.map(yv.shape, [gv, yv, dot], lambda a, b, d: b * (a - d)))


@lowering("_log_softmax_backward_data.default")
def log_softmax_backward(
    rec: Recorder, out: torch.Tensor, g: torch.Tensor, y: torch.Tensor, dim: int, *_: object
) -> None:
    gv, yv, axes = rec.read(g), rec.read(y), axes_of(y, dim)
    total = keepdim(fold(rec, gv, axes, lambda a: a.reduce("sum")), yv.shape, axes)
    rec.bind(out, rec.map(yv.shape, [gv, yv, total], lambda a, b, s: a - b.unary("exp") * s))

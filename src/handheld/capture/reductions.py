"""Reductions, softmax, normalisation and the losses that gather.

Each is written as plain reduce and map nodes; the fusion pass joins them into one kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from handheld.capture.record import Recorder, expand
from handheld.capture.registry import lowering
from handheld.capture.state import ir_dtype
from handheld.capture.values import Val, gather, iota, linear_index
from handheld.graph.graph import View, contiguous_strides
from handheld.graph.program import Builder


def axes_of(x: torch.Tensor, dim: Any) -> tuple[int, ...]:
    """Reduced dimensions; none given means all."""
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return tuple(range(x.dim()))
    dims = [dim] if isinstance(dim, int) else dim
    return tuple(sorted({d % x.dim() for d in dims})) if x.dim() else ()


def keepdim(view: View, shape: Sequence[int], axes: Sequence[int]) -> View:
    """A reduced result as an operand over `shape`: stride 0 along the reduced axes."""
    strides = iter(view.strides)
    return View(view.tensor, tuple(shape),
                tuple(0 if d in set(axes) else next(strides) for d in range(len(shape))), view.offset)


def fold(rec: Recorder, x: View, axes: Sequence[int], build: Callable[..., Val], more: Sequence[View] = ()) -> View:
    return rec.reduce(x.shape, axes, [x, *more], build)


def finish(rec: Recorder, out: torch.Tensor, view: View) -> None:
    """Binds a reduced view; keepdim changes the shape only."""
    shape = tuple(out.shape)
    rec.bind(out, View(view.tensor, shape, contiguous_strides(shape), 0))


@lowering("sum.default", "sum.dim_IntList")
def total(rec: Recorder, out: torch.Tensor, x: torch.Tensor, dim: Any = None, keepdim: bool = False, *,
          dtype: Any = None) -> None:
    kind = ir_dtype(out.dtype)
    finish(rec, out, fold(rec, rec.read(x), axes_of(x, dim), lambda a: a.to(kind).reduce("sum")))


@lowering("mean.default", "mean.dim")
def mean(rec: Recorder, out: torch.Tensor, x: torch.Tensor, dim: Any = None, keepdim: bool = False, *,
         dtype: Any = None) -> None:
    axes = axes_of(x, dim)
    count = math.prod(x.shape[a] for a in axes)
    scale = 1.0 / count if count else math.nan
    finish(rec, out, fold(rec, rec.read(x), axes, lambda a: a.to("f32").reduce("sum") * scale))


@lowering("prod.default", "prod.dim_int")
def prod(rec: Recorder, out: torch.Tensor, x: torch.Tensor, dim: Any = None, keepdim: bool = False, *,
         dtype: Any = None) -> None:
    kind = ir_dtype(out.dtype)
    finish(rec, out, fold(rec, rec.read(x), axes_of(x, dim), lambda a: a.to(kind).reduce("prod")))


@lowering("any.default", "any.dim", "any.dims", "all.default", "all.dim", "all.dims")
def truth(rec: Recorder, out: torch.Tensor, x: torch.Tensor, dim: Any = None, keepdim: bool = False) -> None:
    op = "any_of" if ".any." in rec.source else "all_of"
    finish(rec, out, fold(rec, rec.read(x), axes_of(x, dim), lambda a: a.to("bool").reduce(op)))


@lowering("amax.default", "amin.default", "max.default", "min.default")
def extreme(rec: Recorder, out: torch.Tensor, x: torch.Tensor, dim: Any = None, keepdim: bool = False) -> None:
    op = "max_of" if "max" in rec.source else "min_of"
    finish(rec, out, fold(rec, rec.read(x), axes_of(x, dim), lambda a: a.reduce(op)))


@lowering("argmax.default", "argmin.default")
def arg_extreme(rec: Recorder, out: torch.Tensor, x: torch.Tensor, dim: Any = None, keepdim: bool = False) -> None:
    op = "arg_max" if "argmax" in rec.source else "arg_min"
    finish(rec, out, fold(rec, rec.read(x), axes_of(x, dim), lambda a: a.reduce(op, "i32")))


@lowering("max.dim", "min.dim")
def extreme_dim(rec: Recorder, out: Any, x: torch.Tensor, dim: int, keepdim: bool = False) -> None:
    name = "max" if ".max." in rec.source else "min"
    axes, view = axes_of(x, dim), rec.read(x)

    def build(a: Val) -> list[Val]:
        return [a.reduce(f"{name}_of"), a.reduce(f"arg_{name}", "i32")]

    value, index = rec.loops(view.shape, axes, [view], build)
    finish(rec, out[0], value)
    finish(rec, out[1], index)


def _moments(rec: Recorder, x: View, axes: Sequence[int], correction: float) -> tuple[View, View]:
    """Mean and variance over `axes`, in two passes: exact for data far from zero."""
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
def variance(rec: Recorder, out: torch.Tensor, x: torch.Tensor, dim: Any = None, *args: Any, **options: Any) -> None:
    if isinstance(dim, bool):
        dim, args = None, (dim, *args)
    _, view = _moments(rec, rec.read(x), axes_of(x, dim), _correction(args[:1], options))
    if ".std." in rec.source:
        view = rec.map(view.shape, [view], lambda a: a.unary("sqrt"))
    finish(rec, out, view)


@lowering("var_mean.correction", "var_mean.dim", "var_mean.default")
def var_mean(rec: Recorder, out: Any, x: torch.Tensor, dim: Any = None, *args: Any, **options: Any) -> None:
    average, view = _moments(rec, rec.read(x), axes_of(x, dim), _correction(args[:1], options))
    finish(rec, out[0], view)
    finish(rec, out[1], average)


# ── softmax ───────────────────────────────────────────────────────────────────────────────────────


@lowering("_softmax.default", "_log_softmax.default", "_safe_softmax.default")
def softmax(rec: Recorder, out: torch.Tensor, x: torch.Tensor, dim: int, *rest: Any, **options: Any) -> None:
    view, axes = rec.read(x), axes_of(x, dim)
    rec.bind(out, softmax_view(rec, view, axes, "_log" in rec.source, "_safe" in rec.source))


def softmax_view(rec: Recorder, x: View, axes: tuple[int, ...], log: bool, safe: bool = False) -> View:
    if not axes:
        return rec.map(x.shape, [x], lambda a: a - a if log else a - a + 1.0)
    top = keepdim(fold(rec, x, axes, lambda a: a.to("f32").reduce("max_of")), x.shape, axes)
    norm = keepdim(
        fold(rec, x, axes, lambda a, m: (a.to("f32") - m).unary("exp").reduce("sum"), [top]), x.shape, axes)

    def build(a: Val, m: Val, s: Val) -> Val:
        if log:
            return (a.to("f32") - m) - s.unary("log")
        soft = (a.to("f32") - m).unary("exp") / s
        # a row that is masked everywhere gives zeros, not NaN
        return m.eq(-math.inf).where(0.0, soft) if safe else soft

    return rec.map(x.shape, [x, top, norm], build)


@lowering("_softmax_backward_data.default")
def softmax_backward(rec: Recorder, out: torch.Tensor, g: torch.Tensor, y: torch.Tensor, dim: int, *_: Any) -> None:
    gv, yv, axes = rec.read(g), rec.read(y), axes_of(y, dim)
    dot = keepdim(fold(rec, gv, axes, lambda a, b: (a * b).reduce("sum"), [yv]), yv.shape, axes)
    rec.bind(out, rec.map(yv.shape, [gv, yv, dot], lambda a, b, d: b * (a - d)))


@lowering("_log_softmax_backward_data.default")
def log_softmax_backward(rec: Recorder, out: torch.Tensor, g: torch.Tensor, y: torch.Tensor, dim: int, *_: Any) -> None:
    gv, yv, axes = rec.read(g), rec.read(y), axes_of(y, dim)
    total = keepdim(fold(rec, gv, axes, lambda a: a.reduce("sum")), yv.shape, axes)
    rec.bind(out, rec.map(yv.shape, [gv, yv, total], lambda a, b, s: a - b.unary("exp") * s))


# ── normalisation ─────────────────────────────────────────────────────────────────────────────────


def _along(rec: Recorder, vector: torch.Tensor | None, shape: Sequence[int], dim: int) -> View | None:
    """A per-channel vector as an operand over `shape`."""
    if vector is None:
        return None
    view = rec.read(vector)
    strides = tuple(view.strides[0] if d == dim else 0 for d in range(len(shape)))
    return View(view.tensor, tuple(shape), strides, view.offset)


def _affine(rec: Recorder, x: View, average: View, rstd: View, weight: View | None, bias: View | None) -> View:
    given = [v for v in (weight, bias) if v is not None]

    def build(a: Val, m: Val, r: Val, *rest: Val) -> Val:
        y = (a - m) * r
        left = list(rest)
        if weight is not None:
            y = y * left.pop(0)
        return y + left.pop(0) if bias is not None else y

    return rec.map(x.shape, [x, average, rstd, *given], build)


@lowering("native_batch_norm.default", "_native_batch_norm_legit.default", "_native_batch_norm_legit.no_stats")
def batch_norm(rec: Recorder, out: Any, x: torch.Tensor, weight: Any, bias: Any, *rest: Any) -> None:
    running_mean, running_var = (rest[0], rest[1]) if len(rest) == 5 else (None, None)
    training, momentum, eps = rest[-3:]
    view = rec.read(x)
    axes = tuple(d for d in range(x.dim()) if d != 1)
    count = math.prod(x.shape[a] for a in axes)
    if training:
        average, variance_ = _moments(rec, view, axes, 0)
        rstd = rec.map(variance_.shape, [variance_], lambda v: (v + float(eps)).unary("rsqrt"))
        _update_running(rec, running_mean, average, momentum, 1.0)
        _update_running(rec, running_var, variance_, momentum, count / max(count - 1, 1))
        finish(rec, out[1], average)
        finish(rec, out[2], rstd)
    else:
        average = rec.read(running_mean)
        v = rec.read(running_var)
        rstd = rec.map(v.shape, [v], lambda a: (a + float(eps)).unary("rsqrt"))
    wide = [keepdim(s, view.shape, axes) for s in (average, rstd)]
    rec.bind(out[0], _affine(rec, view, *wide, _along(rec, weight, view.shape, 1),
                             _along(rec, bias, view.shape, 1)))


def _update_running(rec: Recorder, running: torch.Tensor | None, new: View, momentum: float, scale: float) -> None:
    if running is None:
        return
    old = rec.read(running)
    m = float(momentum)
    value = rec.map(old.shape, [old, new], lambda a, b: a * (1 - m) + b * (m * scale))
    with torch.utils._python_dispatch._disable_current_modes():
        holder = torch.empty(running.shape, dtype=running.dtype, device="meta")
    rec.bind(holder, value)
    rec.write(running, holder)


@lowering("native_batch_norm_backward.default")
def batch_norm_backward(rec: Recorder, out: Any, g: torch.Tensor, x: torch.Tensor, weight: Any, running_mean: Any,
                        running_var: Any, save_mean: Any, save_rstd: Any, train: bool, eps: float,
                        mask: Sequence[bool]) -> None:
    gv, xv = rec.read(g), rec.read(x)
    axes = tuple(d for d in range(x.dim()) if d != 1)
    count = math.prod(x.shape[a] for a in axes)
    if train:
        average, rstd = rec.read(save_mean), rec.read(save_rstd)
    else:
        average = rec.read(running_mean)
        v = rec.read(running_var)
        rstd = rec.map(v.shape, [v], lambda a: (a + float(eps)).unary("rsqrt"))
    m, r = keepdim(average, xv.shape, axes), keepdim(rstd, xv.shape, axes)
    total = fold(rec, gv, axes, lambda a: a.reduce("sum"))
    dot = fold(rec, gv, axes, lambda a, b, mm, rr: (a * ((b - mm) * rr)).reduce("sum"), [xv, m, r])
    if mask[0]:
        w = _along(rec, weight, xv.shape, 1)
        t, d = keepdim(total, xv.shape, axes), keepdim(dot, xv.shape, axes)
        operands = [gv, xv, m, r, t, d] if train else [gv, r]

        def build(*vals: Val) -> Val:
            if train:
                a, b, mm, rr, tt, dd = vals[:6]
                y = (a - tt * (1.0 / count) - (b - mm) * rr * (dd * (1.0 / count))) * rr
            else:
                y = vals[0] * vals[1]
            return y * vals[-1] if w is not None else y

        rec.bind(out[0], rec.map(xv.shape, operands + ([w] if w is not None else []), build))
    if mask[1]:
        finish(rec, out[1], dot)
    if mask[2]:
        finish(rec, out[2], total)


@lowering("native_layer_norm.default")
def layer_norm(rec: Recorder, out: Any, x: torch.Tensor, shape: Sequence[int], weight: Any, bias: Any, eps: float) -> None:
    view = rec.read(x)
    axes = tuple(range(x.dim() - len(shape), x.dim()))
    average, var = _moments(rec, view, axes, 0)
    rstd = rec.map(var.shape, [var], lambda a: (a + float(eps)).unary("rsqrt"))
    wide = [keepdim(s, view.shape, axes) for s in (average, rstd)]
    vectors = [None if t is None else expand(rec.read(t), view.shape) for t in (weight, bias)]
    rec.bind(out[0], _affine(rec, view, *wide, *vectors))
    finish(rec, out[1], average)
    finish(rec, out[2], rstd)


@lowering("native_layer_norm_backward.default")
def layer_norm_backward(rec: Recorder, out: Any, g: torch.Tensor, x: torch.Tensor, shape: Sequence[int],
                        average: torch.Tensor, rstd: torch.Tensor, weight: Any, bias: Any, mask: Sequence[bool]) -> None:
    gv, xv = rec.read(g), rec.read(x)
    axes = tuple(range(x.dim() - len(shape), x.dim()))
    lead = tuple(range(x.dim() - len(shape)))
    count = math.prod(x.shape[a] for a in axes)
    m, r = expand(rec.read(average), xv.shape), expand(rec.read(rstd), xv.shape)
    w = None if weight is None else expand(rec.read(weight), xv.shape)
    more = [] if w is None else [w]
    scaled = (lambda a, rest: a * rest[0]) if w is not None else (lambda a, rest: a)
    if mask[0]:
        total = keepdim(fold(rec, gv, axes, lambda a, *ws: scaled(a, ws).reduce("sum"), more), xv.shape, axes)
        dot = keepdim(fold(rec, gv, axes, lambda a, b, mm, rr, *ws: (scaled(a, ws) * ((b - mm) * rr)).reduce("sum"),
                           [xv, m, r, *more]), xv.shape, axes)
        rec.bind(out[0], rec.map(
            xv.shape, [gv, xv, m, r, total, dot, *more],
            lambda a, b, mm, rr, t, d, *ws: (scaled(a, ws) - t * (1.0 / count) - (b - mm) * rr * (d * (1.0 / count))) * rr))
    if mask[1]:
        _vector_sum(rec, out[1], gv, lead, [xv, m, r], lambda a, b, mm, rr: a * ((b - mm) * rr))
    if mask[2]:
        _vector_sum(rec, out[2], gv, lead, [], lambda a: a)


def _vector_sum(rec: Recorder, out: torch.Tensor, g: View, lead: tuple[int, ...], more: Sequence[View],
                build: Callable[..., Val]) -> None:
    finish(rec, out, fold(rec, g, lead, lambda *v: build(*v).reduce("sum"), more))


# ── losses that pick an element ───────────────────────────────────────────────────────────────────


def _picked(b: Builder, target: Val, ignore: int, position: Callable[[Val], Val], operand: int,
            weight: int | None) -> tuple[Val, Val]:
    """-log p of the target class times its weight, and the weight; both 0 where it is ignored."""
    valid = target.ne(ignore)
    safe = valid.where(target, 0)
    value = -gather(b, operand, "f32", position(safe))
    w = gather(b, weight, "f32", safe) if weight is not None else value.const(1.0, "f32")
    w = valid.where(w, 0.0)
    return valid.where(value * w, 0.0), w


@lowering("nll_loss_forward.default", "nll_loss2d_forward.default")
def nll_loss(rec: Recorder, out: Any, x: torch.Tensor, target: torch.Tensor, weight: Any, reduction: int, ignore: int) -> None:
    probs = rec.contiguous(rec.read(x))
    classes = x.shape[1] if x.dim() > 1 else x.shape[0]
    space = tuple(target.shape)
    table = [probs] + ([rec.contiguous(rec.read(weight))] if weight is not None else [])
    plane = math.prod(x.shape[2:])

    def position(b: Builder, t: Val) -> Val:
        if x.dim() == 1:
            return t
        inside = None
        for d in range(1, len(space)):
            inside = iota(b, d) if inside is None else inside * space[d] + iota(b, d)
        index = (iota(b, 0) * classes + t) * plane
        return index if inside is None else index + inside

    def parts(b: Builder, t: Val) -> tuple[Val, Val]:
        return _picked(b, t, ignore, lambda s: position(b, s), 1, 2 if weight is not None else None)

    view = rec.read(target)
    axes = tuple(range(len(space)))
    if reduction == 0 and axes:
        loss = rec.map(space, [view], lambda b, t: parts(b, t)[0], gathered=table)
        count = rec.map((), [], lambda b: linear_index(b).to("f32"))
    else:

        def reduced(b: Builder, t: Val) -> list[Val]:
            value, w = (part.reduce("sum") for part in parts(b, t))
            return [value / w if reduction == 1 else value, w]

        loss, count = rec.loops(space, axes, [view], reduced, gathered=table)
    finish(rec, out[0], loss)
    finish(rec, out[1], count)


@lowering("nll_loss_backward.default", "nll_loss2d_backward.default")
def nll_loss_backward(rec: Recorder, out: torch.Tensor, g: torch.Tensor, x: torch.Tensor, target: torch.Tensor,
                      weight: Any, reduction: int, ignore: int, total_weight: torch.Tensor) -> None:
    shape = tuple(x.shape)
    channel = 1 if x.dim() > 1 else 0
    t = rec.read(target)
    strides = list(t.strides)
    strides.insert(channel, 0)
    target_view = View(t.tensor, shape, tuple(strides), t.offset)
    grad = rec.read(g)
    if reduction == 0 and target.dim():
        strides = list(grad.strides)
        strides.insert(channel, 0)
        grad = View(grad.tensor, shape, tuple(strides), grad.offset)
    operands = [target_view, grad]
    if reduction == 1:
        operands.append(rec.read(total_weight))
    if weight is not None:
        operands.append(_along(rec, weight, shape, channel))  # type: ignore[arg-type]

    def build(tv: Val, gv: Val, *rest: Val) -> Val:
        left = list(rest)
        value = -gv
        if reduction == 1:
            value = value / left.pop(0)
        if weight is not None:
            value = value * left.pop(0)
        return tv.eq(iota(tv.builder, channel)).both(tv.ne(ignore)).where(value, 0.0)

    rec.bind(out, rec.map(shape, operands, build))


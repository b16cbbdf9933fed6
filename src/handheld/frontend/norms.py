"""Lowerings of batch, layer and group norm, as reduce and map nodes that are fused later."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from handheld.frontend.aten import MaybeTensor, Results
from handheld.frontend.layout import expand
from handheld.frontend.record import Recorder
from handheld.frontend.reductions import fold, keepdim, moments
from handheld.frontend.registry import lowering
from handheld.frontend.values import Val
from handheld.graph.graph import View


def along(rec: Recorder, vector: torch.Tensor | None, shape: Sequence[int], dim: int) -> View | None:
    """Views a vector with one element per channel as an operand over `shape`."""
    if vector is None:
        return None
    view = rec.read(vector)
    strides = tuple(view.strides[0] if d == dim else 0 for d in range(len(shape)))
    return View(view.tensor, tuple(shape), strides, view.offset)


def _statistics(rec: Recorder, x: View, axes: Sequence[int], eps: float) -> tuple[View, View]:
    """Returns the mean over `axes` and 1 / the standard deviation."""
    average, var = moments(rec, x, axes, 0)
    return average, rec.map(var.shape, [var], lambda a: (a + float(eps)).unary("rsqrt"))


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
def batch_norm(
    rec: Recorder, out: Results, x: torch.Tensor, weight: MaybeTensor, bias: MaybeTensor, *rest: Any
) -> None:
    stats: tuple[Any, Any] = (rest[0], rest[1]) if len(rest) == 5 else (None, None)
    running_mean, running_var = stats
    training, momentum, eps = rest[-3:]
    view = rec.read(x)
    axes = tuple(d for d in range(x.dim()) if d != 1)
    count = math.prod(x.shape[a] for a in axes)
    if training:
        average, variance_ = moments(rec, view, axes, 0)
        rstd = rec.map(variance_.shape, [variance_], lambda v: (v + float(eps)).unary("rsqrt"))
        _update_running(rec, running_mean, average, momentum, 1.0)
        _update_running(rec, running_var, variance_, momentum, count / max(count - 1, 1))
        rec.bind_dense(out[1], average)
        rec.bind_dense(out[2], rstd)
    else:
        average = rec.read(running_mean)
        v = rec.read(running_var)
        rstd = rec.map(v.shape, [v], lambda a: (a + float(eps)).unary("rsqrt"))
    mean, scale = (keepdim(s, view.shape, axes) for s in (average, rstd))
    w, b = along(rec, weight, view.shape, 1), along(rec, bias, view.shape, 1)
    rec.bind(out[0], _affine(rec, view, mean, scale, w, b))


def _update_running(rec: Recorder, running: torch.Tensor | None, new: View, momentum: float, scale: float) -> None:
    """Writes the running statistic: (1 - momentum) * old + momentum * scale * new."""
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
def batch_norm_backward(
    rec: Recorder,
    out: Results,
    g: torch.Tensor,
    x: torch.Tensor,
    weight: MaybeTensor,
    running_mean: MaybeTensor,
    running_var: MaybeTensor,
    save_mean: MaybeTensor,
    save_rstd: MaybeTensor,
    train: bool,
    eps: float,
    mask: Sequence[bool],
) -> None:
    gv, xv = rec.read(g), rec.read(x)
    axes = tuple(d for d in range(x.dim()) if d != 1)
    count = math.prod(x.shape[a] for a in axes)
    if train:
        assert save_mean is not None and save_rstd is not None
        average, rstd = rec.read(save_mean), rec.read(save_rstd)
    else:
        assert running_mean is not None and running_var is not None
        average = rec.read(running_mean)
        v = rec.read(running_var)
        rstd = rec.map(v.shape, [v], lambda a: (a + float(eps)).unary("rsqrt"))
    m, r = keepdim(average, xv.shape, axes), keepdim(rstd, xv.shape, axes)
    total = fold(rec, gv, axes, lambda a: a.reduce("sum"))
    dot = fold(rec, gv, axes, lambda a, b, mm, rr: (a * ((b - mm) * rr)).reduce("sum"), [xv, m, r])
    if mask[0]:
        w = along(rec, weight, xv.shape, 1)
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
        rec.bind_dense(out[1], dot)
    if mask[2]:
        rec.bind_dense(out[2], total)


@lowering("native_layer_norm.default")
def layer_norm(
    rec: Recorder,
    out: Results,
    x: torch.Tensor,
    shape: Sequence[int],
    weight: MaybeTensor,
    bias: MaybeTensor,
    eps: float,
) -> None:
    view = rec.read(x)
    axes = tuple(range(x.dim() - len(shape), x.dim()))
    average, rstd = _statistics(rec, view, axes, eps)
    wide = [keepdim(s, view.shape, axes) for s in (average, rstd)]
    vectors = [None if t is None else expand(rec.read(t), view.shape) for t in (weight, bias)]
    rec.bind(out[0], _affine(rec, view, *wide, *vectors))
    rec.bind_dense(out[1], average)
    rec.bind_dense(out[2], rstd)


@lowering("native_layer_norm_backward.default")
def layer_norm_backward(
    rec: Recorder,
    out: Results,
    g: torch.Tensor,
    x: torch.Tensor,
    shape: Sequence[int],
    average: torch.Tensor,
    rstd: torch.Tensor,
    weight: MaybeTensor,
    bias: MaybeTensor,
    mask: Sequence[bool],
) -> None:
    gv, xv = rec.read(g), rec.read(x)
    axes = tuple(range(x.dim() - len(shape), x.dim()))
    lead = tuple(range(x.dim() - len(shape)))
    count = math.prod(x.shape[a] for a in axes)
    m, r = expand(rec.read(average), xv.shape), expand(rec.read(rstd), xv.shape)
    w = None if weight is None else expand(rec.read(weight), xv.shape)
    more = [] if w is None else [w]
    if mask[0]:
        total = keepdim(fold(rec, gv, axes, lambda a, *ws: _times(a, ws).reduce("sum"), more), xv.shape, axes)
        dot = keepdim(
            fold(
                rec,
                gv,
                axes,
                lambda a, b, mm, rr, *ws: (_times(a, ws) * ((b - mm) * rr)).reduce("sum"),
                [xv, m, r, *more],
            ),
            xv.shape,
            axes,
        )
        rec.bind(
            out[0],
            rec.map(
                xv.shape,
                [gv, xv, m, r, total, dot, *more],
                lambda a, b, mm, rr, t, d, *ws: (
                    (_times(a, ws) - t * (1.0 / count) - (b - mm) * rr * (d * (1.0 / count))) * rr
                ),
            ),
        )
    if mask[1]:
        _vector_sum(rec, out[1], gv, lead, [xv, m, r], lambda a, b, mm, rr: a * ((b - mm) * rr))
    if mask[2]:
        _vector_sum(rec, out[2], gv, lead, [], lambda a: a)


def _vector_sum(
    rec: Recorder, out: torch.Tensor, g: View, lead: tuple[int, ...], more: Sequence[View], build: Callable[..., Val]
) -> None:
    rec.bind_dense(out, fold(rec, g, lead, lambda *v: build(*v).reduce("sum"), more))


# ── group norm: layer norm over the channels of a group ──────────────────────────────────────────


def _grouped(view: View, groups: int) -> View:
    """Views [n, c, ...] as [n, groups, c / groups, ...]."""
    inner = view.shape[1] // groups
    return View(
        view.tensor,
        (view.shape[0], groups, inner, *view.shape[2:]),
        (view.strides[0], inner * view.strides[1], view.strides[1], *view.strides[2:]),
        view.offset,
    )


def _per_group(view: View, shape: Sequence[int]) -> View:
    """Views [n, groups] over the grouped shape."""
    return View(view.tensor, tuple(shape), (*view.strides, *(0,) * (len(shape) - 2)), view.offset)


def _per_channel(rec: Recorder, vector: torch.Tensor | None, shape: Sequence[int]) -> View | None:
    if vector is None:
        return None
    view = rec.read(vector)
    step = view.strides[0]
    return View(view.tensor, tuple(shape), (0, shape[2] * step, step, *(0,) * (len(shape) - 3)), view.offset)


@lowering("native_group_norm.default")
def group_norm(
    rec: Recorder,
    out: Results,
    x: torch.Tensor,
    weight: MaybeTensor,
    bias: MaybeTensor,
    n: int,
    c: int,
    plane: int,
    groups: int,
    eps: float,
) -> None:
    view = _grouped(rec.read(x), groups)
    axes = tuple(range(2, len(view.shape)))
    average, rstd = _statistics(rec, view, axes, eps)
    wide = [_per_group(s, view.shape) for s in (average, rstd)]
    vectors = [_per_channel(rec, t, view.shape) for t in (weight, bias)]
    rec.bind_dense(out[0], _affine(rec, view, *wide, *vectors))
    rec.bind_dense(out[1], average)
    rec.bind_dense(out[2], rstd)


@lowering("native_group_norm_backward.default")
def group_norm_backward(
    rec: Recorder,
    out: Results,
    g: torch.Tensor,
    x: torch.Tensor,
    average: torch.Tensor,
    rstd: torch.Tensor,
    weight: MaybeTensor,
    n: int,
    c: int,
    plane: int,
    groups: int,
    mask: Sequence[bool],
) -> None:
    gv, xv = _grouped(rec.read(g), groups), _grouped(rec.read(x), groups)
    shape = xv.shape
    axes, lead = tuple(range(2, len(shape))), (0, *range(3, len(shape)))
    scale = 1.0 / max(math.prod(shape[2:]), 1)
    m, r = _per_group(rec.read(average), shape), _per_group(rec.read(rstd), shape)
    w = _per_channel(rec, weight, shape)
    more = [] if w is None else [w]
    if mask[0]:
        total = keepdim(fold(rec, gv, axes, lambda a, *ws: _times(a, ws).reduce("sum"), more), shape, axes)
        dot = keepdim(
            fold(
                rec,
                gv,
                axes,
                lambda a, b, mm, rr, *ws: (_times(a, ws) * ((b - mm) * rr)).reduce("sum"),
                [xv, m, r, *more],
            ),
            shape,
            axes,
        )
        rec.bind_dense(
            out[0],
            rec.map(
                shape,
                [gv, xv, m, r, total, dot, *more],
                lambda a, b, mm, rr, t, d, *ws: (_times(a, ws) - t * scale - (b - mm) * rr * (d * scale)) * rr,
            ),
        )
    if mask[1]:
        _vector_sum(rec, out[1], gv, lead, [xv, m, r], lambda a, b, mm, rr: a * ((b - mm) * rr))
    if mask[2]:
        _vector_sum(rec, out[2], gv, lead, [], lambda a: a)


def _times(value: Val, factors: Sequence[Val]) -> Val:
    return value * factors[0] if factors else value

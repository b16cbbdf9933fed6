"""Lowerings of the negative log likelihood loss, which cross entropy uses."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from handheld.frontend.aten import MaybeTensor, Results
from handheld.frontend.norms import along
from handheld.frontend.record import Recorder
from handheld.frontend.registry import lowering
from handheld.frontend.values import Val, gather, iota, linear_index
from handheld.graph.dtypes import F32
from handheld.graph.graph import View
from handheld.graph.program import Builder


def _picked(
    b: Builder, target: Val, ignore: int, position: Callable[[Val], Val], operand: int, weight: int | None
) -> tuple[Val, Val]:
    """Returns -log p of the target class times its weight, and the weight. Both are 0 for ignored targets."""
    valid = target.ne(ignore)
    safe = valid.where(target, 0)
    value = -gather(b, operand, F32, position(safe))
    w = gather(b, weight, F32, safe) if weight is not None else value.const(1.0, F32)
    w = valid.where(w, 0.0)
    return valid.where(value * w, 0.0), w


@lowering("nll_loss_forward.default", "nll_loss2d_forward.default")
def nll_loss(
    rec: Recorder, out: Results, x: torch.Tensor, target: torch.Tensor, weight: MaybeTensor, reduction: int, ignore: int
) -> None:
    probs = rec.contiguous(rec.read(x))
    classes = x.shape[1] if x.dim() > 1 else x.shape[0]
    rec.note_range(target, 0, classes, ignore)
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
        count = rec.map((), [], lambda b: linear_index(b).to(F32))
    else:

        def reduced(b: Builder, t: Val) -> list[Val]:
            value, w = (part.reduce("sum") for part in parts(b, t))
            return [value / w if reduction == 1 else value, w]

        loss, count = rec.loops(space, axes, [view], reduced, gathered=table)
    rec.bind_dense(out[0], loss)
    rec.bind_dense(out[1], count)


@lowering("nll_loss_backward.default", "nll_loss2d_backward.default")
def nll_loss_backward(
    rec: Recorder,
    out: torch.Tensor,
    g: torch.Tensor,
    x: torch.Tensor,
    target: torch.Tensor,
    weight: MaybeTensor,
    reduction: int,
    ignore: int,
    total_weight: torch.Tensor,
) -> None:
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
        operands.append(along(rec, weight, shape, channel))  # type: ignore[arg-type]

    def build(tv: Val, gv: Val, *rest: Val) -> Val:
        left = list(rest)
        value = -gv
        if reduction == 1:
            value = value / left.pop(0)
        if weight is not None:
            value = value * left.pop(0)
        return tv.eq(iota(tv.builder, channel)).both(tv.ne(ignore)).where(value, 0.0)

    rec.bind(out, rec.map(shape, operands, build))

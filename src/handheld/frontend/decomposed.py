"""Decompositions of ops into other PyTorch ops, where PyTorch's own table has none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from handheld.frontend.registry import decomposed

T = torch.Tensor


# ── pointwise ────────────────────────────────────────────────────────────────────────────────────


@decomposed("softshrink_backward.default", "hardshrink_backward.default")
def shrink_backward(g: T, x: T, lambd: float) -> T:
    return torch.where(x.abs() > lambd, g, 0.0)


@decomposed("rrelu_with_noise.default")
def rrelu(
    x: T,
    noise: T,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    generator: torch.Generator | None = None,
) -> T:
    if not training:
        return torch.where(x > 0, x, x * ((lower + upper) / 2))
    slope = torch.where(x > 0, 1.0, torch.rand_like(x) * (upper - lower) + lower)
    noise.copy_(slope)
    return x * slope


@decomposed("hypot.default")
def hypot(a: T, b: T) -> T:
    return (a * a + b * b).sqrt()


@decomposed("signbit.default")
def signbit(x: T) -> T:
    return (x < 0) | ((x == 0) & (torch.reciprocal(x) < 0)) if x.dtype.is_floating_point else x < 0


@decomposed("copysign.Tensor", "copysign.Scalar")
def copysign(a: T, b: T | float) -> T:
    negative = signbit(b) if isinstance(b, T) else math.copysign(1.0, b) < 0
    size = a.abs()
    return torch.where(negative, -size, size) if isinstance(negative, T) else (-size if negative else size)


@decomposed("fmax.default")
def fmax(a: T, b: T) -> T:
    return torch.where(torch.isnan(a), b, torch.where(torch.isnan(b), a, torch.maximum(a, b)))


@decomposed("fmin.default")
def fmin(a: T, b: T) -> T:
    return torch.where(torch.isnan(a), b, torch.where(torch.isnan(b), a, torch.minimum(a, b)))


@decomposed("round.decimals")
def round_decimals(x: T, *, decimals: int) -> T:
    scale = 10.0 ** abs(decimals)
    return (x * scale).round() / scale if decimals > 0 else (x / scale).round() * scale


@decomposed("angle.default")
def angle(x: T) -> T:
    return torch.where(torch.isnan(x), x, torch.where(x < 0, math.pi, 0.0))


@decomposed("_is_all_true.default")
def is_all_true(x: T) -> T:
    return x.all()


@decomposed("_is_any_true.default")
def is_any_true(x: T) -> T:
    return x.any()


@decomposed("fake_quantize_per_tensor_affine_cachemask.default")
def fake_quantize(x: T, scale: T | float, zero: T | int, low: int, high: int) -> tuple[T, T]:
    """Returns x rounded to the levels between `low` and `high`, and a mask of the elements that were not clamped."""
    level = (x * (1 / scale) + zero).round()
    return (level.clamp(low, high) - zero) * scale, (level >= low) & (level <= high)


@decomposed("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default")
def fake_quantize_tensors(x: T, scale: T, zero: T, enabled: T, low: int, high: int) -> tuple[T, T]:
    rounded, inside = fake_quantize(x, scale, zero, low, high)
    on = enabled > 0
    return torch.where(on, rounded, x), inside | ~on


@decomposed("fake_quantize_per_channel_affine_cachemask.default")
def fake_quantize_channels(x: T, scale: T, zero: T, axis: int, low: int, high: int) -> tuple[T, T]:
    shape = [-1 if d == axis else 1 for d in range(x.dim())]
    return fake_quantize(x, scale.view(shape), zero.view(shape), low, high)  # type: ignore[no-any-return]


# ── products and distances ───────────────────────────────────────────────────────────────────────


@decomposed("_trilinear.default")
def trilinear(
    a: T,
    b: T,
    c: T,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> T:
    """Computes the sum of a * b * c over `sumdim`. Each factor first gets new dimensions at its `expand`."""
    grown = []
    for tensor, dims in ((a, expand1), (b, expand2), (c, expand3)):
        for dim in sorted(dims):
            tensor = tensor.unsqueeze(dim)
        grown.append(tensor)
    product = grown[0] * grown[1] * grown[2]
    return product.sum(list(sumdim)) if sumdim else product


@decomposed("addbmm.default")
def addbmm(c: T, a: T, b: T, *, beta: float = 1, alpha: float = 1) -> T:
    return c * beta + torch.bmm(a, b).sum(0) * alpha


@decomposed("_pdist_forward.default")
def pdist(x: T, p: float = 2) -> T:
    first, second = torch.triu_indices(x.shape[0], x.shape[0], 1).unbind(0)
    distance: T = torch.linalg.vector_norm(x[first] - x[second], p, -1)
    return distance


@decomposed("_pdist_backward.default")
def pdist_backward(g: T, x: T, p: float, distance: T) -> T:
    first, second = torch.triu_indices(x.shape[0], x.shape[0], 1).unbind(0)
    slope = _slope(x[first] - x[second], distance.unsqueeze(-1), p) * g.unsqueeze(-1)
    return torch.zeros_like(x).index_add(0, first, slope).index_add(0, second, -slope)


@decomposed("_cdist_forward.default")
def cdist(a: T, b: T, p: float, mode: int | None) -> T:
    gap = (a.unsqueeze(-2) - b.unsqueeze(-3)).abs()
    if p == 2:
        return gap.square().sum(-1).sqrt()
    if p == 0:
        return (gap != 0).to(a.dtype).sum(-1)
    if math.isinf(p):
        return gap.amax(-1)
    return gap.sum(-1) if p == 1 else gap.pow(p).sum(-1).pow(1 / p)


@decomposed("_cdist_backward.default")
def cdist_backward(g: T, a: T, b: T, p: float, distance: T) -> T:
    slope = _slope(a.unsqueeze(-2) - b.unsqueeze(-3), distance.unsqueeze(-1), p)
    return (g.unsqueeze(-1) * slope).sum(-2)


def _slope(gap: T, far: T, p: float) -> T:
    """Returns the derivative of the p-norm of `gap`. The norm itself is `far`."""
    if p == 0:
        return torch.zeros_like(gap)
    if p == 1:
        return gap.sign()
    if math.isinf(p):
        return gap.sign() * (gap.abs() == far)
    return torch.where(far == 0, 0.0, gap.sign() * gap.abs().pow(p - 1) / far.pow(p - 1))


@decomposed("_weight_norm_interface_backward.default")
def weight_norm_backward(g: T, v: T, scale: T, norms: T, dim: int) -> tuple[T, T]:
    others = [d for d in range(v.dim()) if d != dim]
    along = (g * v).sum(others, keepdim=True)
    norms, shaped = norms.reshape(along.shape), scale.reshape(along.shape)
    return (shaped / norms) * (g - v * (along / (norms * norms))), (along / norms).reshape(scale.shape)


# ── order ────────────────────────────────────────────────────────────────────────────────────────


@decomposed("kthvalue.default")
def kthvalue(x: T, k: int, dim: int = -1, keepdim: bool = False) -> tuple[T, T]:
    if x.dim() == 0:
        return x.clone(), torch.zeros((), dtype=torch.int64)
    values, order = torch.sort(x, dim=dim, stable=True)
    picked = values.narrow(dim, k - 1, 1), order.narrow(dim, k - 1, 1)
    return picked if keepdim else (picked[0].squeeze(dim), picked[1].squeeze(dim))


@decomposed("median.dim")
def median_dim(x: T, dim: int, keepdim: bool = False) -> tuple[T, T]:
    return kthvalue(x, (x.shape[dim] + 1) // 2 if x.dim() else 1, dim, keepdim)  # type: ignore[no-any-return]


@decomposed("median.default")
def median(x: T) -> T:
    flat = x.reshape(-1)
    return torch.sort(flat).values[(flat.shape[0] - 1) // 2].clone()


@decomposed("logcumsumexp.default")
def logcumsumexp(x: T, dim: int) -> T:
    if x.dim() == 0 or x.numel() == 0:
        return x.clone()
    top = x.amax(dim, keepdim=True)
    top = torch.where(top.abs() == math.inf, 0.0, top)
    return (x - top).exp().cumsum(dim).log() + top


@decomposed("searchsorted.Tensor", "searchsorted.Scalar")
def searchsorted(
    sequence: T,
    values: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: T | None = None,
) -> T:
    """Counts the elements of the sorted sequence that come before each value."""
    if sorter is not None:
        sequence = sequence.gather(-1, sorter)
    v = values if isinstance(values, T) else torch.full((), values, dtype=sequence.dtype)
    line = sequence.unsqueeze(-2) if sequence.dim() > 1 else sequence
    after = right or side == "right"
    before = line <= v.unsqueeze(-1) if after else line < v.unsqueeze(-1)
    return before.sum(-1).to(torch.int32 if out_int32 else torch.int64)


# ── scattering ───────────────────────────────────────────────────────────────────────────────────


@decomposed("masked_scatter.default")
def masked_scatter(x: T, mask: T, source: T) -> T:
    """Puts the elements of `source`, in order, where the mask is true."""
    x, mask = torch.broadcast_tensors(x, mask)  # type: ignore[no-untyped-call]
    place = mask.reshape(-1).cumsum(0) - 1
    picked = source.reshape(-1)[place.clamp(0, max(source.numel() - 1, 0))]
    return torch.where(mask, picked.reshape(x.shape), x)


@decomposed("masked_scatter_backward.default")
def masked_scatter_backward(g: T, mask: T, sizes: Sequence[int]) -> T:
    mask = mask.expand(g.shape)
    place = mask.reshape(-1).cumsum(0) - 1
    size = math.prod(sizes)
    flat = torch.where(mask, g, 0.0).reshape(-1)
    return torch.zeros(size, dtype=g.dtype).index_add(0, place.clamp(0, max(size - 1, 0)), flat).reshape(tuple(sizes))


@decomposed("put.default")
def put(x: T, index: T, source: T, accumulate: bool = False) -> T:
    flat = x.reshape(-1).index_put((index.reshape(-1),), source.reshape(-1), accumulate)
    return flat.reshape(x.shape)


@decomposed("scatter_reduce.two")
def scatter_reduce(x: T, dim: int, index: T, src: T, reduce: str, *, include_self: bool = True) -> T:
    if x.dim() == 0:
        x, index, src = x.reshape(1), index.reshape(1), src.reshape(1)
        return scatter_reduce(x, 0, index, src, reduce, include_self=include_self).reshape(())  # type: ignore[no-any-return]
    start = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "amax": -math.inf, "amin": math.inf}[reduce]
    region = [slice(0, n) for n in index.shape]
    src = src[region] if src.shape != index.shape else src
    base = x if include_self else x.scatter(dim, index, _fit(start, x.dtype))
    if reduce in ("sum", "mean"):
        total = base.scatter_add(dim, index, src)
        if reduce == "sum":
            return total
        count = torch.full_like(x, 1 if include_self else 0).scatter_add(dim, index, torch.ones_like(src)).clamp(min=1)
        return total / count if x.dtype.is_floating_point else total // count
    # Compare every target with every source, because there is no atomic maximum.
    dim = dim % x.dim()
    part = x[tuple(slice(None) if d == dim else slice(0, n) for d, n in enumerate(index.shape))]
    line = torch.arange(x.shape[dim]).reshape([-1 if d == dim else 1 for d in range(x.dim())])
    hits = index.unsqueeze(-1).transpose(dim, -1) == line.unsqueeze(-1)
    values = torch.where(hits, src.unsqueeze(-1).transpose(dim, -1), _fit(start, x.dtype))
    reduced = {"amax": lambda: values.amax(-1), "amin": lambda: values.amin(-1), "prod": lambda: values.prod(-1)}[
        reduce
    ]()
    join = {"amax": torch.maximum, "amin": torch.minimum, "prod": torch.mul}[reduce]
    current = base[tuple(slice(None) if d == dim else slice(0, n) for d, n in enumerate(index.shape))]
    joined = join(current, reduced)
    if part.shape == x.shape:
        return joined
    result = base.clone()
    result[tuple(slice(None) if d == dim else slice(0, n) for d, n in enumerate(index.shape))] = joined
    return result


@decomposed("index_reduce.default")
def index_reduce(x: T, dim: int, index: T, source: T, reduce: str, *, include_self: bool = True) -> T:
    shape = [-1 if d == dim % max(x.dim(), 1) else 1 for d in range(source.dim())]
    wide = index.reshape(shape).expand(source.shape) if source.dim() else index.reshape(())
    return scatter_reduce(x, dim, wide, source, reduce, include_self=include_self)  # type: ignore[no-any-return]


def _fit(value: float, dtype: torch.dtype) -> float | int:
    if dtype.is_floating_point:
        return value
    limits = torch.iinfo(torch.int32)
    return limits.max if value == math.inf else limits.min if value == -math.inf else int(value)


# ── losses ───────────────────────────────────────────────────────────────────────────────────────


@decomposed("multi_margin_loss_backward.default")
def multi_margin_backward(
    g: T, x: T, target: T, p: float, margin: float, weight: T | None = None, reduction: int = 1
) -> T:
    rows = x if x.dim() == 2 else x.reshape(1, -1)
    target = target.reshape(-1)
    count, classes = rows.shape
    own = rows.gather(1, target.unsqueeze(1))
    gap = margin - own + rows
    wrong = (gap > 0) & (torch.arange(classes) != target.unsqueeze(1))
    slope = torch.where(wrong, 1.0 if p == 1 else 2 * gap, 0.0) / classes
    if weight is not None:
        slope = slope * weight[target].unsqueeze(1)
    slope = torch.where(torch.arange(classes) == target.unsqueeze(1), -slope.sum(1, keepdim=True), slope)
    scale = g.reshape(-1, 1) if reduction == 0 else g / count if reduction == 1 else g
    return (slope * scale).reshape(x.shape)


@decomposed("multilabel_margin_loss_forward.default")
def multilabel_margin(x: T, target: T, reduction: int) -> tuple[T, T]:
    rows, labels = (t if t.dim() == 2 else t.reshape(1, -1) for t in (x, target))
    listed, is_target = _labels(labels)
    own = rows.gather(1, labels.clamp(min=0))
    gap = 1 - own.unsqueeze(2) + rows.unsqueeze(1)
    counted = listed.unsqueeze(2) & ~is_target.unsqueeze(1)
    loss = torch.where(counted, gap.clamp(min=0), 0.0).sum((1, 2)) / rows.shape[1]
    result = loss if reduction == 0 else loss.mean() if reduction == 1 else loss.sum()
    return (result.reshape(()) if x.dim() < 2 else result), is_target.to(x.dtype).reshape(target.shape)


@decomposed("multilabel_margin_loss_backward.default")
def multilabel_margin_backward(g: T, x: T, target: T, reduction: int, is_target: T) -> T:
    rows, labels = (t if t.dim() == 2 else t.reshape(1, -1) for t in (x, target))
    listed, known = _labels(labels)
    own = rows.gather(1, labels.clamp(min=0))
    open_ = (1 - own.unsqueeze(2) + rows.unsqueeze(1) > 0) & listed.unsqueeze(2) & ~known.unsqueeze(1)
    step = open_.to(x.dtype) / rows.shape[1]
    pulled = torch.zeros_like(rows).scatter_add(1, labels.clamp(min=0), -step.sum(2))
    scale = g.reshape(-1, 1) if reduction == 0 else g / rows.shape[0] if reduction == 1 else g
    return ((step.sum(1) + pulled) * scale).reshape(x.shape)


def _labels(labels: T) -> tuple[T, T]:
    """Says which entries are listed (those before the first negative one), and which classes they name."""
    listed = (labels >= 0).to(torch.int32).cumprod(1) > 0
    named = torch.zeros(labels.shape).scatter_add(1, labels.clamp(min=0), listed.to(torch.float32))
    return listed, named > 0

"""Records scaled dot-product attention as a single op, with masks, causality, dropout and shared heads.

While a step is being captured, `scaled_dot_product_attention` is replaced by a custom op with its own gradient.
It never stores the matrix of queries by keys. Cases that the op does not cover (a trained mask, very wide heads)
are left to PyTorch, which decomposes them or calls its own attention op for CPUs. That op has a lowering here too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from handheld.errors import UnsupportedOp
from handheld.frontend.aten import MaybeTensor, Results
from handheld.frontend.contractions import floats, matmul, transpose
from handheld.frontend.layout import expand, permute
from handheld.frontend.record import Recorder
from handheld.frontend.reductions import fold, keepdim, softmax_view
from handheld.frontend.registry import lowering
from handheld.frontend.values import Val, iota
from handheld.graph.dtypes import BOOL, F32, I32
from handheld.graph.graph import Attr, View


def _scores(rec: Recorder, q: View, k: View, mask: View | None, causal: bool, scale: float) -> View:
    """Computes scale * q k^T plus the mask. Masked elements are -inf."""
    product = matmul(rec, q, transpose(k))
    rank = len(product.shape)
    operands = [product]
    if mask is not None:
        operands.append(mask)

    def build(s: Val, *m: Val) -> Val:
        s = s * scale
        if m:
            s = m[0].where(s, -math.inf) if m[0].dtype == BOOL else s + m[0].to(F32)
        if causal:
            row, col = iota(s.builder, rank - 2), iota(s.builder, rank - 1)
            s = col.le(row).where(s, -math.inf)
        return s

    return rec.map(product.shape, operands, build)


def _probabilities(rec: Recorder, scores: View) -> View:
    return softmax_view(rec, scores, (len(scores.shape) - 1,), log=False, safe=True)


def _scale_of(q: torch.Tensor, scale: float | None) -> float:
    return float(scale) if scale is not None else 1 / math.sqrt(q.shape[-1])


def _heads(view: View, heads: int) -> View:
    """Views [b, heads * groups, ...] as [b, heads, groups, ...]."""
    b, h = view.shape[:2]
    each = h // heads
    return View(
        view.tensor,
        (b, heads, each, *view.shape[2:]),
        (view.strides[0], view.strides[1] * each, view.strides[1], *view.strides[2:]),
        view.offset,
    )


def _shared(view: View, groups: int) -> View:
    """Views [b, heads, ...] as [b, heads, groups, ...] with stride 0, so that a group shares one head."""
    return View(
        view.tensor, (*view.shape[:2], groups, *view.shape[2:]), (*view.strides[:2], 0, *view.strides[2:]), view.offset
    )


class _Attention:
    """Queries, keys, values and mask. Query heads are in groups if there are fewer heads of keys."""

    def __init__(self, rec: Recorder, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: MaybeTensor) -> None:
        self.q, self.k, self.v = floats(rec, q, k, v)
        self.mask = None
        self.heads = k.shape[1]
        self.groups = q.shape[1] // max(self.heads, 1)
        if mask is not None:
            self.mask = expand(rec.read(mask), (*q.shape[:-1], k.shape[-2]))
        if self.groups > 1:
            self.k, self.v = _shared(self.k, self.groups), _shared(self.v, self.groups)
            self.q = self.split(self.q)
            self.mask = None if self.mask is None else self.split(self.mask)

    def split(self, view: View) -> View:
        return _heads(view, self.heads) if self.groups > 1 else view

    def summed(self, rec: Recorder, view: View) -> View:
        """Sums the gradient of keys or values over all query heads of a group."""
        return fold(rec, view, (2,), lambda a: a.reduce("sum")) if self.groups > 1 else view


#: The widest head of the single op. A kernel cannot hold a row of a wider head next to its other data.
WIDEST = 256


def _fits(q: torch.Tensor, v: torch.Tensor) -> bool:
    return max(q.shape[-1], v.shape[-1]) <= WIDEST


def _operands(rec: Recorder, q: torch.Tensor, k: torch.Tensor, mask: MaybeTensor, dropout: float) -> list[View]:
    """Returns the optional operands of an attention node: the mask, and seed and step for dropout."""
    operands = []
    if mask is not None:
        view = expand(rec.read(mask), (*q.shape[:-1], k.shape[-2]))
        operands.append(view if rec.dtype_of(view) != I32 else rec.map(view.shape, [view], lambda m: m.to(F32)))
    if dropout:
        operands += [rec.slot_view("handheld.seed"), rec.slot_view("handheld.step")]
    return operands


def _heads_inside(view: View) -> View:
    """Views [b, l, h, e] as [b, h, l, e], and the other way around."""
    return permute(view, (0, 2, 1, 3))


def _attributes(mask: MaybeTensor, causal: bool, scale: float, dropout: float, key: int) -> dict[str, Attr]:
    return {"scale": scale, "causal": bool(causal), "masked": mask is not None, "dropout": float(dropout), "key": key}


def _emit(
    rec: Recorder,
    out: Results,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: MaybeTensor,
    causal: bool,
    scale: float,
    dropout: float,
) -> None:
    """Adds an attention node, and binds its results: the output and the log of the row sums."""
    b, h, length, _ = q.shape
    attrs = _attributes(mask, causal, scale, dropout, rec.random_key() if dropout else 0)
    outputs = rec.emit(
        "attention",
        [*floats(rec, q, k, v), *_operands(rec, q, k, mask, dropout)],
        [((b, length, h, v.shape[3]), F32), ((b, h, length), F32)],
        attrs,
    )
    rec.bind(out[0], _heads_inside(rec.dense(outputs[0])))
    rec.bind(out[1], rec.dense(outputs[1]))


def _emit_grad(
    rec: Recorder,
    out: Results,
    g: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    y: torch.Tensor,
    lse: torch.Tensor,
    mask: MaybeTensor,
    causal: bool,
    scale: float,
    dropout: float,
) -> None:
    """Adds the gradient of an attention node, and binds its results: the gradients of q, k and v."""
    rows, key = rec.contiguous(rec.read(lse)), 0
    if dropout:  # Use the same random numbers as in the forward pass.
        key = next(n for n in reversed(rec.nodes) if rows.tensor in n.outputs).attrs["key"]
    (b, h, length, d), (_, g_heads, s, _), e = q.shape, k.shape, v.shape[3]
    outputs = rec.emit(
        "attention_grad",
        [*floats(rec, g, q, k, v, y), rows, *_operands(rec, q, k, mask, dropout)],
        [((b, length, h, d), F32), ((b, s, g_heads, d), F32), ((b, s, g_heads, e), F32)],
        _attributes(mask, causal, scale, dropout, key),
    )
    for o, tensor in zip(out, outputs, strict=True):
        rec.bind(o, _heads_inside(rec.dense(tensor)))


@lowering("_scaled_dot_product_flash_attention_for_cpu.default")
def attention(
    rec: Recorder,
    out: Results,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: MaybeTensor = None,
    scale: float | None = None,
) -> None:
    if dropout_p:
        raise UnsupportedOp(
            "attention with dropout inside PyTorch's fused op has no lowering. "
            "Try: torch.nn.functional.scaled_dot_product_attention"
        )
    if _fits(q, v):
        _emit(rec, out, q, k, v, attn_mask, is_causal, _scale_of(q, scale), 0.0)
        return
    a = _Attention(rec, q, k, v, attn_mask)
    scores = _scores(rec, a.q, a.k, a.mask, is_causal, _scale_of(q, scale))
    y = matmul(rec, _probabilities(rec, scores), a.v)
    rec.bind_dense(out[0], y)
    # The second result, the log of the row sums, is needed only by PyTorch's own backward pass.
    rec.bind(out[1], rec.map(tuple(out[1].shape), [], lambda b: iota(b, 0).to(F32) * 0.0))


@lowering("_scaled_dot_product_flash_attention_for_cpu_backward.default")
def attention_backward(
    rec: Recorder,
    out: Results,
    g: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    y: torch.Tensor,
    lse: torch.Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: MaybeTensor = None,
    scale: float | None = None,
) -> None:
    if _fits(q, v):
        _emit_grad(rec, out, g, q, k, v, y, lse, attn_mask, is_causal, _scale_of(q, scale), 0.0)
        return
    a = _Attention(rec, q, k, v, attn_mask)
    gv = a.split(rec.read(g))
    factor = _scale_of(q, scale)
    # The probabilities are computed again, because keeping them would need memory for queries * keys.
    p = _probabilities(rec, _scores(rec, a.q, a.k, a.mask, is_causal, factor))
    rec.bind_dense(out[2], a.summed(rec, matmul(rec, transpose(p), gv)))
    dp = matmul(rec, gv, transpose(a.v))
    last = (len(p.shape) - 1,)
    row = keepdim(fold(rec, p, last, lambda x, b: (x * b).reduce("sum"), [dp]), p.shape, last)
    ds = rec.map(p.shape, [p, dp, row], lambda x, b, r: x * (b - r) * factor)
    rec.bind_dense(out[0], matmul(rec, ds, a.k))
    rec.bind_dense(out[1], a.summed(rec, matmul(rec, transpose(ds), a.q)))


# ── the op that replaces scaled_dot_product_attention ────────────────────────────────────────────

T = torch.Tensor


def _weights(q: T, k: T, mask: T | None, causal: bool, scale: float) -> tuple[T, T]:
    """Returns scores and probabilities. It runs in captures that compute with real values."""
    scores = q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).transpose(-1, -2) * scale
    if mask is not None:
        masked = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else None
        scores = scores + mask if masked is None else masked
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~seen, -math.inf)
    return scores, torch.ops.aten._safe_softmax(scores, -1)


def _laid_out(x: T) -> T:
    """Stores the heads of a row next to each other, as the kernels write them."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


@torch.library.custom_op("handheld::attention", mutates_args=())
def attention_op(q: T, k: T, v: T, mask: T | None, causal: bool, scale: float, dropout: float) -> tuple[T, T]:
    # Dropout is not applied here, because its random numbers exist only on the device.
    scores, p = _weights(q, k, mask, causal, scale)
    y = p @ v.repeat_interleave(q.shape[1] // v.shape[1], 1)
    return _laid_out(y), scores.logsumexp(-1)


@torch.library.custom_op("handheld::attention_grad", mutates_args=())
def attention_grad_op(
    g: T, q: T, k: T, v: T, y: T, lse: T, mask: T | None, causal: bool, scale: float, dropout: float
) -> tuple[T, T, T]:
    each = q.shape[1] // k.shape[1]
    _, p = _weights(q, k, mask, causal, scale)
    dp = g @ v.repeat_interleave(each, 1).transpose(-1, -2)
    ds = p * (dp - (g * y).sum(-1, keepdim=True)) * scale
    dk, dv = ds.transpose(-1, -2) @ q, p.transpose(-1, -2) @ g
    dq = ds @ k.repeat_interleave(each, 1)
    dk, dv = (x.reshape(x.shape[0], -1, each, *x.shape[2:]).sum(2) for x in (dk, dv))
    return _laid_out(dq), _laid_out(dk), _laid_out(dv)


def _empty(like: T, heads: T, width: int) -> T:
    b, h, rows, _ = heads.shape
    return like.new_empty((b, rows, h, width)).transpose(1, 2)


@attention_op.register_fake
def _(q: T, k: T, v: T, mask: T | None, causal: bool, scale: float, dropout: float) -> tuple[T, T]:
    return _empty(q, q, v.shape[3]), q.new_empty(q.shape[:3])


@attention_grad_op.register_fake
def _(
    g: T, q: T, k: T, v: T, y: T, lse: T, mask: T | None, causal: bool, scale: float, dropout: float
) -> tuple[T, T, T]:
    return _empty(q, q, q.shape[3]), _empty(k, k, k.shape[3]), _empty(v, v, v.shape[3])


@lowering("handheld.attention.default")
def whole_attention(
    rec: Recorder, out: Results, q: T, k: T, v: T, mask: MaybeTensor, causal: bool, scale: float, dropout: float
) -> None:
    _emit(rec, out, q, k, v, mask, causal, scale, dropout)


@lowering("handheld.attention_grad.default")
def whole_attention_grad(
    rec: Recorder,
    out: Results,
    g: T,
    q: T,
    k: T,
    v: T,
    y: T,
    lse: T,
    mask: MaybeTensor,
    causal: bool,
    scale: float,
    dropout: float,
) -> None:
    _emit_grad(rec, out, g, q, k, v, y, lse, mask, causal, scale, dropout)


class _Whole(torch.autograd.Function):
    """Connects the op and its gradient for autograd."""

    @staticmethod
    def forward(ctx: Any, q: T, k: T, v: T, mask: T | None, causal: bool, scale: float, dropout: float) -> T:
        y: T
        y, lse = torch.ops.handheld.attention(q, k, v, mask, causal, scale, dropout)
        ctx.save_for_backward(q, k, v, y, lse, mask)
        ctx.options = causal, scale, dropout
        return y

    @staticmethod
    def backward(ctx: Any, g: T) -> Any:
        q, k, v, y, lse, mask = ctx.saved_tensors
        gradients = torch.ops.handheld.attention_grad(g, q, k, v, y, lse, mask, *ctx.options)
        return (*gradients, None, None, None, None)


def _covered(q: T, k: T, v: T, mask: T | None, causal: bool, shared: bool) -> bool:
    """Says whether the op covers these arguments. Invalid ones are not covered: PyTorch reports the error."""
    if not (q.dim() == k.dim() == v.dim() == 4 and q.dtype == k.dtype == v.dtype):
        return False
    (b, h, n, d), (_, heads, s, _) = q.shape, k.shape
    alike = k.shape == (b, heads, s, d) and v.shape[:3] == (b, heads, s)
    fits = alike and heads > 0 and (h % heads == 0 if shared else h == heads) and _fits(q, v)
    if mask is None or not fits:
        return fits and q.dtype.is_floating_point and min(n, s, d) > 0
    known = mask.dtype == torch.bool or mask.dtype.is_floating_point
    wide = (1,) * (4 - mask.dim()) + tuple(mask.shape)
    spread = mask.dim() <= 4 and all(m in (1, w) for m, w in zip(wide, (b, h, n, s), strict=True))
    return known and spread and not mask.requires_grad and not causal and min(n, s, d) > 0


def whole(original: Callable[..., T]) -> Callable[..., T]:
    """Returns a scaled_dot_product_attention that uses the op of this file where the op covers the arguments."""

    def scaled_dot_product_attention(
        query: T,
        key: T,
        value: T,
        attn_mask: T | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> T:
        if not _covered(query, key, value, attn_mask, is_causal, enable_gqa):
            return original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        y: T = _Whole.apply(query, key, value, attn_mask, is_causal, _scale_of(query, scale), float(dropout_p))  # type: ignore[no-untyped-call]
        return y

    return scaled_dot_product_attention

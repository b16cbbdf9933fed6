"""Scaled dot-product attention, with masks, causality and shared heads."""

from __future__ import annotations

import math
from typing import Any

import torch

from handheld.capture.contractions import bind_dense, floats, matmul, transpose
from handheld.capture.layout import expand
from handheld.capture.record import Recorder
from handheld.capture.reductions import fold, keepdim, softmax_view
from handheld.capture.registry import lowering
from handheld.capture.values import Val, iota
from handheld.errors import UnsupportedOp
from handheld.graph.graph import View


def _scores(rec: Recorder, q: View, k: View, mask: View | None, causal: bool, scale: float) -> View:
    """scale * q k^T plus the mask; what is masked out is -inf."""
    product = matmul(rec, q, transpose(k))
    rank = len(product.shape)
    operands = [product]
    if mask is not None:
        operands.append(mask)

    def build(s: Val, *m: Val) -> Val:
        s = s * scale
        if m:
            s = m[0].where(s, -math.inf) if m[0].dtype == "bool" else s + m[0].to("f32")
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
    """[b, heads * groups, ...] as [b, heads, groups, ...]."""
    b, h = view.shape[:2]
    each = h // heads
    return View(
        view.tensor,
        (b, heads, each, *view.shape[2:]),
        (view.strides[0], view.strides[1] * each, view.strides[1], *view.strides[2:]),
        view.offset,
    )


def _shared(view: View, groups: int) -> View:
    """[b, heads, ...] read by every member of a group."""
    return View(
        view.tensor,
        (*view.shape[:2], groups, *view.shape[2:]),
        (*view.strides[:2], 0, *view.strides[2:]),
        view.offset,
    )


class _Attention:
    """Queries, keys, values and mask; heads in groups if there are fewer keys than queries."""

    def __init__(
        self, rec: Recorder, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any
    ) -> None:
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
        """The gradient of a key or value: over all queries that read it."""
        return fold(rec, view, (2,), lambda a: a.reduce("sum")) if self.groups > 1 else view


@lowering("_scaled_dot_product_flash_attention_for_cpu.default")
def attention(
    rec: Recorder,
    out: Any,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Any = None,
    scale: float | None = None,
) -> None:
    if dropout_p:
        raise UnsupportedOp("attention with dropout inside the fused op has no lowering")
    a = _Attention(rec, q, k, v, attn_mask)
    scores = _scores(rec, a.q, a.k, a.mask, is_causal, _scale_of(q, scale))
    y = matmul(rec, _probabilities(rec, scores), a.v)
    bind_dense(rec, out[0], y)
    # the second result, the log of the row sums, is only for PyTorch's own backward
    rec.bind(out[1], rec.map(tuple(out[1].shape), [], lambda b: iota(b, 0).to("f32") * 0.0))


@lowering("_scaled_dot_product_flash_attention_for_cpu_backward.default")
def attention_backward(
    rec: Recorder,
    out: Any,
    g: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    y: torch.Tensor,
    lse: torch.Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Any = None,
    scale: float | None = None,
) -> None:
    a = _Attention(rec, q, k, v, attn_mask)
    gv = a.split(rec.read(g))
    factor = _scale_of(q, scale)
    # the probabilities are computed again: holding them from the forward pass would cost s * s
    p = _probabilities(rec, _scores(rec, a.q, a.k, a.mask, is_causal, factor))
    bind_dense(rec, out[2], a.summed(rec, matmul(rec, transpose(p), gv)))
    dp = matmul(rec, gv, transpose(a.v))
    last = (len(p.shape) - 1,)
    row = keepdim(fold(rec, p, last, lambda x, b: (x * b).reduce("sum"), [dp]), p.shape, last)
    ds = rec.map(p.shape, [p, dp, row], lambda x, b, r: x * (b - r) * factor)
    bind_dense(rec, out[0], matmul(rec, ds, a.k))
    bind_dense(rec, out[1], a.summed(rec, matmul(rec, transpose(ds), a.q)))

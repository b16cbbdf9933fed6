"""Attention and its gradient on PyTorch tensors. Unlike the kernels, it stores the matrix of probabilities."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from handheld.graph.interpret import philox, random_key

T = torch.Tensor
Attrs = Mapping[str, Any]

_WORD = 0xFFFFFFFF
_MOST = torch.finfo(torch.float32).max  # the lse of a row that may see no key


def _heads(x: T, like: T) -> T:
    """Repeats the heads of keys or values, so that there is one per head of the queries."""
    return x.repeat_interleave(like.shape[1] // max(x.shape[1], 1), 1)


def _scores(attrs: Attrs, q: T, k: T, rest: Sequence[T]) -> T:
    scores: T = q @ _heads(k, q).transpose(-1, -2) * attrs["scale"]
    if attrs["masked"]:
        mask = rest[0]
        hidden = mask.dtype == torch.bool
        scores = scores.masked_fill(~mask, -math.inf) if hidden else scores + mask
    if attrs["causal"]:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~seen, -math.inf)
    result: T = scores
    return result


def _kept(attrs: Attrs, like: T, rest: Sequence[T]) -> T | None:
    """Returns the factor of each probability: 0 if it is dropped, else 1 / (1 - p); None without dropout."""
    p: float = attrs["dropout"]
    if not p:
        return None
    seed, step = (x.reshape(()).long() & _WORD for x in rest[-2:])
    index = torch.arange(like.numel(), device=like.device).reshape(like.shape) & _WORD
    word, _ = philox((index, step), random_key(seed, attrs["key"]))
    number = (word >> 8).to(torch.float32) * 2.0**-24
    kept: T = (number >= p).to(like.dtype) * (0.0 if p >= 1 else 1 / (1 - p))
    return kept


def attention(attrs: Attrs, q: T, k: T, v: T, *rest: T) -> tuple[T, T]:
    """Returns out[b, l, h, e] and lse[b, h, l]."""
    scores = _scores(attrs, q, k, rest)
    lse = scores.logsumexp(-1)
    lse = torch.where(lse == -math.inf, _MOST, lse)
    p = (scores - lse.unsqueeze(-1)).exp()
    kept = _kept(attrs, p, rest)
    p = p if kept is None else p * kept
    return (p @ _heads(v, q)).transpose(1, 2), lse


def attention_grad(attrs: Attrs, g: T, q: T, k: T, v: T, y: T, lse: T, *rest: T) -> tuple[T, T, T]:
    """Returns dq[b, l, h, d], dk[b, s, g, d] and dv[b, s, g, e]."""
    p = (_scores(attrs, q, k, rest) - lse.unsqueeze(-1)).exp()
    dp = g @ _heads(v, q).transpose(-1, -2)
    kept = _kept(attrs, p, rest)
    used, dp = (p, dp) if kept is None else (p * kept, dp * kept)
    ds = p * (dp - (g * y).sum(-1, keepdim=True)) * attrs["scale"]
    dq, dk, dv = ds @ _heads(k, q), ds.transpose(-1, -2) @ q, used.transpose(-1, -2) @ g
    dk, dv = (x.reshape(*k.shape[:2], -1, *x.shape[2:]).sum(2) for x in (dk, dv))
    return dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)

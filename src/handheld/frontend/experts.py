"""Runs mixtures of experts densely during a capture.

Some models in transformers select the tokens of each expert by value, so tensor sizes change at every step. While
a step is captured, every expert computes every token instead, and the routing weights multiply the results. The
sum is the same, and the routing is ordinary data.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F

T = torch.Tensor


def _weighed(x: T, weights: T, expert: Callable[[int], T]) -> T:
    """Computes the sum over e of weights[n, e] * expert(e)[n, d]."""
    total = torch.zeros_like(x)
    for e in range(weights.shape[1]):
        total = total + weights[:, e : e + 1] * expert(e)
    return total


def _routing(mask: T, probabilities: T) -> T:
    """Combines mask[n, k, e] and probabilities[n, k] into one weight per token and expert."""
    mask, probabilities = mask.to(probabilities.dtype), probabilities[:, : mask.shape[1]]
    return (mask * probabilities.unsqueeze(-1)).sum(1)


def _switch(self: Any, x: T, selected: T, weights: T) -> T:
    return _weighed(x, _routing(selected, weights), lambda e: self[f"expert_{e}"](x))


def _nllb(self: Any, x: T, mask: T, probabilities: T) -> T:
    def expert(e: int) -> T:
        y: T = self[f"expert_{e}"](x)
        if self.moe_token_dropout > 0 and self.training:
            y = self.token_dropout(y)
        return y if self.training else y * (1 - self.moe_token_dropout)

    return _weighed(x, _routing(F.one_hot(mask, self.num_experts), probabilities), expert)


def _dbrx(self: Any, x: T, index: T, weights: T) -> T:
    batch, x = x.shape[0], x.reshape(-1, self.hidden_size)
    shape = (-1, self.ffn_hidden_size, self.hidden_size)
    w1, v1, w2 = (p.view(shape) for p in (self.mlp.w1, self.mlp.v1, self.mlp.w2))
    routing = _routing(F.one_hot(index, self.num_experts), weights)
    result = _weighed(x, routing, lambda e: self.mlp(x, w1[e], v1[e], w2[e]))
    return result.view(batch, -1, self.hidden_size)


def _jetmoe_gating(self: Any, x: T) -> tuple[T, T, T, T, T]:
    logits = self.layer(x).float()
    top, index = logits.topk(self.top_k, dim=1)
    gates = top.softmax(1).type_as(x).flatten()
    sizes = F.one_hot(index.flatten(), self.num_experts).sum(0)
    order = index.flatten().sort(0).indices
    return order, order // self.top_k, gates[order], sizes, logits


def _jetmoe_experts(self: Any, x: T, sizes: T) -> T:
    ends = sizes.cumsum(0).to(torch.int32)
    result: T = torch._grouped_mm(x, self.weight.transpose(1, 2), offs=ends)
    return result


#: Model, class, and the forward that replaces its own.
_DENSE: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("switch_transformers", "SwitchTransformersExperts", _switch),
    ("nllb_moe", "NllbMoeExperts", _nllb),
    ("dbrx", "DbrxExperts", _dbrx),
    ("jetmoe", "JetMoeTopKGating", _jetmoe_gating),
    ("jetmoe", "JetMoeParallelExperts", _jetmoe_experts),
)


@contextmanager
def dense_experts() -> Iterator[None]:
    """While active, these classes run densely. Classes that this version of transformers lacks are skipped."""
    originals = []
    for model, name, forward in _DENSE:
        module = sys.modules.get(f"transformers.models.{model}.modeling_{model}")
        kind = getattr(module, name, None)
        if kind is not None:
            originals.append((kind, kind.forward))
            kind.forward = forward
    try:
        yield
    finally:
        for kind, original in originals:
            kind.forward = original

"""GPT-2 (Radford et al., 2019) in any size, with the head tied to the embedding. Each token predicts the next.

With `rank`, the model is frozen and LoRA layers on queries and values are trained. The GELU of the perceptron is
exact, while GPT-2 uses the tanh approximation.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from handheld.suite.synthetic import Parts, seeded, token_loss, tokens, trainable
from handheld.suite.transformer import Block, LowRank


class Gpt(nn.Module):
    def __init__(
        self, vocabulary: int, width: int, layers: int, heads: int, length: int, dropout: float = 0.1, rank: int = 0
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.place = nn.Embedding(length, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout, causal=True, rank=rank) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for module in self.modules():
            if isinstance(module, nn.Embedding | nn.Linear):
                nn.init.normal_(module.weight, 0, 0.02)
        for module in self.modules():
            if isinstance(module, LowRank):
                nn.init.zeros_(module.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        y = self.dropout(self.embed(x) + self.place(torch.arange(x.shape[1], device=x.device)))
        for block in self.blocks:
            y = block(y)
        return F.linear(self.norm(y), self.embed.weight)


def adapt(model: nn.Module) -> nn.Module:
    """Freeze everything except the low-rank layers."""
    model.requires_grad_(False)
    for module in model.modules():
        if isinstance(module, LowRank):
            module.requires_grad_(True)
    return model


def make(
    *,
    seed: int = 0,
    vocabulary: int = 256,
    width: int = 128,
    layers: int = 4,
    heads: int = 4,
    length: int = 64,
    rank: int = 0,
) -> Parts:
    model: nn.Module = seeded(lambda: Gpt(vocabulary, width, layers, heads, length, rank=rank), seed)
    if rank:
        adapt(model)
    # The frozen model is untrained, so the low-rank layers need a large learning rate to learn anything.
    return model, token_loss, torch.optim.AdamW(trainable(model), lr=2e-2 if rank else 1e-3)


def batch(
    n: int,
    seed: int,
    *,
    vocabulary: int = 256,
    width: int = 128,
    layers: int = 4,
    heads: int = 4,
    length: int = 64,
    rank: int = 0,
) -> tuple[Tensor, Tensor]:
    rows = tokens(n, seed, length + 1, vocabulary)
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

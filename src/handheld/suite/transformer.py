"""A transformer encoder (Vaswani et al., 2017; with the norm first) that restores masked tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from handheld.suite.synthetic import Parts, seeded, sgd, token_loss, tokens

MASK = 0  # The token that replaces a masked one.


class LowRank(nn.Module):
    """What LoRA (Hu et al., 2022) adds to a frozen layer: up(down(x)), which is zero at first."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.up(self.down(x)) * 2.0  # alpha / rank
        return y


class Block(nn.Module):
    """Attention, then a perceptron, each with a shortcut. With `rank`, queries and values get low-rank layers."""

    def __init__(self, width: int, heads: int, dropout: float, causal: bool = False, rank: int = 0) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.low_q, self.low_v = (LowRank(width, rank) if rank else None for _ in range(2))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attend(self.norm1(x)))
        y: Tensor = x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))
        return y

    def attend(self, x: Tensor) -> Tensor:
        n, t, width = x.shape
        parts = self.qkv(x).view(n, t, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)  # each [n, heads, t, width / heads]
        if self.low_q is not None and self.low_v is not None:
            q, v = (
                a + low(x).view(n, t, self.heads, -1).transpose(1, 2) for a, low in ((q, self.low_q), (v, self.low_v))
            )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        mixed: Tensor = self.out(y.transpose(1, 2).reshape(n, t, width))
        return mixed


class Encoder(nn.Module):
    def __init__(self, vocabulary: int, width: int, layers: int, heads: int, length: int, dropout: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.place = nn.Parameter(torch.randn(length, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, x: Tensor) -> Tensor:
        y = self.embed(x) + self.place[: x.shape[1]]
        for block in self.blocks:
            y = block(y)
        scores: Tensor = self.head(self.norm(y))
        return scores


def make(
    *,
    seed: int = 0,
    vocabulary: int = 5000,
    width: int = 256,
    layers: int = 4,
    heads: int = 4,
    length: int = 128,
    dropout: float = 0.1,
) -> Parts:
    model = seeded(lambda: Encoder(vocabulary, width, layers, heads, length, dropout), seed)
    return model, token_loss, sgd(model.parameters())


def batch(
    n: int,
    seed: int,
    *,
    vocabulary: int = 5000,
    width: int = 256,
    layers: int = 4,
    heads: int = 4,
    length: int = 128,
    dropout: float = 0.1,
) -> tuple[Tensor, Tensor]:
    target = tokens(n, seed, length, vocabulary)
    hidden = torch.rand(n, length, generator=torch.Generator().manual_seed(seed + 1)) < 0.15
    return target.masked_fill(hidden, MASK), target

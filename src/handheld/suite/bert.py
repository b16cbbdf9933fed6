"""BERT (Devlin et al., 2019) for SQuAD: finds where in the text the answer starts and ends.

x[n, 2, t] holds the tokens and, for each, whether it belongs to the question (0) or to the text (1).
y[n, 2] holds the first and last token of the answer. There is dropout everywhere except in attention.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from handheld.suite.synthetic import Parts, seeded


class Layer(nn.Module):
    """Attention and a perceptron, each followed by a shortcut and a norm."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = (nn.LayerNorm(width, eps=1e-12) for _ in range(2))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        n, t, width = x.shape
        q, k, v = (layer(x).view(n, t, self.heads, -1).transpose(1, 2) for layer in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, width)
        x = self.norm1(x + self.dropout(self.out(mixed)))
        y: Tensor = self.norm2(x + self.dropout(self.down(F.gelu(self.up(x)))))
        return y


class Bert(nn.Module):
    def __init__(
        self, vocabulary: int, width: int, layers: int, heads: int, places: int = 512, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(places, width)
        self.kinds = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(Layer(width, heads, dropout) for _ in range(layers))
        self.head = nn.Linear(width, 2)
        for module in self.modules():
            if isinstance(module, nn.Embedding | nn.Linear):
                nn.init.normal_(module.weight, 0, 0.02)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        words, kinds = x.unbind(1)
        places = torch.arange(x.shape[2], device=x.device)
        y = self.dropout(self.norm(self.words(words) + self.places(places) + self.kinds(kinds)))
        for layer in self.layers:
            y = layer(y)
        scores: Tensor = self.head(y)  # [n, t, 2]: whether a token is the start, or the end
        return scores


def span_loss(scores: Tensor, span: Tensor) -> Tensor:
    """The mean of the two cross entropies over positions."""
    return 0.5 * (F.cross_entropy(scores[..., 0], span[:, 0]) + F.cross_entropy(scores[..., 1], span[:, 1]))


def make(
    *, seed: int = 0, vocabulary: int = 1000, width: int = 128, layers: int = 2, heads: int = 2, length: int = 32
) -> Parts:
    model = seeded(lambda: Bert(vocabulary, width, layers, heads), seed)
    return model, span_loss, torch.optim.AdamW(model.parameters(), lr=1e-4)


def batch(
    n: int, seed: int, *, vocabulary: int = 1000, width: int = 128, layers: int = 2, heads: int = 2, length: int = 32
) -> tuple[Tensor, Tensor]:
    """The question takes the first quarter of the row. The tokens 1 and 2 mark the answer in the text."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(3, vocabulary, (n, length), generator=generator)
    kinds = (torch.arange(length) >= length // 4).long().expand(n, length)
    start = torch.randint(length // 4, length - 4, (n,), generator=generator)
    span = torch.stack([start, start + torch.randint(1, 4, (n,), generator=generator)], 1)
    words.scatter_(1, span, torch.tensor([[1, 2]]).expand(n, 2))
    return torch.stack([words, kinds], 1), span

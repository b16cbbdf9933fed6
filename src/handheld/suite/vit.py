"""ViT-Tiny (Dosovitskiy et al., 2021; this size: Touvron et al., 2021): a transformer over the patches of an image."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from handheld.suite.synthetic import Parts, images, seeded
from handheld.suite.transformer import Block


class Vit(nn.Module):
    def __init__(self, classes: int, size: int, patch: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.place = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, heads, 0.0) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        y = self.patches(x).flatten(2).transpose(1, 2)  # [n, patches, width]
        y = torch.cat([self.token.expand(len(y), -1, -1), y], 1) + self.place
        scores: Tensor = self.head(self.norm(self.blocks(y))[:, 0])
        return scores


def make(
    *,
    seed: int = 0,
    size: int = 32,
    classes: int = 10,
    patch: int = 4,
    width: int = 192,
    layers: int = 4,
    heads: int = 3,
) -> Parts:
    model = seeded(lambda: Vit(classes, size, patch, width, layers, heads), seed)
    return model, F.cross_entropy, torch.optim.AdamW(model.parameters(), lr=5e-4)


def batch(
    n: int,
    seed: int,
    *,
    size: int = 32,
    classes: int = 10,
    patch: int = 4,
    width: int = 192,
    layers: int = 4,
    heads: int = 3,
) -> tuple[Tensor, Tensor]:
    return images(n, seed, (3, size, size), classes)

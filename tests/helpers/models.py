"""Small models that together use every family of kernels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    """A depthwise-separable residual block with batch norm and ReLU6."""

    def __init__(self, channels: int, kind: type[nn.Module] = nn.ReLU6) -> None:
        super().__init__()
        self.depth = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
        self.norm1, self.act = nn.BatchNorm2d(channels), kind()
        self.point = nn.Conv2d(channels, channels, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.norm2(self.point(self.act(self.norm1(self.depth(x)))))


class Vision(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.SiLU())
        self.blocks = nn.Sequential(Block(8), Block(8, nn.Hardswish))
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(8, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.max_pool2d(self.blocks(self.stem(x)), 3, 2, 1))


class Language(nn.Module):
    def __init__(self, vocabulary: int = 23, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.recurrent = nn.LSTM(width, width, 2, batch_first=True, dropout=0.1)
        self.gated = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, vocabulary)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.gated(self.recurrent(self.embed(x))[0])[0]).flatten(0, 1)


class Attention(nn.Module):
    def __init__(self, vocabulary: int = 23, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 2, 32, 0.1, batch_first=True, activation="gelu")
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embed(x))).flatten(0, 1)


def images(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(4, 3, 18, 18, generator=g), torch.randint(0, 5, (4,), generator=g)


def tokens(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 23, (3, 8), generator=g)
    return x[:, :-1].contiguous(), x[:, 1:].contiguous()


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output, target.flatten())


MODELS = {"vision": (Vision, images), "language": (Language, tokens), "attention": (Attention, tokens)}


def make(name: str) -> tuple[nn.Module, torch.optim.Optimizer, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    kind, data = MODELS[name]
    model = kind()
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), data()

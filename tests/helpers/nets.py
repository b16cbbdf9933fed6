"""A small network with every common kind of layer, with its batch and its optimizer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 5, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(5)
        self.drop = nn.Dropout(0.25)
        self.head = nn.Linear(5 * 9, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.conv(x)), inplace=True), 2)
        return self.head(self.drop(x.flatten(1)))


def batch(n: int = 3, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, 2, 6, 6, generator=g), torch.randint(0, 4, (n,), generator=g)


def net() -> Net:
    torch.manual_seed(0)
    return Net()


def sgd(model: nn.Module, **options: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, **{"momentum": 0.9, **options})

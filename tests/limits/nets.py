"""Small models with what matters for memory: residual blocks with norms and dropout, attention, dense blocks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

import handheld


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x + self.second(self.drop(F.relu(self.norm(self.first(x))))))


class Dense(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, F.gelu(self.conv(x))], 1)


def residual(blocks: int = 5) -> tuple[handheld.Step, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    body = [Residual(8) for _ in range(blocks)]
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *body, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 64, 5))
    return _captured(model, (torch.randn(4, 3, 16, 16), torch.randint(0, 5, (4,))))


def dense(blocks: int = 5) -> tuple[handheld.Step, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    body = [Dense(4 + 4 * i) for i in range(blocks)]
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), *body, nn.Flatten(), nn.Linear((4 + 4 * blocks) * 64, 5))
    return _captured(model, (torch.randn(4, 3, 8, 8), torch.randint(0, 5, (4,))))


def attention(layers: int = 3) -> tuple[handheld.Step, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, activation="gelu", batch_first=True, norm_first=True)
    model = nn.Sequential(nn.TransformerEncoder(block, layers), nn.Flatten(), nn.Linear(16 * 24, 5))
    return _captured(model, (torch.randn(4, 24, 16), torch.randint(0, 5, (4,))))


def _captured(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> tuple[handheld.Step, tuple[torch.Tensor, ...]]:
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    return handheld.capture(model, F.cross_entropy, optimizer, batch, evaluate=False), batch


NETS = {"residual": residual, "dense": dense, "attention": attention}

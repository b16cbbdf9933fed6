"""Models and samples for tests of batches of any length."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import handheld

BATCH, COUNT = 32, 50


class Net(nn.Module):
    def __init__(self, outputs: int = 3) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Linear(12, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(F.dropout(F.relu(self.norm(self.a(x))), 0.1, self.training))


def samples(count: int = COUNT) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(4)
    x = rng.standard_normal((count, 6)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0.5)


def captured(loss=F.cross_entropy, batch: int = BATCH, model: nn.Module | None = None, **options):
    torch.manual_seed(1)
    model = model or Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = (torch.from_numpy(a) for a in samples(batch))
    if loss is F.mse_loss:
        y = F.one_hot(y, 3).float()
    return model, optimizer, handheld.capture(model, loss, optimizer, (x, y), name="net", **options)


def torch_results(model: nn.Module, x: np.ndarray, y: np.ndarray, loss=F.cross_entropy) -> tuple[float, np.ndarray]:
    with torch.no_grad():
        model.eval()
        out = model(torch.from_numpy(x))
        value = float(loss(out, torch.from_numpy(y)))
        model.train()
    return value, out.numpy()


def worst(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (out - y).abs().max()


class Pair(Net):
    def forward(self, x: torch.Tensor):
        out = super().forward(x)
        return out, out.mean()


def first_of(out, y):
    return F.cross_entropy(out[0], y)

"""The multi-layer perceptron 784-256-128-10."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from handheld.suite.synthetic import images, seeded, sgd


def build(*, classes: int = 10) -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(),
        nn.Linear(128, classes),
    )


def make(*, seed: int = 0, classes: int = 10) -> tuple[nn.Module, Any, Any]:
    model = seeded(lambda: build(classes=classes), seed)
    return model, F.cross_entropy, sgd(model.parameters(), 0.02)


def batch(n: int, seed: int, *, classes: int = 10) -> tuple[Tensor, Tensor]:
    return images(n, seed, (1, 28, 28), classes)

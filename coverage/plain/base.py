"""Helpers to write a family in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from family import Batch, Family, Task, scalar_loss
from torch import nn

T = torch.Tensor


def family(
    name: str,
    make: Callable[[], nn.Module],
    batch: Callable[[], Batch],
    loss: Callable[[nn.Module, Batch], torch.Tensor] | None = None,
    mode: str = "eval",
) -> Family:
    """A family whose model receives the batch's tensors in order."""

    def forward(model: nn.Module, given: Batch) -> torch.Tensor:
        return scalar_loss(model(*given.values()))

    return Family(name, "plain", lambda: Task(make(), batch(), loss or forward, mode=mode))


def tensors(**shapes: tuple[int, ...]) -> Callable[[], Batch]:
    return lambda: {name: torch.randn(shape) for name, shape in shapes.items()}


def images(channels: int = 3, size: int = 16, classes: int = 5) -> Callable[[], Batch]:
    return lambda: {"x": torch.randn(3, channels, size, size), "y": torch.randint(0, classes, (3,))}


def classify(model: nn.Module, batch: Batch) -> torch.Tensor:
    return F.cross_entropy(model(batch["x"]), batch["y"])


def own(model: nn.Module, batch: Batch) -> torch.Tensor:
    return model(*batch.values())

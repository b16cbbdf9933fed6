"""An entry of the coverage lists: a small model, a batch and a loss."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

Batch = dict[str, torch.Tensor]


@dataclass
class Task:
    """`loss(model, batch)` must work for the model in float64 too."""

    model: nn.Module
    batch: Batch
    loss: Callable[[nn.Module, Batch], torch.Tensor]
    rate: float = 0.01
    #: how dropout is turned off: by eval mode (`eval`; batch norm still trains), or in train mode (`train`)
    mode: str = "eval"


@dataclass(frozen=True)
class Family:
    """A kind of model. `make` builds it only when it is tried."""

    name: str
    group: str
    make: Callable[[], Task]


def tensors_of(output: Any) -> list[torch.Tensor]:
    """All tensors in the output of a model, in order."""
    if isinstance(output, torch.Tensor):
        return [output]
    if isinstance(output, dict):
        output = output.values()
    if isinstance(output, (str, bytes)) or not hasattr(output, "__iter__"):
        return []
    return [t for part in output for t in tensors_of(part)]


def scalar_loss(output: Any) -> torch.Tensor:
    """A loss for any output: smooth, with a different weight for every element."""
    total: torch.Tensor | None = None
    for tensor in tensors_of(output):
        if tensor.dtype.is_floating_point and tensor.numel():
            flat = tensor.reshape(-1)
            ramp = torch.arange(flat.numel(), dtype=flat.dtype).mul(0.37).sin()
            part = (flat * ramp).mean() + 0.1 * flat.square().mean()
            total = part if total is None else total + part
    assert total is not None, "the model returns no floating-point tensor"
    return total


def torchvision_stub() -> None:
    """Lets packages import a torchvision whose compiled ops are missing or do not load."""
    spec = importlib.util.find_spec("torchvision")
    if _KEPT or spec is None or spec.origin is None:
        return
    try:
        torch.ops.load_library(next(Path(spec.origin).parent.glob("_C*")))
        return
    except (OSError, StopIteration):
        pass
    _KEPT.append(torch.library.Library("torchvision", "DEF"))
    for name in ("nms", "qnms"):
        _KEPT[0].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


_KEPT: list[torch.library.Library] = []

"""Batches and the loss of image classifiers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from family import Batch, scalar_loss, tensors_of
from torch import nn

B, CLASSES = 2, 10


def classify(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Cross entropy of every [batch, classes] output, auxiliary heads included. A model without such an output,
    such as one for segmentation or poses, gets `scalar_loss`."""
    output = tensors_of(model(batch["x"]))
    heads = [t for t in output if t.dim() == 2]
    if not heads:
        return scalar_loss(output)
    total = F.cross_entropy(heads[0], batch["y"])
    for head in heads[1:]:
        total = total + F.cross_entropy(head, batch["y"])
    return total


def images(size: int) -> Batch:
    return {"x": torch.randn(B, 3, size, size), "y": torch.randint(0, CLASSES, (B,))}

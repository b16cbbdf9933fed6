"""The step that the tests of profiles run."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

import handheld
from handheld.graph.dtypes import DTYPES
from handheld.graph.graph import Slot

BATCH = 8


def make_step() -> handheld.Step:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * 8 * 8, 10),
    )
    batch = (torch.randn(BATCH, 3, 16, 16), torch.randint(0, 10, (BATCH,)))
    return handheld.capture(model, F.cross_entropy, torch.optim.Adam(model.parameters(), lr=1e-3), batch)


def slot_bytes(slot: Slot) -> int:
    return math.prod(slot.shape) * DTYPES[slot.dtype].nbytes

"""The memory of attention grows with the length of the sequence, not with its square."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import handheld
from handheld.device import DeviceCaps


class Attend(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.make, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.make(x).view(1, -1, 3, 2, 8).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(1, -1, 16))


def planned_bytes(device: str, length: int) -> int:
    model, x = Attend(), torch.zeros(1, length, 16)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    step = handheld.capture(model, lambda y, t: (y - t).square().mean(), optimizer, (x, x))
    caps = None if device == "opencl" else DeviceCaps.shipped(device)
    return step.plan(device, caps=caps).bytes


@pytest.mark.parametrize("device", ["opencl", "mali-g78"])
def test_twice_the_length_takes_at_most_twice_the_memory(device):
    short, middle, long = (planned_bytes(device, length) for length in (1024, 2048, 4096))
    assert middle < 2.02 * short
    assert long - middle == pytest.approx(2 * (middle - short), rel=0.05)
    assert long < 4096 * 4096  # One byte per score of one head.

"""Large batches go through pinned memory where the device has memory of its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import nn

import handheld
from handheld.backends.base import describe
from handheld.backends.opencl_pinned import LEAST_BYTES, PIECES


def test_the_same_losses_and_the_caller_may_change_its_arrays():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1024, 16), nn.ReLU(), nn.Linear(16, 4))
    example = (torch.randn(128, 1024), torch.randint(0, 4, (128,)))
    assert example[0].numpy().nbytes >= LEAST_BYTES > example[1].numpy().nbytes
    step = handheld.capture(model, nn.CrossEntropyLoss(),
                            torch.optim.SGD(model.parameters(), lr=0.1), example, evaluate=False)
    caps = describe("opencl")
    losses = {}
    for unified in (True, False):
        draw = np.random.default_rng(1)
        x = np.empty((128, 1024), np.float32)
        found = []
        with step.copy().plan("opencl", caps=replace(caps, unified_memory=unified)).start() as trainer:
            for _ in range(3 * PIECES):
                x[:] = draw.standard_normal(x.shape)
                found.append(trainer.step(x, draw.integers(0, 4, 128)))
            x[:] = np.nan  # what was given is not looked at again
            losses[unified] = [float(loss) for loss in found] if not unified else found
            pieces = trainer.session._pinned._pieces
            assert [len(one) for one in pieces.values()] == ([] if unified else [PIECES])
    assert losses[False] == [float(loss) for loss in losses[True]]

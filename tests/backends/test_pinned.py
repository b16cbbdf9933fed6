"""Large batches go through pinned memory where the device has memory of its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import handheld
from handheld.backends import opencl_pinned
from handheld.backends.base import describe
from handheld.backends.opencl_pinned import LEAST_BYTES, PIECES
from handheld.step import Step


def losses(step: Step, own_memory: bool) -> tuple[list[float], list[int]]:
    """Of batches that are made in one array, and how many pieces each input had."""
    caps = replace(describe("opencl"), unified_memory=not own_memory)
    draw, x, found = np.random.default_rng(1), np.empty((128, 1024), np.float32), []
    with step.copy().plan("opencl", caps=caps).start() as trainer:
        for _ in range(3 * PIECES):
            x[:] = draw.standard_normal(x.shape)
            found.append(trainer.step(x, draw.integers(0, 4, 128)))
        x[:] = np.nan  # what was given is not looked at again
        pieces = [len(one) for one in trainer.session._pinned._pieces.values()]
        return [float(loss) for loss in found], pieces


@pytest.fixture(scope="module")
def step() -> Step:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1024, 16), nn.ReLU(), nn.Linear(16, 4))
    example = (torch.randn(128, 1024), torch.randint(0, 4, (128,)))
    assert example[0].numpy().nbytes >= LEAST_BYTES > example[1].numpy().nbytes
    return handheld.capture(model, nn.CrossEntropyLoss(),
                            torch.optim.SGD(model.parameters(), lr=0.1), example, evaluate=False)


def test_the_same_losses_and_the_caller_may_change_its_arrays(step):
    (plainly, none), (pinned, pieces) = losses(step, False), losses(step, True)
    assert pinned == plainly and (none, pieces) == ([], [PIECES])


def test_without_such_memory_training_goes_on_and_says_so(step, monkeypatch):
    def refused(*_: object) -> None:
        raise MemoryError("locked memory is limited")

    plainly, _ = losses(step, False)
    monkeypatch.setattr(opencl_pinned, "_Piece", refused)
    with pytest.warns(UserWarning, match="no pinned memory of 524,288 bytes .*locked") as said:
        assert losses(step, True)[0] == plainly
    assert sum("pinned" in str(one.message) for one in said) == 1

"""Batches pass through buffers that are kept, and pinned if the device has its own memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import handheld
from handheld.backends.base import describe
from handheld.backends.opencl.staging import LEAST_BYTES, PIECES, Staging
from handheld.errors import BatchError
from handheld.step import Step


def losses(step: Step, own_memory: bool) -> tuple[list[float], list[bool]]:
    """The losses of batches that reuse one array, and whether each input was pinned."""
    caps = replace(describe("opencl"), unified_memory=not own_memory)
    draw, x, found = np.random.default_rng(1), np.empty((128, 1024), np.float32), []
    with step.copy().plan("opencl", caps=caps).start() as trainer:
        for _ in range(3 * PIECES):
            x[:] = draw.standard_normal(x.shape)
            found.append(trainer.step(x, draw.integers(0, 4, 128)))
        x[:] = np.nan  # The given array must not be read again.
        pieces = [piece for one in trainer.session._staging._pieces.values() for piece in one]
        mapped = [piece.host.base is not None for piece in pieces]
        return [float(loss) for loss in found], mapped


@pytest.fixture(scope="module")
def step() -> Step:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1024, 16), nn.ReLU(), nn.Linear(16, 4))
    example = (torch.randn(128, 1024), torch.randint(0, 4, (128,)))
    assert example[0].numpy().nbytes >= LEAST_BYTES > example[1].numpy().nbytes
    return handheld.capture(
        model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1), example, evaluate=False
    )


def test_the_same_losses_and_the_caller_may_change_its_arrays(step):
    (plainly, none), (pinned, large) = losses(step, False), losses(step, True)
    assert pinned == plainly and len(set(pinned)) > 1
    assert none == [False] * 2 * PIECES, "memory is the device's own"
    assert large == [True] * PIECES + [False] * PIECES, "labels are few"


def test_a_batch_may_lie_in_any_order(step):
    x = np.random.default_rng(2).standard_normal((128, 1024)).astype(np.float32)
    wide = np.zeros((1024, 256), np.float32)
    wide[:, ::2] = x.T
    found = []
    for given in (x, wide.T[::2], torch.from_numpy(wide).T[::2]):
        with step.copy().plan("opencl").start() as trainer:
            found.append(float(trainer.step(given, np.arange(128) % 4)))
    assert found == [found[0]] * 3


def test_a_type_that_numpy_does_not_know(step):
    given = torch.zeros(128, 1024, dtype=torch.bfloat16)
    with (
        step.copy().plan("opencl").start() as trainer,
        pytest.raises(BatchError, match="'0' is bfloat16; the model was captured with float32"),
    ):
        trainer.step(given, np.arange(128) % 4)


def test_without_such_memory_training_goes_on_and_says_so(step, monkeypatch):
    def refused(*_: object) -> None:
        raise MemoryError("locked memory is limited")

    plainly, _ = losses(step, False)
    monkeypatch.setattr(Staging, "_mapped", refused)
    with pytest.warns(UserWarning, match="no pinned memory of 524,288 bytes .*locked") as said:
        assert losses(step, True)[0] == plainly
    assert sum("pinned" in str(one.message) for one in said) == 1

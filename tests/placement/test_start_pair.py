"""Two devices or one: the split follows the speeds, the state stays, and what differs is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import handheld
from handheld.errors import HandheldError, PlanError
from handheld.placement.pair import devices_of, is_pair, start_pair
from handheld.run.pair import PairTrainer
from handheld.step import Step


def captured(loss=F.cross_entropy, batch: int = 12) -> Step:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return handheld.capture(model, loss, optimizer, (torch.randn(batch, 20), torch.zeros(batch, dtype=torch.int64)))


def started(step: Step, devices=("reference:cpu", "reference:cpu"), **options):
    return start_pair(step, devices, "train", list(step.graphs), seconds=0.1, **options)


def test_measuring_leaves_the_state_as_it_was():
    step = captured()
    before = {name: value.copy() for name, value in step.values.items()}
    paired = started(step, force=True)
    with paired.trainer:
        assert isinstance(paired.trainer, PairTrainer) and paired.split.batch == 12
        assert "samples on reference:cpu" in paired.text and "measured in turns" in paired.text
    for name, value in step.values.items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)


def test_one_device_is_used_if_two_are_not_faster():
    step = captured()
    paired = started(step)  # Both are the same PyTorch in the same process, one after the other.
    with paired.trainer:
        assert not isinstance(paired.trainer, PairTrainer) and "two devices are not faster" in paired.text
        assert np.isfinite(float(paired.trainer.step(torch.randn(12, 20), torch.zeros(12, dtype=torch.int64))))


def test_a_loss_that_is_no_mean_over_samples_is_refused():
    step = captured(lambda out, y: F.cross_entropy(out, y, reduction="sum"))
    with pytest.raises(PlanError, match=r"differs from that on one by .*no mean over samples.*Try: one device"):
        started(step, force=True)


def test_what_cannot_be_split_is_refused():
    with pytest.raises(PlanError, match="a batch of 1 cannot be split"):
        started(captured(batch=1))
    with pytest.raises(PlanError, match="float32 only"):
        started(captured(), precision="half")


def test_names_of_pairs():
    assert is_pair("opencl:0+runner") and not is_pair("opencl:0")
    assert devices_of("torch:cpu+opencl") == ("reference:cpu", "opencl")
    for name in ("opencl+", "a+b+c"):
        with pytest.raises(HandheldError, match="must be two devices"):
            devices_of(name)

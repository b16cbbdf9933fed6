"""A step on two devices equals that of one: losses, updates, outputs; what cannot be split says why."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import handheld
from handheld.errors import PlanError, TargetLost
from handheld.run.pair import PairTrainer, split_step
from handheld.step import Step

BATCH = 12


def net(*more: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 16), *more, nn.ReLU(), nn.Linear(16, 5))


def captured(model: nn.Module, optimizer: str = "Adam", loss=F.cross_entropy, **options) -> Step:
    made = getattr(torch.optim, optimizer)(model.parameters(), lr=0.05)
    return handheld.capture(model, loss, made, batches(1)[0], **options)


def batches(count: int, size: int = BATCH) -> list[tuple[torch.Tensor, torch.Tensor]]:
    draw = torch.Generator().manual_seed(1)
    return [(torch.randn(size, 20, generator=draw), torch.randint(0, 5, (size,), generator=draw)) for _ in range(count)]


def pair_of(step: Step, first: int, devices: tuple[str, str] = ("reference:cpu", "reference:cpu")) -> PairTrainer:
    split = split_step(step, first, BATCH - first)
    own = step.plan(devices[0], graphs=[*step.graphs, split.gradients[0], split.update])
    return PairTrainer(own, step.copy().plan(devices[1], graphs=[split.gradients[1]]), split)


def assert_equal(one: Step, other: Step) -> None:
    expected, found = one.state(), other.state()
    for name, value in expected.items():
        if not name.startswith("handheld."):
            np.testing.assert_allclose(found[name], value, rtol=2e-4, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("devices", [("reference:cpu", "reference:cpu"), ("opencl", "runner")])
@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_losses_and_updates_are_those_of_one_device(devices, optimizer):
    one = captured(net(), optimizer, clip_norm=1.0)
    two = one.copy()
    given = batches(4)
    with one.plan(devices[0]).start() as trainer:
        expected = [float(trainer.step(*batch)) for batch in given]
        outputs = trainer.outputs()
    with pair_of(two, 8, devices) as pair:
        assert [float(pair.step(*batch)) for batch in given] == pytest.approx(expected, rel=1e-5)
        assert pair.second.counters.steps == pair.counters.steps / 2 == 4
        for name, value in pair.outputs().items():
            np.testing.assert_allclose(value, outputs[name], rtol=1e-4, atol=1e-5)
    assert_equal(one, two)


def test_other_batches_and_loaded_states_reach_the_second_device():
    one = captured(net(), "SGD")
    two = one.copy()
    given = [*batches(2), *batches(1, 7), *batches(2)]
    start = {name: value * 0.5 for name, value in one.state().items() if name.startswith(("0.", "2."))}
    with one.plan("reference:cpu").start() as trainer, pair_of(two, 5) as pair:
        for each in (trainer, pair):
            for number, batch in enumerate(given):
                each.step(*batch)
                if number == 3:
                    each.load(start, strict=False)
        assert pair.second.counters.steps == 4
    assert_equal(one, two)


def test_fit_runs_on_the_pair():
    data = batches(6)
    one = captured(net(), "SGD")
    two = one.copy()
    with one.plan("reference:cpu").start() as trainer, pair_of(two, 6) as pair:
        expected = trainer.fit(data, epochs=2, test=data)
        found = pair.fit(data, epochs=2, test=data)
    assert [e.loss for e in found.epochs] == pytest.approx([e.loss for e in expected.epochs], rel=1e-5)
    assert found.epochs[-1].test["accuracy"] == expected.epochs[-1].test["accuracy"]


def test_random_numbers_differ_on_the_second_device():
    step = captured(net(nn.Dropout(0.5)), "SGD")
    with pair_of(step, 6) as pair:
        x, y = batches(1)[0]
        pair.step(torch.cat([x[:6], x[:6]]), torch.cat([y[:6], y[:6]]))
        outputs = pair.outputs()["output"]
    assert not np.allclose(outputs[:6], outputs[6:]), "equal samples must get other masks"


def test_what_cannot_be_split_says_why():
    with pytest.raises(PlanError, match=r"changes .*running_mean.*batch norm.*Try: one device"):
        split_step(captured(net(nn.BatchNorm1d(16))), 6, 6)
    with pytest.raises(PlanError, match="accumulates gradients"):
        split_step(captured(net(), accumulate=2), 6, 6)
    with pytest.raises(PlanError, match="at least one"):
        split_step(captured(net()), 12, 0)
    step = captured(net())
    step.code = None
    with pytest.raises(PlanError, match=r"no training graph for 6 samples.*handheld package --batch 6"):
        split_step(step, 6, 6)


class Killer:
    """Kills a process after a number of steps."""

    def __init__(self, pid: int, after: int) -> None:
        self.pid, self.after = pid, after

    def on_step(self, progress) -> None:
        if progress.step == self.after:
            os.kill(self.pid, signal.SIGKILL)


@pytest.mark.parametrize("first", [False, True])
def test_a_device_that_vanishes_leaves_the_last_checkpoint(tmp_path, first):
    data, path = batches(8), tmp_path / "run.checkpoint"
    whole = captured(net(), "SGD")
    broken, resumed = whole.copy(), whole.copy()
    devices = ("runner", "reference:cpu") if first else ("reference:cpu", "runner")
    pair = pair_of(broken, 6, devices)
    killer = Killer((pair if first else pair.second).session.pid, 5)
    with pytest.raises(TargetLost, match=r"runner.*The last checkpoint is from epoch 1, batch 4"), pair:
        pair.fit(data, epochs=1, checkpoint=path, every=2, callbacks=[killer])
    with whole.plan("reference:cpu").start() as trainer:
        trainer.fit(data, epochs=1)
    with resumed.plan("reference:cpu").start() as trainer:
        trainer.fit(data, epochs=1, checkpoint=path, resume=True)
    assert_equal(whole, resumed)

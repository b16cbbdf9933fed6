"""The training loop: learning, how a run ends, and that no work is lost."""

from __future__ import annotations

import dataclasses
import errno
import os
import signal
import types

import numpy as np
import psutil
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import handheld
from handheld.data.batches import ArrayData
from handheld.errors import CheckpointError, DataError, DeviceError, HandheldError, NonFiniteLoss
from handheld.run import guards
from handheld.run.checkpoint import read_checkpoint
from handheld.run.interrupt import Interrupted
from handheld.run.loop import Progress, fit

BATCH = 16


class Net(nn.Module):
    """A model with batch statistics, random masks and momentum: everything that a checkpoint must contain."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.drop = nn.Linear(12, 24), nn.BatchNorm1d(24), nn.Dropout(0.2)
        self.b = nn.Linear(24, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.drop(F.relu(self.norm(self.a(x)))))


def data(count: int = 120, seed: int = 0, **options) -> ArrayData:
    rng = np.random.default_rng(5)
    centres = rng.standard_normal((3, 12))
    labels = rng.integers(0, 3, count)
    x = (centres[labels] + 0.4 * rng.standard_normal((count, 12))).astype(np.float32)
    return ArrayData(x, labels, batch_size=BATCH, seed=seed, **options)


@pytest.fixture(scope="module")
def shared():
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    batch = (torch.zeros(BATCH, 12), torch.zeros(BATCH, dtype=torch.int64))
    step = handheld.capture(model, F.cross_entropy, optimizer, batch, seed=3)
    with step.plan("opencl").start() as trainer:
        yield trainer, trainer.state()


@pytest.fixture
def trainer(shared):
    """One trainer for all tests; each test starts from the captured state."""
    reset(*shared)
    return shared[0]


def reset(trainer, state) -> None:
    trainer.load(state)
    trainer.micro = 0


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)


class Recorder:
    def __init__(self) -> None:
        self.steps: list[Progress] = []
        self.epochs: list[int] = []

    def on_step(self, progress: Progress) -> None:
        self.steps.append(progress)

    def on_epoch(self, row) -> None:
        self.epochs.append(row.number)


def test_learns_and_counts_every_test_sample(trainer):
    recorder, test = Recorder(), data(50, shuffle=False)
    history = fit(trainer, data(), epochs=6, test=test, callbacks=[recorder])
    assert [e.number for e in history.epochs] == recorder.epochs == [1, 2, 3, 4, 5, 6]
    assert history.epochs[-1].loss < history.epochs[0].loss
    assert history.test["accuracy"] > 0.9
    assert round(history.test["accuracy"] * 50) == pytest.approx(history.test["accuracy"] * 50)
    assert history.steps == 6 * (120 // BATCH) == len(recorder.steps)
    assert recorder.steps[0].loss is None and recorder.steps[-1].loss_step == history.steps - 2


def test_training_reads_one_loss_a_step_and_never_empties_the_queue(trainer):
    before = trainer.counters
    fit(trainer, data(), epochs=2)
    done = trainer.counters - before
    assert done.downloads == done.steps == 14
    assert done.finishes == done.allocations == done.bindings == 0


def test_resume_gives_the_same_bits(shared, tmp_path):
    trainer, start = shared
    rate = lambda epoch: 0.05 / (1 + epoch)  # noqa: E731
    path = tmp_path / "run.checkpoint"

    def train(epochs: int, **options):
        reset(trainer, start)
        history = fit(trainer, data(), epochs=epochs, test=data(40), rate=rate, **options)
        return trainer.state(), history

    straight, history = train(4)
    train(2, checkpoint=path)
    resumed, again = train(4, checkpoint=path, resume=True)
    assert same(straight, resumed) and not same(straight, start)
    assert [(e.loss, e.test) for e in again.epochs] == [(e.loss, e.test) for e in history.epochs]
    assert again.steps == history.steps


class PressCtrlC:
    def on_step(self, progress: Progress) -> None:
        if progress.step == 10:
            os.kill(os.getpid(), signal.SIGINT)


def test_interrupted_in_the_middle_of_an_epoch_and_resumed(shared, tmp_path):
    trainer, start = shared
    path = tmp_path / "run.checkpoint"
    reset(trainer, start)
    fit(trainer, data(), epochs=2)
    straight = trainer.state()
    reset(trainer, start)
    with pytest.raises(Interrupted, match="after step 10") as stop:
        fit(trainer, data(), epochs=2, checkpoint=path, callbacks=[PressCtrlC()])
    assert str(path) in str(stop.value) and stop.value.history.steps == 10
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with trainer.plan.step.copy().plan("opencl").start() as fresh:  # As in another process.
        history = fit(fresh, data(), epochs=2, checkpoint=path, resume=True)
        assert same(straight, fresh.state()) and history.steps == 14


def test_resume_between_two_updates_of_accumulated_gradients(tmp_path):
    model = nn.Linear(12, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    batch = (torch.zeros(BATCH, 12), torch.zeros(BATCH, dtype=torch.int64))
    step = handheld.capture(model, F.cross_entropy, optimizer, batch, accumulate=3)
    plan, path = step.plan("opencl", graphs=["train", "train.accumulate"]), tmp_path / "run"
    with plan.start() as trainer:
        start = trainer.state()
        fit(trainer, data(), epochs=2)
        straight = trainer.state()
        reset(trainer, start)
        with pytest.raises(Interrupted):
            fit(trainer, data(), epochs=2, checkpoint=path, callbacks=[PressCtrlC()])
        assert trainer.micro == 1
        reset(trainer, start)
        fit(trainer, data(), epochs=2, checkpoint=path, resume=True)
        assert same(straight, trainer.state()) and trainer.micro == 14 % 3


def test_a_second_ctrl_c_stops_at_once_and_names_the_last_checkpoint(trainer, tmp_path):
    class PressTwice:
        def on_step(self, now) -> None:
            if now.step == 5:
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)

    path = tmp_path / "run.checkpoint"
    with pytest.raises(Interrupted, match=r"twice.* after step 5\. The last .*batch 4: ") as stop:
        fit(trainer, data(), epochs=2, checkpoint=path, every=2, callbacks=[PressTwice()])
    assert stop.value.history.steps == 5 and path.exists()


def test_a_callback_ends_training(trainer):
    class Enough:
        def on_epoch(self, row) -> bool:
            return row.number < 2

    history = fit(trainer, data(), epochs=5, callbacks=[Enough()])
    assert len(history.epochs) == 2 and "callback" in history.stopped


# ── bad input ─────────────────────────────────────────────────────────────────────────────────


def with_nan(at: int) -> list[tuple[np.ndarray, np.ndarray]]:
    batches = list(data().epoch(0))
    batches[at] = (np.full_like(batches[at][0], np.nan), batches[at][1])
    return batches


def test_a_nan_loss_stops_and_names_the_step(trainer, tmp_path):
    path = tmp_path / "run.checkpoint"
    with pytest.raises(NonFiniteLoss, match=r"nan at step 4 \(epoch 1, batch 4\)"):
        fit(trainer, with_nan(3), epochs=1, checkpoint=path, every=1)
    fit(trainer, [], epochs=0, checkpoint=path, resume=True)
    assert all(np.isfinite(v).all() for v in trainer.state().values())


def test_find_nan_names_the_input(trainer):
    with pytest.raises(NonFiniteLoss, match="input '0' of the batch holds nan"):
        fit(trainer, with_nan(3), epochs=1, find_nan=True)


def test_find_nan_names_the_op_of_the_step_at_fault(trainer):
    """A learning rate that overflows the weights gives a NaN loss only one step later."""
    rate = lambda epoch: 1e38 if epoch * 7 > 2.5 else 0.05  # noqa: E731
    with pytest.raises(NonFiniteLoss, match=r"made (nan|inf) from") as error:
        fit(trainer, data(), epochs=1, find_nan=True, rate=rate)
    assert "(update of" in str(error.value) or "(forward of" in str(error.value)
    assert all(np.isfinite(v).all() for v in trainer.state().values())


@pytest.mark.parametrize("device", ["opencl", "reference:cpu"])
def test_find_nan_goes_back_to_the_step_that_broke_a_weight(device):
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e3)
    tame, wild = torch.ones(2, 1), torch.full((2, 1), 1e19)
    step = handheld.capture(model, lambda y: (y * y).mean(), optimizer, (tame,))
    with step.plan(device, graphs=["train"]).start() as trainer:
        with pytest.raises(NonFiniteLoss, match=r"at step 3 .* made inf from finite") as e:
            fit(trainer, [(tame * 0,), (wild,), (tame,)], epochs=1, find_nan=True)
        assert "optim.sgd (update of" in str(e.value) and "in step 2" in str(e.value)
        assert trainer.state()["weight"] == np.float32(0.1)


class Logarithm(nn.Module):
    """An op that is fused with others into one kernel."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log(x * 2 + 1).abs()


@pytest.mark.parametrize("device", ["opencl", "reference:cpu"])
def test_find_nan_names_the_op_inside_a_fused_kernel(device, tmp_path):
    model = nn.Sequential(nn.Linear(2, 2), Logarithm(), nn.Tanh())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = (torch.full((4, 2), 1e3),)
    nn.init.constant_(model[0].weight, -1.0)
    step = handheld.capture(model, lambda y: y.mean(), optimizer, batch, evaluate=False)
    assert not any("aten.log." in node.origin.torch_op for node in step.graphs["train"].nodes)
    for source, named in (
        (step, r"aten\.log\.default \(forward of 1\) made nan from finite"),
        (handheld.load(step.save(tmp_path / "a.step")), "'log' of its kernel"),
    ):
        with source.plan(device).start() as trainer:
            before = trainer.state()
            with pytest.raises(NonFiniteLoss, match=named):
                fit(trainer, [batch], epochs=1, find_nan=True)
            assert same(before, trainer.state())


def test_a_rate_that_is_no_number_is_an_error(trainer):
    for rate in (1e39, float("nan"), float("inf"), -0.1):
        with pytest.raises(HandheldError, match="a finite number, 0 or more"):
            fit(trainer, data(), epochs=1, rate=lambda epoch, rate=rate: rate)


def test_a_full_disk_leaves_the_old_checkpoint_and_the_state(trainer, tmp_path, monkeypatch):
    path = tmp_path / "run.checkpoint"
    fit(trainer, data(), epochs=1, checkpoint=path)
    old = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match="No space left on device"):
        fit(trainer, data(), epochs=2, checkpoint=path, resume=True)
    assert path.read_bytes() == old and list(tmp_path.iterdir()) == [path]
    assert int(trainer.state()["handheld.step"]) == 14


class Messages:
    def __init__(self):
        self.texts = []

    def on_message(self, text):
        self.texts.append(text)


def test_a_resume_says_what_is_not_as_it_was(shared, tmp_path):
    trainer, start = shared
    path = tmp_path / "run"

    def train(epochs, rate, resume):
        told = Messages()
        reset(trainer, start)
        fit(trainer, data(), epochs=epochs, checkpoint=path, resume=resume, rate=rate, callbacks=[told])
        return told.texts

    train(1, lambda epoch: 0.1, False)
    assert not train(1, lambda epoch: 0.1, True)
    where, text = train(2, lambda epoch: 0.1, True)
    assert where == f"continuing at epoch 2 of 2, from {path}"
    assert "epochs were 1 and are 2" in text and "rate" not in text
    (text,) = train(2, lambda epoch: 0.2, True)
    assert text.endswith("the rate of its last step was 0.1; now it would be 0.2")
    (text,) = train(2, None, True)
    assert "the checkpoint's rate 0.1 is used, not the step's 0.05" in text
    apart = trainer.plan.step.copy().plan("reference:cpu").start()
    told = Messages()
    fit(apart, data(), epochs=2, checkpoint=path, resume=True, rate=lambda epoch: 0.1, callbacks=[told])
    assert "the device was " in told.texts[0] and " and is PyTorch " in told.texts[0]


def test_other_samples_or_another_seed_are_an_error(trainer, tmp_path):
    path = tmp_path / "run"
    fit(trainer, data(seed=1), epochs=1, checkpoint=path)
    with pytest.raises(CheckpointError, match="written with seed 1 of the data; now it is 0"):
        fit(trainer, data(), epochs=2, checkpoint=path, resume=True)
    other = data(seed=1)
    other.arrays[0][0, 0] += 1
    with pytest.raises(CheckpointError, match="belongs to other data: the samples are not the same"):
        fit(trainer, other, epochs=2, checkpoint=path, resume=True)


def test_resume_from_nothing_or_from_other_data_is_an_error(trainer, tmp_path):
    path = tmp_path / "run.checkpoint"
    with pytest.raises(CheckpointError, match="no checkpoint"):
        fit(trainer, data(), epochs=1, checkpoint=path, resume=True)
    with pytest.raises(CheckpointError, match="checkpoint=PATH"):
        fit(trainer, data(), epochs=1, resume=True)
    fit(trainer, data(), epochs=1, checkpoint=path)
    with pytest.raises(CheckpointError, match="seed 0 of the data; now it is 1"):
        fit(trainer, data(seed=1), epochs=2, checkpoint=path, resume=True)


def test_a_checkpoint_of_another_model_is_known_without_a_device(trainer, tmp_path):
    path, slots = tmp_path / "run.checkpoint", dict(trainer.plan.step.slots)
    fit(trainer, data(), epochs=1, checkpoint=path)
    assert read_checkpoint(path, data(), slots).epoch == 1
    lost = {name: slot for name, slot in slots.items() if name != "a.weight"}
    with pytest.raises(CheckpointError, match=r"belongs to another model: .* model has no a\.weight"):
        read_checkpoint(path, data(), lost)
    more = {**slots, "c": dataclasses.replace(slots["a.weight"], name="c", names=("c",))}
    with pytest.raises(CheckpointError, match="it has no value for c"):
        read_checkpoint(path, data(), more)
    wide = {**slots, "a.weight": dataclasses.replace(slots["a.weight"], shape=(24, 13))}
    with pytest.raises(CheckpointError, match=r"a.weight has shape \(24, 12\); this step needs"):
        read_checkpoint(path, data(), wide)


def test_an_iterator_serves_one_epoch(trainer):
    assert fit(trainer, iter(list(data().epoch(0))), epochs=1).steps == 7
    with pytest.raises(DataError, match="only once"):
        fit(trainer, iter(list(data().epoch(0))), epochs=2)


def test_a_schedule_of_the_wrong_length_is_an_error(trainer):
    with pytest.raises(HandheldError, match="2 rates"):
        fit(trainer, data(), epochs=1, rate=lambda epoch: [0.1, 0.2])


# ── battery and temperature ───────────────────────────────────────────────────────────────────


def battery(monkeypatch, percent: float, plugged: bool = False) -> None:
    found = types.SimpleNamespace(percent=percent, power_plugged=plugged)
    monkeypatch.setattr(psutil, "sensors_battery", lambda: found, raising=False)


def test_asking_for_a_sensor_that_is_not_there_is_an_error(trainer, monkeypatch):
    monkeypatch.setattr(psutil, "sensors_battery", lambda: None, raising=False)
    monkeypatch.setattr(psutil, "sensors_temperatures", dict, raising=False)
    with pytest.raises(DeviceError, match="reports no battery"):
        fit(trainer, data(), epochs=1, battery_floor=20)
    with pytest.raises(DeviceError, match="reports no temperature"):
        fit(trainer, data(), epochs=1, thermal_limit=60)
    assert int(trainer.state()["handheld.step"]) == 0


def test_a_low_battery_ends_training_with_a_checkpoint(trainer, tmp_path, monkeypatch):
    path = tmp_path / "run.checkpoint"
    battery(monkeypatch, 15)
    history = fit(trainer, data(), epochs=3, battery_floor=20, checkpoint=path)
    assert "15%, below the floor of 20%" in history.stopped and path.exists()
    battery(monkeypatch, 15, plugged=True)
    assert fit(trainer, data(), epochs=2, battery_floor=20).stopped == ""


def test_a_hot_device_is_given_time(trainer, monkeypatch):
    readings = iter([70.0, 90.0, 88.0, 84.0, *[60.0] * 1000])
    sensor = lambda: {"cpu": [types.SimpleNamespace(current=next(readings), label="")]}  # noqa: E731
    monkeypatch.setattr(psutil, "sensors_temperatures", sensor, raising=False)
    monkeypatch.setattr(guards, "PERIOD", 0.0)
    messages: list[str] = []
    callback = types.SimpleNamespace(on_message=messages.append)
    history = fit(trainer, data(), epochs=1, thermal_limit=90, callbacks=[callback])
    assert messages[0].startswith("paused: 90 °C (cpu); ") and messages[1] == ""
    assert history.paused_seconds > 0.3 and history.steps == 7

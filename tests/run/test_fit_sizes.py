"""`fit` on data whose batches do not all have the size of the step."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import handheld
from handheld.data.batches import ArrayData
from handheld.errors import BatchError
from handheld.run.history import History
from helpers.sizes import BATCH, COUNT, Pair, captured, first_of, samples, torch_results, worst


def loader(count: int = COUNT, size: int = BATCH, **options) -> DataLoader:
    return DataLoader(TensorDataset(*(torch.from_numpy(a) for a in samples(count))), batch_size=size, **options)


def shape(kind: str, count: int, size: int = BATCH):
    x, y = samples(count)
    if kind == "arrays":
        return ArrayData(x, y, batch_size=size, shuffle=False, keep_short=True)
    if kind == "list":
        return [(x[i : i + size], y[i : i + size]) for i in range(0, count, size)]
    return loader(count, size)


@pytest.mark.parametrize("kind", ["arrays", "list", "loader"])
@pytest.mark.parametrize(("count", "size"), [(50, 32), (5, 32), (50, 20)])
def test_fit_evaluates_every_sample(kind, count, size):
    model, _, step = captured()
    x, y = samples(count)
    with step.plan("opencl").start() as trainer:
        history = trainer.fit(shape("list", 64), epochs=2, test=shape(kind, count, size))
        step.copy_to(model)
    expected, scores = torch_results(model, x, y)
    assert history.test["loss"] == pytest.approx(expected, rel=1e-5)
    assert history.test["accuracy"] == pytest.approx(float((scores.argmax(1) == y).mean()))
    assert not history.last.note


@pytest.mark.parametrize("count", [50, 5])
def test_fit_with_a_step_file_evaluates_every_sample(tmp_path, count):
    model, _, step = captured()
    step.save(tmp_path / "net.step")
    step = handheld.load(tmp_path / "net.step")
    x, y = samples(count)
    with step.plan("opencl").start() as trainer:
        history = trainer.fit(shape("list", 64), epochs=1, test=ArrayData(x, y, batch_size=32, keep_short=True))
        step.copy_to(model)
    expected, scores = torch_results(model, x, y)
    assert history.test["loss"] == pytest.approx(expected, rel=1e-4)
    assert history.test["accuracy"] == pytest.approx(float((scores.argmax(1) == y).mean()))


@pytest.mark.parametrize("kind", ["arrays", "list", "loader"])
def test_fit_trains_the_last_batch_as_pytorch_does(kind):
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))
    model, optimizer, step = captured(model=model, clip_value=0.1)
    with step.plan("opencl").start() as trainer:
        history = trainer.fit(shape(kind, COUNT), epochs=2)
        state = trainer.state()
        assert [e.samples for e in history.epochs] == [50, 50] and history.dropped == 0 and history.steps == 4
    losses = []
    for x, y in list(loader()) * 2:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.1)
        optimizer.step()
        losses.append(loss.item() * len(x))
    for name, value in model.state_dict().items():
        np.testing.assert_allclose(state[name], value.numpy(), rtol=1e-4, atol=1e-5)
    assert history.epochs[0].loss == pytest.approx(sum(losses[:2]) / 50, rel=1e-5)


def test_accumulated_gradients_with_a_short_last_batch():
    model, optimizer, step = captured(model=nn.Linear(6, 3), accumulate=2)
    with step.plan("opencl").start() as trainer:
        trainer.fit(loader(), epochs=2)
        state = trainer.state()
    for _ in range(2):
        optimizer.zero_grad()
        for x, y in loader():
            (F.cross_entropy(model(x), y) / 2).backward()
        optimizer.step()
    np.testing.assert_allclose(state["weight"], model.weight.detach().numpy(), rtol=1e-4, atol=1e-5)


def test_sizes_are_added_before_the_first_step():
    _, _, step = captured()
    with step.plan("opencl").start() as trainer:
        sessions = []

        class Callback:
            def on_step(self, progress):
                sessions.append((trainer.session, sorted(trainer.plan.graphs)))

        trainer.fit(loader(), epochs=2, test=loader(40), callbacks=[Callback()])
    assert len({id(session) for session, _ in sessions}) == 1
    assert sessions[0][1] == ["evaluate", "evaluate@8", "predict", "train", "train@18"]


def test_programs_are_not_built_again():
    _, _, step = captured()
    with step.plan("opencl").start() as trainer:
        built = trainer.counters.builds
        assert not trainer.add_sizes("predict", [18])
        added = trainer.counters.builds - built
        assert added < built  # Most texts do not depend on the batch size.
        trainer.reopen(["train", "predict"])
        assert trainer.counters.builds == built + added  # All of its programs are there.
        assert np.isfinite(trainer.predict(samples(32)[0])).all()


class Messages:
    def __init__(self) -> None:
        self.texts: list[str] = []

    def on_message(self, text: str) -> None:
        self.texts.append(text)


def test_what_is_left_out_is_counted(tmp_path):
    _, _, step = captured()
    step.save(tmp_path / "net.step")
    x, y = samples()
    with handheld.load(tmp_path / "net.step").plan("opencl").start() as trainer:
        messages = Messages()
        history = trainer.fit(loader(), epochs=2, callbacks=[messages])
        assert [e.dropped for e in history.epochs] == [18, 18] and history.dropped == 36
        assert [e.samples for e in history.epochs] == [32, 32]
        assert len(messages.texts) == 1 and "a batch of 18 samples is left out" in messages.texts[0]
        with pytest.warns(UserWarning, match=r"18 samples is left out.*Try: handheld package --batch 32,18"):
            trainer.fit(loader(), epochs=1)
        assert trainer.fit(ArrayData(x, y, batch_size=32), epochs=1).last.dropped == 18
        with (
            pytest.warns(UserWarning, match="left out"),
            pytest.raises(BatchError, match=r"every batch of epoch 1 is too small.*Try: batches of 32"),
        ):
            trainer.fit(loader(18), epochs=1)


def test_a_batch_that_pytorch_cannot_train_is_left_out():
    _, _, step = captured()
    with (
        step.plan("opencl").start() as trainer,
        pytest.warns(UserWarning, match=r"a batch of 1 sample is left out.*more than 1 value per channel"),
    ):
        history = trainer.fit(loader(33), epochs=1)
    assert (history.last.dropped, history.last.samples) == (1, 32)


def test_a_loss_that_is_no_mean_is_noted_in_the_history(tmp_path):
    _, _, step = captured(lambda out, y: worst(out, F.one_hot(y, 3)))
    step.save(tmp_path / "net.step")
    with handheld.load(tmp_path / "net.step").plan("opencl").start() as trainer:
        messages = Messages()
        history = trainer.fit(shape("list", 32), epochs=2, test=loader(), callbacks=[messages])
    assert all(e.note.startswith("the test loss covers 32 of 50 samples: ") for e in history.epochs)
    assert messages.texts == [history.last.note]


def test_an_output_without_rows_is_noted(tmp_path):
    _, _, step = captured(first_of, model=Pair())
    step.save(tmp_path / "net.step")
    with handheld.load(tmp_path / "net.step").plan("opencl").start() as trainer:
        messages = Messages()
        history = trainer.fit(shape("list", 32), epochs=1, test=loader(), callbacks=[messages])
    assert history.last.note == "output 'output.1' includes samples that fill up the last batch"


def test_resume_with_a_short_batch_gives_the_same_bits(tmp_path):
    states = []
    for interrupted in (False, True):
        _, _, step = captured()
        with step.plan("opencl").start() as trainer:
            path = tmp_path / f"{interrupted}.checkpoint"
            if interrupted:
                trainer.fit(loader(), epochs=1, checkpoint=path)
            trainer.fit(loader(), epochs=3, checkpoint=path, resume=interrupted)
            states.append(trainer.state())
    assert all(np.array_equal(states[0][name], states[1][name]) for name in states[0])


def test_an_old_history_is_read():
    history = History.from_json({"epochs": [], "steps": 3, "paused_seconds": 0.0})
    assert history.dropped == 0
    row = {"number": 1, "loss": 0.5, "rate": 0.1, "samples": 32, "seconds": 1.0, "test": {}}
    old = History.from_json({"epochs": [row], "steps": 3, "paused_seconds": 0.0})
    assert (old.epochs[0].dropped, old.epochs[0].note) == (0, "")
    new = dataclasses.replace(old.epochs[0], dropped=3, note="why")
    assert History.from_json(History([new]).to_json()).epochs == [new]

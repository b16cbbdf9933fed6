"""`fit` equals a loop in PyTorch on the same data: schedulers, early stopping and keep-best, also after a resume."""

from __future__ import annotations

import copy
import os
import signal

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler as schedulers

import handheld
from handheld.data.batches import ArrayData
from handheld.errors import CheckpointError, HandheldError, NonFiniteLoss
from handheld.run.interrupt import Interrupted
from handheld.run.loop import fit

BATCH, BATCHES, EPOCHS = 16, 5, 6


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def data(seed: int, batches: int = BATCHES, noise: float = 1.5) -> ArrayData:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, BATCH * batches)
    centres = np.random.default_rng(9).standard_normal((3, 6))
    x = (centres[labels] + noise * rng.standard_normal((len(labels), 6))).astype(np.float32)
    return ArrayData(x, labels, batch_size=BATCH, seed=seed)


TRAIN, TEST = data(1), data(2)


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    layers = [{"params": net[0].parameters()}, {"params": net[2].parameters(), "lr": 0.4}]
    return torch.optim.SGD(layers, lr=0.2, momentum=0.9)


def scored(net: nn.Module) -> dict[str, float]:
    x, y = (torch.from_numpy(a) for a in TEST.arrays)
    with torch.no_grad():
        scores = net(x)
    return {"loss": float(F.cross_entropy(scores, y)), "accuracy": float((scores.argmax(1) == y).float().mean())}


class Loop:
    """The loop that people write in PyTorch."""

    def __init__(self, make=None, every="epoch", epochs=EPOCHS, patience=None, best=None, test=True):
        self.net = model()
        optimizer = sgd(self.net)
        scheduler = make(optimizer) if make else None
        self.rates, self.scores, self.best_epoch, waited = [], [], 0, 0
        for epoch in range(epochs):
            losses = []
            for x, y in TRAIN.epoch(epoch):
                optimizer.zero_grad()
                loss = F.cross_entropy(self.net(torch.from_numpy(x)), torch.from_numpy(y))
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
                last = optimizer.param_groups[0]["lr"]
                if scheduler and every == "step":
                    scheduler.step()
            self.rates.append(last)
            score = scored(self.net) if test else {"loss": float(np.mean(losses))}
            self.scores.append(score)
            if scheduler and every == "epoch":
                plateau = isinstance(scheduler, schedulers.ReduceLROnPlateau)
                scheduler.step(*[score["accuracy" if scheduler.mode == "max" else "loss"]] if plateau else [])
            if best is None:
                continue
            sign = -1 if best == "accuracy" else 1
            if not self.best_epoch or sign * score[best] < sign * self.scores[self.best_epoch - 1][best]:
                self.best_epoch, waited, self.state = epoch + 1, 0, copy.deepcopy(self.net.state_dict())
            else:
                waited += 1
            if waited == patience:
                break


def start(make=None):
    net = model()
    optimizer = sgd(net)
    scheduler = make(optimizer) if make else None
    batch = tuple(torch.from_numpy(a) for a in next(iter(TRAIN)))
    step = handheld.capture(net, F.cross_entropy, optimizer, batch)
    return step.plan("opencl").start(), scheduler, optimizer


def close(trainer, state) -> None:
    for key, value in state.items():
        np.testing.assert_allclose(trainer.state()[key], value, rtol=3e-4, atol=3e-5, err_msg=key)


def sequential(o):
    warm = schedulers.LinearLR(o, 0.1, total_iters=2)
    return schedulers.SequentialLR(o, [warm, schedulers.CosineAnnealingLR(o, 4)], milestones=[2])


STEPS = BATCHES * EPOCHS
CASES = {
    "StepLR": (lambda o: schedulers.StepLR(o, 2, 0.5), "epoch"),
    "MultiStepLR": (lambda o: schedulers.MultiStepLR(o, [1, 1, 4], 0.5), "epoch"),
    "LambdaLR": (lambda o: schedulers.LambdaLR(o, lambda n: 0.8**n), "epoch"),
    "SequentialLR": (sequential, "epoch"),
    "ChainedScheduler": (
        lambda o: schedulers.ChainedScheduler([schedulers.ConstantLR(o, 0.3, 3), schedulers.ExponentialLR(o, 0.9)]),
        "step",
    ),
    "CosineAnnealingWarmRestarts": (lambda o: schedulers.CosineAnnealingWarmRestarts(o, 4, 2), "step"),
    "OneCycleLR": (lambda o: schedulers.OneCycleLR(o, 0.5, total_steps=STEPS, cycle_momentum=False), "step"),
    "OneCycleLR with momentum": (lambda o: schedulers.OneCycleLR(o, 0.5, total_steps=STEPS), "step"),
    "CyclicLR": (lambda o: schedulers.CyclicLR(o, 0.01, 0.3, 4, cycle_momentum=False), "step"),
    "ReduceLROnPlateau": (lambda o: schedulers.ReduceLROnPlateau(o, "min", 0.3, patience=0), "epoch"),
    "ReduceLROnPlateau max": (lambda o: schedulers.ReduceLROnPlateau(o, "max", 0.3, patience=0), "epoch"),
}


@pytest.mark.filterwarnings("ignore:The epoch parameter")
@pytest.mark.parametrize("name", CASES)
def test_a_scheduler_gives_the_same_parameters_also_after_a_resume(name, tmp_path):
    make, every = CASES[name]
    expected = Loop(make, every)
    trainer, scheduler, _ = start(make)
    history = fit(trainer, TRAIN, epochs=EPOCHS, test=TEST, rate=scheduler, rate_every=every)
    assert [e.rate for e in history.epochs] == pytest.approx(expected.rates, rel=1e-6)
    close(trainer, expected.net.state_dict())
    whole = trainer.state()
    assert len({e.rate for e in history.epochs}) > 1, "the rate changes in this test"
    # The same in two parts, the second from the checkpoint, in a new process as it were.
    trainer, scheduler, _ = start(make)
    path = tmp_path / "run.checkpoint"

    class Stop:
        def on_step(self, now):
            return now.step < 2 * BATCHES + 3

    fit(trainer, TRAIN, epochs=EPOCHS, test=TEST, rate=scheduler, rate_every=every, checkpoint=path, callbacks=[Stop()])
    trainer, scheduler, _ = start(make)
    history = fit(
        trainer, TRAIN, epochs=EPOCHS, test=TEST, rate=scheduler, rate_every=every, checkpoint=path, resume=True
    )
    assert len(history.epochs) == EPOCHS
    assert [e.rate for e in history.epochs] == pytest.approx(expected.rates, rel=1e-6)
    for key, value in trainer.state().items():
        assert np.array_equal(value, whole[key]), key


def test_reduce_on_plateau_looks_at_the_training_loss_without_a_test_set():
    def make(o):
        return schedulers.ReduceLROnPlateau(o, "min", 0.3, patience=0, threshold=0.05)

    expected = Loop(make, test=False)
    trainer, scheduler, _ = start(make)
    history = fit(trainer, TRAIN, epochs=EPOCHS, rate=scheduler)
    assert [e.rate for e in history.epochs] == pytest.approx(expected.rates)
    close(trainer, expected.net.state_dict())


def test_a_scheduler_steps_once_per_update_of_accumulated_gradients():
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    batch = tuple(torch.from_numpy(a) for a in next(iter(TRAIN)))
    step = handheld.capture(net, F.cross_entropy, optimizer, batch, accumulate=2)
    scheduler = schedulers.OneCycleLR(optimizer, 0.5, total_steps=5, cycle_momentum=False)
    with step.plan("opencl").start() as trainer:
        fit(trainer, TRAIN, epochs=2, rate=scheduler, rate_every="step")  # 10 batches
    assert scheduler.last_epoch == 5


def test_a_step_file_takes_the_rates_of_any_optimizer(tmp_path):
    trainer, _, _ = start()
    trainer.plan.step.save(tmp_path / "a.step")
    scheduler = schedulers.ExponentialLR(sgd(model()), 0.5)
    expected = Loop(lambda o: schedulers.ExponentialLR(o, 0.5), epochs=3)
    with handheld.load(tmp_path / "a.step").plan("opencl").start() as loaded:
        fit(loaded, TRAIN, epochs=3, rate=scheduler)
        close(loaded, expected.net.state_dict())
        with pytest.raises(HandheldError, match="has 1 parameter groups, and that of the step has 2"):
            loaded.plan.step.optimizers.clear()
            one = torch.optim.SGD(model().parameters(), lr=0.1)
            fit(loaded, TRAIN, epochs=1, rate=schedulers.ExponentialLR(one, 0.5))


def test_wrong_schedulers_are_errors(tmp_path):
    trainer, _, optimizer = start()
    other = schedulers.ExponentialLR(sgd(model()), 0.5)
    with pytest.raises(HandheldError, match="belongs to another optimizer"):
        fit(trainer, TRAIN, epochs=1, rate=other)
    with pytest.raises(HandheldError, match="rate_every='epoch'"):
        fit(trainer, TRAIN, epochs=1, rate=schedulers.ReduceLROnPlateau(optimizer), rate_every="step")
    with pytest.raises(HandheldError, match="must be 'epoch' or 'step'"):
        fit(trainer, TRAIN, epochs=1, rate=other, rate_every="batch")
    with pytest.raises(HandheldError, match="rate is none"):
        fit(trainer, TRAIN, epochs=1, rate=lambda epoch: 0.1, rate_every="step")
    short = schedulers.OneCycleLR(optimizer, 0.5, total_steps=7, cycle_momentum=False)
    with pytest.raises(HandheldError, match=r"steps it 10 times more. Try: total_steps=10"):
        fit(trainer, TRAIN, epochs=2, rate=short, rate_every="step")
    with pytest.warns(UserWarning, match="Try: rate_every='step'"):
        fit(trainer, TRAIN, epochs=2, rate=short)
    odd = schedulers.ExponentialLR(optimizer, 0.5)
    odd.helper = object()
    with pytest.raises(CheckpointError, match="state of ExponentialLR holds a object"):
        fit(trainer, TRAIN, epochs=1, rate=odd, checkpoint=tmp_path / "run")


def test_a_resume_with_another_scheduler_says_so(tmp_path):
    trainer, _, optimizer = start()
    path = tmp_path / "run"
    fit(trainer, TRAIN, epochs=1, checkpoint=path, rate=schedulers.StepLR(optimizer, 1))
    told: list[str] = []

    class Told:
        on_message = staticmethod(told.append)

    fit(
        trainer,
        TRAIN,
        epochs=2,
        checkpoint=path,
        resume=True,
        rate=schedulers.ExponentialLR(optimizer, 0.9),
        callbacks=[Told()],
    )
    assert any("the scheduler was StepLR and is ExponentialLR" in text for text in told)
    told.clear()
    fit(trainer, TRAIN, epochs=3, checkpoint=path, resume=True, callbacks=[Told()])
    assert any("its scheduler ExponentialLR is not used" in text for text in told)


@pytest.mark.parametrize(("best", "patience"), [("loss", 2), ("accuracy", 3), (None, 2)])
def test_patience_and_the_best_epoch_are_those_of_the_pytorch_loop(best, patience):
    expected = Loop(epochs=30, patience=patience, best=best or "loss")
    trainer, _, _ = start()
    history = fit(trainer, TRAIN, epochs=30, test=TEST, patience=patience, best=best, keep_best=True)
    assert len(history.epochs) == len(expected.scores) < 30
    assert history.best_epoch == expected.best_epoch == history.kept_epoch
    assert history.early and history.best is history.epochs[history.best_epoch - 1]
    direction = "higher test accuracy" if best == "accuracy" else "lower test loss"
    assert history.stopped.startswith(
        f"no {direction} for {patience} epochs: stopped after epoch {len(history.epochs)}"
    )
    assert history.test == history.best.test
    close(trainer, expected.state)
    assert scored_state(trainer) == pytest.approx(history.test, rel=1e-4)


def scored_state(trainer) -> dict[str, float]:
    net = model()
    trainer.plan.step.copy_to(net)
    return scored(net)


def test_without_keep_best_the_last_state_stays():
    trainer, _, _ = start()
    history = fit(trainer, TRAIN, epochs=30, test=TEST, patience=2)
    expected = Loop(epochs=len(history.epochs))
    assert history.best_epoch and not history.kept_epoch
    close(trainer, expected.net.state_dict())


def test_keep_best_survives_stops_and_resumes(tmp_path):
    """Ctrl-C two epochs after the best one, then a resume in what could be another process."""
    expected = Loop(epochs=30, patience=4, best="loss")
    best, path = expected.best_epoch, tmp_path / "run"
    options = {"epochs": 30, "test": TEST, "patience": 4, "keep_best": True, "checkpoint": path}

    class CtrlC:
        def on_step(self, now):
            if now.epoch == best + 3 and now.position == 2:
                os.kill(os.getpid(), signal.SIGINT)

    trainer, _, _ = start()
    with pytest.raises(Interrupted) as stop:
        fit(trainer, TRAIN, callbacks=[CtrlC()], **options)
    assert stop.value.history.kept_epoch == best
    close(trainer, expected.state)
    trainer, _, _ = start()
    history = fit(trainer, TRAIN, resume=True, **options)
    assert (len(history.epochs), history.best_epoch) == (len(expected.scores), best)
    close(trainer, expected.state)
    # Patience is exhausted in the checkpoint too, and another trainer gets the best state from it.
    trainer, _, _ = start()
    again = fit(trainer, TRAIN, resume=True, **options)
    assert again.steps == history.steps and again.early
    close(trainer, expected.state)
    # More patience goes on from the last state, not from the best one.
    trainer, _, _ = start()
    longer = fit(trainer, TRAIN, resume=True, **{**options, "patience": 6})
    assert len(longer.epochs) >= len(history.epochs) + 1
    same = Loop(epochs=len(longer.epochs), best="loss")
    close(trainer, same.state)


def test_keep_best_of_a_checkpoint_without_it_says_what_is_missing(tmp_path):
    trainer, _, _ = start()
    path, told = tmp_path / "run", []
    fit(trainer, TRAIN, epochs=3, test=TEST, checkpoint=path)

    class Told:
        on_message = staticmethod(told.append)

    history = fit(trainer, TRAIN, epochs=5, test=TEST, checkpoint=path, resume=True, keep_best=True, callbacks=[Told()])
    assert any("its state was not kept; epochs after 3 are compared" in text for text in told)
    assert history.best_epoch in (4, 5) and history.kept_epoch == history.best_epoch


def test_nan_leaves_the_best_state():
    trainer, _, _ = start()

    def batches(epoch):
        for x, y in TRAIN.epoch(epoch):
            yield (x * np.nan if epoch == 2 else x), y

    with pytest.raises(NonFiniteLoss, match=r"The trainer holds the state of epoch [12]"):
        fit(trainer, batches, epochs=4, test=TEST, keep_best=True)
    assert all(np.isfinite(value).all() for value in trainer.state().values())


def test_own_metrics_have_a_direction():
    def wrong(outputs, batch):
        return float((next(iter(outputs.values())).argmax(1) != batch[-1]).mean())

    trainer, _, _ = start()
    with pytest.raises(HandheldError, match="is a higher wrong better, or a lower one"):
        fit(trainer, TRAIN, epochs=1, test=TEST, metrics={"wrong": wrong}, best="wrong")
    history = fit(trainer, TRAIN, epochs=4, test=TEST, metrics={"wrong": wrong}, best="wrong", mode="min")
    values = [e.test["wrong"] for e in history.epochs]
    assert history.best_epoch == 1 + int(np.argmin(values)) and history.best_by == "test wrong"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"patience": 0}, "patience=0 must be"),
        ({"best": "accuracy"}, "needs a test set"),
        ({"best": "f1", "mode": "max", "test": TEST}, "no metric of this evaluation, which gives loss, accuracy"),
        ({"best": "loss", "mode": "down"}, "must be 'min' or 'max'"),
        ({"mode": "min"}, "no metric is named"),
        ({"best": 3}, "must be the name of a metric"),
    ],
)
def test_wrong_goals_are_errors(options, text):
    trainer, _, _ = start()
    with pytest.raises(HandheldError, match=text):
        fit(trainer, TRAIN, epochs=2, **options)

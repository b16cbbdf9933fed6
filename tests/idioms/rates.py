"""Idioms of optimizers and their learning rates."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, lr_scheduler

import handheld
from handheld.errors import HandheldError
from helpers.custom_optimizers import Lion
from idioms.idiom import DEVICE, assert_same, assert_trains_alike, batches, idiom, mlp, nothing, torch_loop, twin


def _follow(make: Any, per_step: bool, optimizer: Any = SGD) -> None:
    """A scheduler in a custom loop, here and in PyTorch."""
    data, model = batches(5), mlp()
    other = twin(model)
    own, theirs = optimizer(model.parameters(), 0.1), optimizer(other.parameters(), 0.1)
    scheduler, their_scheduler = make(own), make(theirs)
    step = handheld.capture(model, F.cross_entropy, own, data[0])
    with warnings.catch_warnings():
        # PyTorch says that optimizer.step() was not called; Handheld calls its own.
        warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
        with step.plan(DEVICE).start() as trainer:
            for _ in range(3):
                for batch in data:
                    trainer.step(*batch)
                    if per_step:
                        scheduler.step()
                if not per_step:
                    scheduler.step()
    for _ in range(3):
        torch_loop(other, F.cross_entropy, theirs, data, after_update=their_scheduler.step if per_step else nothing)
        if not per_step:
            their_scheduler.step()
    assert_same(step, other)


@idiom("rates", "`scheduler.step()` once per epoch (`StepLR`, `CosineAnnealingLR`, …)")
def scheduler_per_epoch() -> None:
    _follow(lambda o: lr_scheduler.StepLR(o, 1, gamma=0.5), False)
    _follow(lambda o: lr_scheduler.CosineAnnealingLR(o, 3), False, Adam)


@idiom("rates", "warm-up with `LambdaLR`, stepped per batch")
def warm_up() -> None:
    _follow(lambda o: lr_scheduler.LambdaLR(o, lambda n: min(1.0, (n + 1) / 8)), True, AdamW)


@idiom("rates", "`OneCycleLR(optimizer, max_lr, total_steps)`, stepped per batch")
def one_cycle() -> None:
    _follow(lambda o: lr_scheduler.OneCycleLR(o, 0.2, total_steps=16, cycle_momentum=False), True)


@idiom("rates", "`ReduceLROnPlateau(optimizer)`, stepped with the test loss")
def plateau() -> None:
    data, test = batches(4), batches(2, seed=5)
    model = mlp()
    optimizer = SGD(model.parameters(), 0.1)
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.5)
    step = handheld.capture(model, F.cross_entropy, optimizer, data[0])
    with step.plan(DEVICE).start() as trainer:
        history = trainer.fit(data, epochs=4, test=test, rate=scheduler)
    theirs = SGD(mlp().parameters(), 0.1)
    scheduler = lr_scheduler.ReduceLROnPlateau(theirs, factor=0.5, patience=0, threshold=0.5)
    expected = []
    for epoch in history.epochs:
        expected.append(theirs.param_groups[0]["lr"])
        scheduler.step(epoch.test["loss"])
    assert [epoch.rate for epoch in history.epochs] == pytest.approx(expected)
    assert min(expected) < 0.1


@idiom("rates", "`trainer.fit(…, rate=scheduler)`")
def scheduler_in_fit() -> None:
    data, model = batches(4), mlp()
    other = twin(model)
    own, theirs = SGD(model.parameters(), 0.1), SGD(other.parameters(), 0.1)
    step = handheld.capture(model, F.cross_entropy, own, data[0])
    with step.plan(DEVICE).start() as trainer:
        trainer.fit(data, epochs=3, rate=lr_scheduler.ExponentialLR(own, 0.5))
    scheduler = lr_scheduler.ExponentialLR(theirs, 0.5)
    for _ in range(3):
        torch_loop(other, F.cross_entropy, theirs, data)
        scheduler.step()
    assert_same(step, other)


@idiom("rates", "`for group in optimizer.param_groups: group['lr'] *= 0.1`")
def rate_by_hand() -> None:
    data, model = batches(4), mlp()
    other = twin(model)
    own, theirs = SGD(model.parameters(), 0.1), SGD(other.parameters(), 0.1)
    step = handheld.capture(model, F.cross_entropy, own, data[0])
    with step.plan(DEVICE).start() as trainer:
        for batch in data:
            trainer.step(*batch)
            own.param_groups[0]["lr"] *= 0.1
    for batch in data:
        torch_loop(other, F.cross_entropy, theirs, [batch])
        theirs.param_groups[0]["lr"] *= 0.1
    assert_same(step, other)


@idiom("rates", "`weight_decay` changed during training", "error: capture again")
def hyperparameter_by_hand() -> None:
    data, model = batches(2), mlp()
    optimizer = SGD(model.parameters(), 0.1)
    step = handheld.capture(model, F.cross_entropy, optimizer, data[0])
    with step.plan(DEVICE).start() as trainer:
        trainer.step(*data[0])
        optimizer.param_groups[0]["weight_decay"] = 0.1
        with pytest.raises(HandheldError, match=r"weight_decay.*Try"):
            trainer.step(*data[1])


@idiom("optimizers", "parameter groups with their own rates and weight decay")
def parameter_groups() -> None:
    def make(net: Any) -> torch.optim.Optimizer:
        decay = [p for p in net.parameters() if p.ndim > 1]
        rest = [p for p in net.parameters() if p.ndim <= 1]
        return AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0, "lr": 0.01}], 0.005)

    assert_trains_alike(mlp(), optimizer=make)


@idiom("optimizers", "Adagrad, Adamax, NAdam, RAdam, Adadelta, RMSprop")
def other_optimizers() -> None:
    for name in ("Adagrad", "Adamax", "NAdam", "RAdam", "Adadelta", "RMSprop"):
        kind = getattr(torch.optim, name)
        assert_trains_alike(mlp(), data=batches(6), optimizer=lambda m, kind=kind: kind(m.parameters(), 0.01))


@idiom("optimizers", "an optimizer of one's own (Lion)")
def own_optimizer() -> None:
    assert_trains_alike(mlp(), data=batches(6), optimizer=lambda m: Lion(m.parameters(), 0.01, weight_decay=0.1))


@idiom("optimizers", "LBFGS, whose step calls a closure many times", "error: names optimizers that work")
def lbfgs() -> None:
    data, model = batches(1), mlp()
    with pytest.raises(HandheldError, match=r"LBFGS.*Try"):
        handheld.capture(model, F.cross_entropy, torch.optim.LBFGS(model.parameters()), data[0])

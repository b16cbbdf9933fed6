"""Idioms of the training loop: rates, clipping, accumulation, stopping, saving."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam

import handheld
from handheld.data import ArrayData
from handheld.errors import HandheldError
from idioms.idiom import (
    DEVICE,
    assert_function_trains_alike,
    assert_same,
    assert_same_models,
    assert_trains_alike,
    batches,
    idiom,
    mlp,
    samples,
    sgd,
    torch_loop,
    train,
    twin,
)


@idiom("loop", "`for x, y in batches: … loss.backward(); optimizer.step()`")
def custom_loop() -> None:
    data, model = batches(6), mlp()
    other = twin(model)
    step = handheld.capture(model, F.cross_entropy, sgd(model), data[0])
    with step.plan(DEVICE).start() as trainer:
        for x, y in data:
            trainer.step(x, y)
    torch_loop(other, F.cross_entropy, sgd(other), data)
    assert_same(step, other)


@idiom("loop", "`running_loss += loss.item()`")
def logging_the_loss() -> None:
    data, model = batches(4), mlp()
    step = handheld.capture(model, F.cross_entropy, SGD(model.parameters(), 0.1), data[0])
    other = twin(model)
    with step.plan(DEVICE).start() as trainer:
        ours = sum(trainer.step(*batch).item() for batch in data)
    theirs: list[float] = []

    def loss(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        value = F.cross_entropy(output, y)
        theirs.append(value.item())
        return value

    torch_loop(other, loss, SGD(other.parameters(), 0.1), data)
    assert ours == pytest.approx(sum(theirs), rel=1e-5)


@idiom(
    "loop", "a function that calls `loss.backward()` and `optimizer.step()` itself", "error: return the loss instead"
)
def closure_with_backward() -> None:
    data, model = batches(1), mlp()
    optimizer = SGD(model.parameters(), 0.1)

    def train_step(batch: Any) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        return loss

    with pytest.raises(HandheldError, match="Try"):
        handheld.capture(train_step, None, optimizer, data[0], modules=model)


@idiom("loop", "`def training_step(self, batch, index): … return loss` (Lightning)")
def lightning_module() -> None:
    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp()

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            x, y = batch
            return F.cross_entropy(self.net(x), y)

    assert_function_trains_alike(lambda module, batch: module.training_step(batch, 0), Module(), batches(4))


@idiom("gradients", "`clip_grad_norm_` before `optimizer.step()`", "works, as `capture(clip_norm=…)`")
def clip_norm() -> None:
    def clip(model: nn.Module) -> None:
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        assert norm > 0.3  # Otherwise the limit changes nothing.

    assert_trains_alike(mlp(), before_update=clip, clip_norm=0.3)


@idiom("gradients", "`clip_grad_value_` before `optimizer.step()`", "works, as `capture(clip_value=…)`")
def clip_value() -> None:
    def clip(model: nn.Module) -> None:
        nn.utils.clip_grad_value_(model.parameters(), 0.02)

    assert_trains_alike(mlp(), before_update=clip, clip_value=0.02)


@idiom(
    "gradients", "`(loss / 4).backward()` four times, then one `optimizer.step()`", "works, as `capture(accumulate=4)`"
)
def accumulation() -> None:
    data, model = batches(8), mlp()
    other = twin(model)
    step = train(model, F.cross_entropy, Adam(model.parameters(), 0.01), data, accumulate=4)
    optimizer = Adam(other.parameters(), 0.01)
    for number, (x, y) in enumerate(data, 1):
        (F.cross_entropy(other(x), y) / 4).backward()
        if number % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
    assert_same(step, other)


@idiom(
    "precision",
    "`with torch.autocast('cpu', torch.bfloat16): …`",
    "warning: computed in float32; `plan(precision='half')`",
)
def autocast() -> None:
    data, model = batches(2), mlp()

    def loss(batch: Any) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.cross_entropy(model(batch[0]), batch[1])

    with pytest.warns(UserWarning, match=r"autocast.*precision"):
        step = handheld.capture(loss, None, SGD(model.parameters(), 0.1), data[0], modules=model)
    with step.plan(DEVICE).start() as trainer:
        assert np.isfinite(float(trainer.step(*data[0])))


@idiom("precision", "`scaler.scale(loss).backward()` (GradScaler)", "works, as `plan(precision='half')`")
def grad_scaler() -> None:
    data, model = batches(4), mlp()
    step = handheld.capture(model, F.cross_entropy, SGD(model.parameters(), 0.1), data[0])
    with step.plan(DEVICE, precision="half").start() as trainer:
        trainer.fit(data, epochs=1)
        scale = trainer.loss_scale()
        assert scale is not None and scale.scale > 1


@idiom("stopping", "early stopping: stop after n epochs without a better test loss")
def early_stopping() -> None:
    data, test = batches(4), batches(2, seed=5)
    model = mlp()
    step = handheld.capture(model, F.cross_entropy, SGD(model.parameters(), 1e-12), data[0])
    with step.plan(DEVICE).start() as trainer:
        history = trainer.fit(data, epochs=50, test=test, patience=3)
    assert len(history.epochs) < 10 and history.stopped


@idiom("stopping", "keep the weights of the best epoch")
def keep_best() -> None:
    data, test = batches(4), batches(2, seed=5)
    model = mlp()
    step = handheld.capture(model, F.cross_entropy, SGD(model.parameters(), 20.0), data[0])
    with step.plan(DEVICE).start() as trainer:
        history = trainer.fit(data, epochs=6, test=test, keep_best=True, stop_on_nan=False)
        best = min(epoch.test["loss"] for epoch in history.epochs)
        x, y = (torch.cat(parts) for parts in zip(*test, strict=True))
        loss, _ = trainer.evaluate(x, y)
    assert float(loss) == pytest.approx(best, rel=1e-5)


@idiom("saving", "`torch.save(model.state_dict(), path)` after training")
def save_state_dict() -> None:
    data, model = batches(4), mlp()
    other = twin(model)
    step = train(model, F.cross_entropy, SGD(model.parameters(), 0.1), data)
    step.copy_to(model)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert_same(step, other, 0)


@idiom("saving", "`model.load_state_dict(torch.load(path))` before training")
def load_state_dict() -> None:
    data, model = batches(3), mlp(seed=0)
    model.load_state_dict(mlp(seed=7).state_dict())
    step = handheld.capture(model, F.cross_entropy, SGD(model.parameters(), 0.1), data[0])
    assert_same(step, mlp(seed=7), 0)


@idiom("saving", "a checkpoint of model, optimizer and epoch; continue from it later")
def checkpoint_and_resume() -> None:
    x, y = (part.numpy() for part in samples(64))

    def run(path: Path, *epochs: int) -> dict[str, np.ndarray]:
        for number, upto in enumerate(epochs):
            model = mlp()
            data = ArrayData(x, y, batch_size=16)
            step = handheld.capture(model, F.cross_entropy, Adam(model.parameters(), 0.01), samples(16))
            with step.plan(DEVICE).start() as trainer:
                trainer.fit(data, epochs=upto, checkpoint=path, resume=number > 0)
        return step.state()

    with tempfile.TemporaryDirectory() as folder:
        whole, parts = run(Path(folder) / "a", 4), run(Path(folder) / "b", 2, 4)
    assert all(np.array_equal(whole[name], parts[name]) for name in whole)


@idiom("saving", "`swa_utils.AveragedModel` (EMA) updated after each step", "works, after `step.copy_to(model)`")
def averaged_model() -> None:
    data, model = batches(3), mlp()
    other = twin(model)
    averaged, theirs = (torch.optim.swa_utils.AveragedModel(m) for m in (model, other))
    step = handheld.capture(model, F.cross_entropy, SGD(model.parameters(), 0.1), data[0])
    with step.plan(DEVICE).start() as trainer:
        for batch in data:
            trainer.step(*batch)
            step.copy_to(model)
            averaged.update_parameters(model)
    torch_loop(
        other, F.cross_entropy, SGD(other.parameters(), 0.1), data, after_update=lambda: theirs.update_parameters(other)
    )
    assert_same_models(averaged, theirs)

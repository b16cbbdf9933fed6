"""Every optimizer against PyTorch: single steps in float64, whole runs with clipping, accumulation and a new rate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim

import handheld
from handheld.errors import HandheldError
from helpers import custom_optimizers
from helpers.equality import compare, relative
from helpers.nets import batch, net

DEVICES = ["reference:cpu", "opencl"]
Make = Callable[[nn.Module], optim.Optimizer]


def of(kind: Callable[..., optim.Optimizer], **options: Any) -> Make:
    return lambda model: kind(model.parameters(), **options)


def in_groups(kind: Callable[..., optim.Optimizer], **options: Any) -> Make:
    """Two groups: biases have another rate, weights have weight decay where the optimizer has it."""

    def make(model: nn.Module) -> optim.Optimizer:
        weights = [p for n, p in model.named_parameters() if "bias" not in n]
        biases = [p for n, p in model.named_parameters() if "bias" in n]
        lr = options["lr"]
        first: dict[str, Any] = {"params": weights}
        if kind is not optim.Rprop:
            first["weight_decay"] = 0.05
        return kind([first, {"params": biases, "lr": lr / 4}], **options)

    return make


OPTIMIZERS: dict[str, Make] = {
    "sgd": of(optim.SGD, lr=0.1),
    "momentum": of(optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": of(optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "dampening": of(optim.SGD, lr=0.1, momentum=0.9, dampening=0.3),
    "maximize": of(optim.SGD, lr=0.1, maximize=True),
    "groups": in_groups(optim.SGD, lr=0.1, momentum=0.9),
    "adam": of(optim.Adam, lr=0.01, weight_decay=0.01),
    "amsgrad": of(optim.Adam, lr=0.01, amsgrad=True),
    "adamw": of(optim.AdamW, lr=0.01),
    "rmsprop": of(optim.RMSprop, lr=0.01, momentum=0.5),
    "rmsprop centered": of(optim.RMSprop, lr=0.01, centered=True, weight_decay=0.1),
    "adagrad": of(optim.Adagrad, lr=0.05),
    "adagrad options": in_groups(optim.Adagrad, lr=0.05, lr_decay=0.1, initial_accumulator_value=0.3, maximize=True),
    "adadelta": of(optim.Adadelta, lr=1.0),
    "adadelta options": in_groups(optim.Adadelta, lr=0.5, rho=0.8, eps=1e-5, maximize=True),
    "adamax": of(optim.Adamax, lr=0.01),
    "adamax options": in_groups(optim.Adamax, lr=0.01, betas=(0.8, 0.99), maximize=True),
    "nadam": of(optim.NAdam, lr=0.01),
    "nadam options": in_groups(optim.NAdam, lr=0.01, momentum_decay=0.1, betas=(0.8, 0.99), maximize=True),
    "nadam decoupled": in_groups(optim.NAdam, lr=0.01, decoupled_weight_decay=True),
    "radam": of(optim.RAdam, lr=0.01),
    "radam options": in_groups(optim.RAdam, lr=0.01, betas=(0.8, 0.9), maximize=True),
    "radam decoupled": in_groups(optim.RAdam, lr=0.01, decoupled_weight_decay=True),
    "rprop": of(optim.Rprop, lr=0.01),
    "rprop options": in_groups(optim.Rprop, lr=0.01, etas=(0.4, 1.3), step_sizes=(1e-3, 0.02), maximize=True),
    "asgd": of(optim.ASGD, lr=0.05),
    **{f"own {kind.__name__} options": in_groups(kind, lr=0.01) for kind in custom_optimizers.ALL},
    "asgd options": in_groups(optim.ASGD, lr=0.05, lambd=0.1, alpha=0.5, t0=2, maximize=True),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_step_equals_pytorch(name: str, device: str) -> None:
    model, make = net(), OPTIMIZERS[name]
    batches = [batch(seed=i) for i in range(8)]
    step = handheld.capture(model, F.cross_entropy, make(model), batches[0], evaluate=False)
    with step.plan(device).start() as trainer:
        rows = compare(model, lambda m, b: F.cross_entropy(m(b[0]), b[1]), make, trainer, batches)
    bad = [r for r in rows if r[1] > 4 * r[2] + 1e-6]
    assert not bad, bad[:5]


def smooth() -> nn.Module:
    """Without dropout, batch norm and kinks, so that runs of several steps can be compared."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 11), nn.Tanh(), nn.Linear(11, 3))


def regression(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(5, 7, generator=g), torch.randn(5, 3, generator=g)


def eager(make: Make, dtype: torch.dtype, steps: int, clip: float, accumulate: int) -> dict[str, np.ndarray]:
    model = smooth().to(dtype)
    optimizer = make(model)
    for update in range(steps):
        if update == steps // 2:
            for group in optimizer.param_groups:
                group["lr"] *= 0.5
        optimizer.zero_grad()
        for part in range(accumulate):
            x, y = (t.to(dtype) for t in regression(update * accumulate + part))
            (F.mse_loss(model(x), y) / accumulate).backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return {k: v.detach().numpy() for k, v in model.named_parameters()}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", [n for n in OPTIMIZERS if n.endswith("options") or n in ("groups", "adamw")])
def test_a_run_with_clipping_accumulation_and_a_new_rate(name: str, device: str) -> None:
    make, steps, accumulate = OPTIMIZERS[name], 8, 2
    model = smooth()
    optimizer = make(model)
    step = handheld.capture(
        model, F.mse_loss, optimizer, regression(0), evaluate=False, clip_norm=0.5, accumulate=accumulate
    )
    with step.plan(device).start() as trainer:
        for n in range(steps * accumulate):
            if n == steps // 2 * accumulate:
                for group in optimizer.param_groups:
                    group["lr"] *= 0.5
            trainer.step(*regression(n))
        got = trainer.state()
    single, double = (eager(make, dtype, steps, 0.5, accumulate) for dtype in (torch.float32, torch.float64))
    for key, want in double.items():
        assert relative(got[key], want) < 4 * relative(single[key], want) + 5e-6, key


@pytest.mark.parametrize("name", ["adagrad options", "nadam options", "asgd options", "rprop options"])
def test_state_of_pytorch_is_taken_over(name: str) -> None:
    """A step that is captured after training in PyTorch goes on from there."""
    make, model = OPTIMIZERS[name], smooth()
    optimizer = make(model)
    for n in range(4):
        optimizer.zero_grad()
        F.mse_loss(model(regression(n)[0]), regression(n)[1]).backward()
        optimizer.step()
    step = handheld.capture(model, F.mse_loss, optimizer, regression(0), evaluate=False)
    with step.plan("reference:cpu").start() as trainer:
        for n in range(4, 7):
            trainer.step(*regression(n))
        got = trainer.state()
    for n in range(4, 7):
        optimizer.zero_grad()
        F.mse_loss(model(regression(n)[0]), regression(n)[1]).backward()
        optimizer.step()
    for key, want in model.named_parameters():
        assert relative(got[key], want.detach().numpy()) < 5e-6, key


@pytest.mark.parametrize("name", [n for n in OPTIMIZERS if not n.startswith("own")])
def test_state_goes_back_into_pytorch(name: str) -> None:
    """Training that goes on in PyTorch after three steps here gives what PyTorch alone gives."""
    make, model, other = OPTIMIZERS[name], smooth(), smooth()
    optimizer, reference = make(model), make(other)
    step = handheld.capture(model, F.mse_loss, optimizer, regression(0), evaluate=False)
    with step.plan("reference:cpu").start() as trainer:
        for n in range(3):
            trainer.step(*regression(n))
    step.copy_to(model, optimizer)
    fresh = make(model)
    fresh.load_state_dict(optimizer.state_dict())  # PyTorch accepts the state.
    for trained, steps, used in ((other, range(6), reference), (model, range(3, 6), fresh)):
        for n in steps:
            used.zero_grad()
            F.mse_loss(trained(regression(n)[0]), regression(n)[1]).backward()
            used.step()
    for (key, got), want in zip(model.named_parameters(), other.parameters(), strict=True):
        assert relative(got.detach().numpy(), want.detach().numpy()) < 1e-5, key


def test_only_the_captured_optimizer_gets_state() -> None:
    model = smooth()
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    step = handheld.capture(model, F.mse_loss, optimizer, regression(0), evaluate=False)
    step.copy_to(model, optimizer)
    assert not optimizer.state  # No step was made.
    with step.plan("reference:cpu").start() as trainer:
        trainer.step(*regression(0))
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))], "lr": 0.5})
    step.copy_to(model, optimizer)  # The captured optimizer may have more groups now.
    assert len(optimizer.state) == 4 and optimizer.param_groups[1]["lr"] == 0.5
    with pytest.raises(HandheldError, match="has 2 parameter groups, and the step has 1"):
        step.copy_to(model, OPTIMIZERS["groups"](model))
    with pytest.raises(HandheldError, match=r"not of Lion. Try: step\.state\(\)"):
        step.copy_to(model, custom_optimizers.Lion(model.parameters(), lr=0.1))

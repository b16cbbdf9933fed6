"""Optimizer state in 16 and 8 bits: how far from float64, what a file holds, and what cannot be stored so.

The measure is the norm of the difference to PyTorch in float64, relative to the norm of the whole change of the
parameters, after 20 steps.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import handheld
from handheld.data import load_data
from handheld.errors import PlanError, PlanFileError
from handheld.passes.state_bits import Unit
from handheld.plan.file_write import parts_of
from handheld.plan.verify import verify

Make = Callable[[Iterable[Any]], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "adam": lambda ps: torch.optim.Adam(ps, 1e-3, amsgrad=True),
    "adamw": lambda ps: torch.optim.AdamW(ps, 1e-3),
    "sgd": lambda ps: torch.optim.SGD(ps, 0.1, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "rmsprop": lambda ps: torch.optim.RMSprop(ps, 1e-3, momentum=0.5),
    "adagrad": lambda ps: torch.optim.Adagrad(ps, 1e-2),
}


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 7))


def data(samples: int = 48) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    x = torch.randn(samples, 32)
    return x, x[:, :7].argmax(1)


def captured(make: Make, **options: Any) -> handheld.Step:
    model = net()
    return handheld.capture(model, F.cross_entropy, make(model.parameters()), data(), evaluate=False, **options)


def changes(state: dict[str, Any]) -> np.ndarray:
    before = net().state_dict()
    return np.concatenate([(np.asarray(state[name], np.float64) - before[name].numpy()).ravel() for name in before])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_distance_to_float64(name: str) -> None:
    make, batch = OPTIMIZERS[name], data()
    model = net().double()
    optimizer = make(model.parameters())
    for _ in range(20):
        optimizer.zero_grad()
        F.cross_entropy(model(batch[0].double()), batch[1]).backward()
        optimizer.step()
    exact = changes({key: value.numpy() for key, value in model.state_dict().items()})
    step = captured(make)
    for bits, most in ((16, 5e-3), (8, 0.12)):
        plan = step.copy().plan("opencl" if name == "sgd" else "reference:cpu", state_bits=bits)
        verify(plan)
        with plan.start() as trainer:
            for _ in range(20):
                trainer.step(*batch)
            error = np.linalg.norm(changes(trainer.state()) - exact) / np.linalg.norm(exact)
        assert error < most, f"{bits} bits: {error:.2g}"


def test_the_state_is_smaller_and_explain_says_so() -> None:
    step = captured(OPTIMIZERS["adam"])
    plans = {bits: step.plan("opencl", state_bits=bits) for bits in (32, 16, 8)}
    values = sum(int(np.prod(s.shape)) for s in step.slots.values() if s.role == "optimizer")
    for bits, least in ((16, 1.9), (8, 2.8)):
        assert plans[32].bytes - plans[bits].bytes > least * values
    assert f"optimizer state in 8 bits: {values:,} of {values:,} values" in plans[8].explain()


@pytest.mark.parametrize("bits", [16, 8])
def test_reading_and_writing_state_changes_nothing(bits: int, tmp_path: Path) -> None:
    """Resuming from a checkpoint or a step file continues with the same bits."""
    step, batch = captured(OPTIMIZERS["adam"]), data()
    with step.plan("opencl", state_bits=bits).start() as trainer:
        for _ in range(3):
            trainer.step(*batch)
        state = trainer.state()
        trainer.load(state)
        again = trainer.state()
        assert all(np.array_equal(again[name], value) for name, value in state.items())
        step.save(tmp_path / "half.step")
        losses = [float(trainer.step(*batch)) for _ in range(3)]
        with handheld.load(tmp_path / "half.step").plan("opencl", state_bits=bits).start() as other:
            assert [float(other.step(*batch)) for _ in range(3)] == losses
            assert all(np.array_equal(other.state()[name], value) for name, value in trainer.state().items())
    model = net()
    optimizer = OPTIMIZERS["adam"](model.parameters())
    step.copy_to(model, optimizer)
    held = optimizer.state[model[0].weight]["exp_avg_sq"].numpy()
    assert held.shape == (64, 32) and np.array_equal(held, step.state()["optimizer.0.weight.exp_avg_sq"])


def test_training_follows_float32_on_digits() -> None:
    batches = [tuple(batch) for batch in load_data("digits", 64).train]
    finals = {}
    for bits in (32, 16, 8):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.LazyLinear(64), nn.ReLU(), nn.Linear(64, 10))
        model(torch.as_tensor(batches[0][0]))
        optimizer = torch.optim.Adam(model.parameters(), 3e-3)
        example = tuple(torch.as_tensor(value) for value in batches[0])
        step = handheld.capture(model, F.cross_entropy, optimizer, example, evaluate=False)
        with step.plan("reference:cpu", state_bits=bits).start() as trainer:
            losses = [float(trainer.step(*batch)) for _ in range(4) for batch in batches if len(batch[0]) == 64]
        finals[bits] = float(np.mean(losses[-10:]))
    assert finals[32] < 0.4
    assert abs(finals[16] - finals[32]) < 0.01 * finals[32] and abs(finals[8] - finals[32]) < 0.1 * finals[32]


def test_with_half_precision_accumulation_and_two_groups() -> None:
    batch, model = data(), net()
    groups = [{"params": list(model[0].parameters())}, {"params": list(model[2:].parameters()), "lr": 3e-3}]
    optimizer = torch.optim.AdamW(groups, 1e-3)
    step = handheld.capture(model, F.cross_entropy, optimizer, batch, evaluate=False, accumulate=2)
    results = {}
    for bits in (32, 16):
        with step.copy().plan("reference:cpu", state_bits=bits, precision="half").start() as trainer:
            for _ in range(6):
                trainer.step(*batch)
            results[bits] = changes(trainer.state())
    assert np.linalg.norm(results[16] - results[32]) < 0.02 * np.linalg.norm(results[32])


@pytest.mark.parametrize("bits", [16, 8])
@pytest.mark.parametrize(("width", "saved"), [(320, 0.0), (256, 0.08)])
def test_what_lies_between_two_parameters_does_not_count(width: int, saved: float, bits: int) -> None:
    """The frozen layers leave large values in the memory that the gradients use later, with and without a memory
    limit. The biases have 64 values, so there is space after each."""
    torch.manual_seed(0)
    frozen = nn.Sequential(nn.Linear(32, width), nn.Linear(width, 32)).requires_grad_(False)
    with torch.no_grad():
        frozen[0].weight.mul_(1e6)
        frozen[1].weight.mul_(1e-6)
    model = nn.Sequential(frozen, net(), nn.ReLU(), nn.Linear(7, 64), nn.ReLU(), nn.Linear(64, 7))
    optimizer, batch = torch.optim.Adam(model[1:].parameters(), 1e-3), data(512)
    step = handheld.capture(model, F.cross_entropy, optimizer, batch, evaluate=False)
    plan = step.copy().plan("opencl", state_bits=bits)
    assert any(unit.has_gaps for unit in plan.units)
    if saved:
        limit = plan.bytes - int(plan.arena_bytes * saved)
        plan = step.copy().plan("opencl", state_bits=bits, memory_limit_bytes=limit, micro_batches=1)
    states = []
    for each in (step.copy().plan("reference:cpu", state_bits=bits), plan):
        with each.start() as trainer:
            for _ in range(2):
                trainer.step(*batch)
            states.append(trainer.state())
    for name, value in states[0].items():
        np.testing.assert_allclose(states[1][name], value, rtol=1e-3, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("bits", [16, 8])
@pytest.mark.parametrize("kind", ["exp_avg", "exp_avg_sq"])
def test_codes(kind: str, bits: int) -> None:
    rng = np.random.default_rng(0)
    values = (rng.standard_normal(256) * 10.0 ** rng.uniform(-6, 0, 256)).astype(np.float32)
    values = values**2 if kind == "exp_avg_sq" else values
    values[:5], values[128:] = 0, values[128:] * 1e-12
    unit = Unit((f"optimizer.w.{kind}",), (0,), (256,), 256, bits)
    codes = unit.encode({unit.slots[0]: values})
    found = unit.decode(codes)[unit.slots[0]]
    assert all(np.array_equal(codes[k], v) for k, v in unit.encode({unit.slots[0]: found}).items())
    scale = np.repeat(np.abs(values.reshape(2, 128)).max(1), 128)
    # The distance between codes: the derivative of the power, and half a code at the small end.
    power = 4 if unit.squares else 2
    part = (np.abs(values) / scale) ** (1 / power)
    step = power * np.maximum(part, 1 / unit.most) ** (power - 1) / unit.most * scale
    assert (np.abs(found - values) <= step).all() and (found[:5] == 0).all()
    assert ((found > 0) == (values > 0)).all() if unit.squares else (found * values >= 0).all()


def test_bad_input() -> None:
    step = captured(OPTIMIZERS["adam"])
    with pytest.raises(PlanError, match="state_bits=7 is not possible"):
        step.plan("opencl", state_bits=7)
    with pytest.raises(PlanError, match="no optimizer state of this step can be stored in 8 bits"):
        captured(lambda ps: torch.optim.SGD(ps, 0.1)).plan("opencl", state_bits=8)
    with pytest.raises(PlanFileError, match="cannot hold optimizer state in 8 bits"):
        parts_of(step.plan("opencl", state_bits=8), values=True)
    odd = nn.Linear(33, 31)
    optimizer = torch.optim.Adam(odd.parameters())
    small = handheld.capture(odd, F.mse_loss, optimizer, (torch.randn(4, 33), torch.randn(4, 31)), evaluate=False)
    plan = small.plan("reference:cpu", state_bits=8)
    assert sum(sum(unit.sizes) for unit in plan.units) == 2 * (33 * 31 + 31)
    assert copy.copy(plan).units == plan.units

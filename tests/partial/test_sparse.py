"""A choice of parameters under a budget: it keeps the budget, prefers large gradients, and changes no value."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import handheld
from handheld.errors import HandheldError
from handheld.partial import sparse as module
from helpers.partial_steps import captured

DEVICE = "reference:cpu"


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(16, 64),
        nn.BatchNorm1d(64),
        nn.ReLU(),
        nn.Linear(64, 64),
        nn.Dropout(0.5),
        nn.ReLU(),
        nn.Linear(64, 4),
    )


def batches():
    g = torch.Generator().manual_seed(0)
    return [(torch.randn(32, 16, generator=g), torch.randint(0, 4, (32,), generator=g)) for _ in range(2)]


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def bytes_of(model: nn.Module) -> int:
    step = captured(model, F.cross_entropy, batches()[0], lambda p: torch.optim.Adam(p, lr=0.01), evaluate=False)
    return step.plan(DEVICE, graphs=["train"]).bytes


def test_the_plan_keeps_the_budget_and_the_optimizer_has_what_trains():
    model, full = net(), bytes_of(net())
    optimizer, before = adam(model), copy.deepcopy(model.state_dict())
    budget = int(full * 0.75)
    choice = handheld.sparse(model, F.cross_entropy, optimizer, batches(), memory_bytes=budget, device=DEVICE)
    trained = [n for n, p in model.named_parameters() if p.requires_grad]
    assert list(choice.names) == trained and 0 < len(trained) < choice.candidates == 8
    assert choice.needs == bytes_of(model) <= budget and choice.unit == "bytes"
    assert sum(len(g["params"]) for g in optimizer.param_groups) == len(trained)
    assert all(torch.equal(v, before[n]) for n, v in model.state_dict().items()), "measuring changes no value"
    assert f"{len(trained)} of 8 parameters train" in str(choice)


def test_everything_trains_if_it_fits():
    model = net()
    choice = handheld.sparse(model, F.cross_entropy, adam(model), batches(), memory_bytes=1 << 30, device=DEVICE)
    assert len(choice.names) == choice.candidates


def test_parameters_with_large_gradients_come_first():
    """The loss is scaled so that one of two equal layers has much larger gradients."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"weak": nn.Linear(32, 32), "strong": nn.Linear(32, 32)})

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = model

        def forward(self, x):
            return 0.01 * self.parts["weak"](x) + self.parts["strong"](x)

    both = Both()
    data = [(torch.randn(8, 32), torch.randn(8, 32))]
    full = captured(both, F.mse_loss, data[0], evaluate=False).plan(DEVICE, graphs=["train"]).bytes
    optimizer = torch.optim.SGD(both.parameters(), lr=0.1, momentum=0.9)
    choice = handheld.sparse(both, F.mse_loss, optimizer, data, memory_bytes=full - 4096, device=DEVICE)
    assert {"parts.strong.weight", "parts.strong.bias"} <= set(choice.names)
    assert "parts.weak.weight" not in choice.names


def test_time_is_measured_on_the_device(monkeypatch):
    """The measured times are replaced: they grow with the number of parameters that train."""
    model = net()
    asked: list[int] = []

    def step_ms(plan, batch):
        step = plan.step
        asked.append(sum(step.slots[w.slot].role == "parameter" for w in step.graphs["train"].writes))
        return 10.0 * asked[-1]

    monkeypatch.setattr(module, "_step_ms", step_ms)
    choice = handheld.sparse(model, F.cross_entropy, adam(model), batches(), time_ms=45, device=DEVICE)
    assert len(choice.names) == 4 and choice.needs == 40.0 and choice.unit == "ms"
    assert len(asked) <= module.TRIALS and asked[:2] == [8, 1]
    monkeypatch.undo()
    step = captured(model, F.cross_entropy, batches()[0], evaluate=False)
    assert 0 < module._step_ms(step.plan(DEVICE), batches()[0]) < 1e4


def test_bad_calls_say_what_to_do():
    def call(**options):
        model = net()
        return handheld.sparse(model, F.cross_entropy, adam(model), batches(), device=DEVICE, **options)

    with pytest.raises(HandheldError, match="needs one budget"):
        call()
    with pytest.raises(HandheldError, match="needs one budget"):
        call(memory_bytes=1, time_ms=1)
    with pytest.raises(HandheldError, match=r"within 100 B: a step with 6\.bias alone needs"):
        call(memory_bytes=100)
    with pytest.raises(HandheldError, match="adreno-740 is only described"):
        handheld.sparse(net(), F.cross_entropy, adam(net()), batches(), time_ms=1, device="adreno-740")
    frozen = net().requires_grad_(False)
    with pytest.raises(HandheldError, match="with parameters that train"):
        handheld.sparse(frozen, F.cross_entropy, adam(frozen), batches(), memory_bytes=1, device=DEVICE)

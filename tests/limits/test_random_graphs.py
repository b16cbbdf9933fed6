"""Random models and random limits: the plan meets the limit, is proved, and trains to the same bits as without one."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import handheld
from handheld.cost.time import TimeModel
from handheld.device import DeviceCaps
from handheld.errors import OutOfMemory
from handheld.limits import planning
from handheld.limits.means import Allowed, plan_within
from handheld.limits.planning import Fitting
from handheld.limits.prices import USUAL, DevicePrices
from handheld.plan.plan import Plan
from handheld.plan.verify import verify
from handheld.run.planning import requested

CAPS = DeviceCaps.shipped("adreno-740")


class RandomNet(nn.Module):
    """Layers that read one or two earlier values: chains, branches and skip connections, in a random order."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.chance = random.Random(seed)
        self.kinds = [
            self.chance.choice(["linear", "linear", "gelu", "norm", "skip", "cat", "drop"]) for _ in range(10)
        ]
        width = 24
        made = {
            "linear": lambda: nn.Linear(width, width),
            "cat": lambda: nn.Linear(2 * width, width),
            "norm": lambda: nn.LayerNorm(width),
        }
        self.layers = nn.ModuleList(made.get(kind, nn.Identity)() for kind in self.kinds)
        self.reads = [(self.chance.randrange(i + 1), i) for i in range(len(self.kinds))]
        self.head = nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values = [x]
        for kind, layer, (far, near) in zip(self.kinds, self.layers, self.reads, strict=True):
            a, b = values[near], values[far]
            made = {
                "linear": lambda a=a, layer=layer: torch.relu(layer(a)),
                "gelu": lambda a=a: F.gelu(a),
                "norm": lambda a=a, layer=layer: layer(a),
                "skip": lambda a=a, b=b: a * torch.sigmoid(b) + b,
                "cat": lambda a=a, b=b, layer=layer: layer(torch.cat([a, b], -1)),
                "drop": lambda a=a: F.dropout(a, 0.2, self.training),
            }[kind]()
            values.append(made)
        return self.head(sum(values[-3:]))


@pytest.mark.parametrize("seed", range(6))
def test_a_random_limit_is_met_with_the_same_bits(seed: int) -> None:
    torch.manual_seed(seed)
    model, chance = RandomNet(seed), random.Random(seed)
    batch = torch.randn(64, 24), torch.randint(0, 5, (64,))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    step = handheld.capture(model, F.cross_entropy, optimizer, batch, evaluate=False)
    whole = step.copy().plan("reference:cpu")
    states = []
    limit = whole.bytes - int(whole.arena_bytes * chance.uniform(0.05, 0.35))
    try:
        plan = step.copy().plan("reference:cpu", memory_limit_bytes=limit, micro_batches=1)
    except OutOfMemory as error:
        assert error.smallest_bytes is not None and error.smallest_bytes > limit
        plan = step.copy().plan("reference:cpu", memory_limit_bytes=error.smallest_bytes, micro_batches=1)
        limit = error.smallest_bytes
    assert plan.bytes <= limit < whole.bytes and plan.options["fit"]
    verify(plan)
    again = step.copy().plan("reference:cpu", memory_limit_bytes=limit, micro_batches=1)
    assert again.options["fit"] == plan.options["fit"], "the search finds the same choice every time"
    for made in (whole, plan):
        with made.start() as trainer:
            losses = [float(trainer.step(*batch)) for _ in range(2)]
            states.append((losses, trainer.state()))
    (losses, state), (other_losses, other) = states
    assert losses == other_losses
    assert all(np.array_equal(other[name], value) for name, value in state.items())


@pytest.mark.parametrize("seed", range(10, 14))
def test_random_means_meet_random_limits_with_proved_plans(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans only, for a device that is described: any means together, and two limits per graph."""

    def prices(caps: DeviceCaps, choices: dict[str, Any], name: str = "") -> DevicePrices:
        return DevicePrices(caps, choices, TimeModel(USUAL["gpu"]), "typical rates")

    monkeypatch.setattr(planning, "prices_of", prices)  # What is known about the device takes seconds to read.
    torch.manual_seed(seed)
    model, chance = RandomNet(seed), random.Random(seed)
    rows = chance.choice([5, 9, 16])
    batch = torch.randn(rows, 24), torch.randint(0, 5, (rows,))
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    step = handheld.capture(model, F.cross_entropy, optimizer, batch, evaluate=chance.random() < 0.3)
    bits = chance.choice([32, 16, 8]) if {"linear", "cat"} & set(model.kinds) else 32
    options: dict[str, Any] = {"state_bits": bits, "precision": chance.choice(["float32", "float32", "half"])}
    allowed = Allowed(spill=chance.random() < 0.4, micro_batches=chance.choice([None, None, 1, 2, 3]))

    def plan_of(limit: int | None) -> Plan:
        own = step.copy()
        request = requested(own, "opencl", caps=CAPS, memory_limit_bytes=limit, **options)
        return plan_within(Fitting(own, "opencl", CAPS, request.names, request.options), allowed)

    whole = step.copy().plan("opencl", caps=CAPS, **options)
    for share in sorted(chance.uniform(0.1, 1.0) for _ in range(2)):
        limit = whole.bytes - int(whole.arena_bytes * (1 - share))
        try:
            plan = plan_of(limit)
        except OutOfMemory as error:
            assert error.smallest_bytes is not None and error.smallest_bytes > limit, (options, allowed)
            limit = error.smallest_bytes
            plan = plan_of(limit)
        assert plan.bytes <= limit, (options, allowed)
        verify(plan)

"""Steps that train a part of a model, beside PyTorch in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

import handheld
from handheld.step import Step

Optimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def shaken(model: nn.Module) -> nn.Module:
    """The model with adapters that do something: at first one of the two matrices is zero."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def captured(model: nn.Module, loss: Any, batch: Any, optimizer: Optimizer = sgd, **options: Any) -> Step:
    return handheld.capture(model, loss, optimizer(trained(model)), batch, **options)


def reference(step: Step, model: nn.Module) -> nn.Module:
    """The model in float64, with the weights that the step computes with."""
    wide = copy.deepcopy(model).double()
    wide.load_state_dict({name: value.double() for name, value in step.state_dict().items()}, strict=False)
    return wide


def errors(
    step: Step,
    model: nn.Module,
    loss: Callable[[nn.Module, Any], torch.Tensor],
    batches: Sequence[Any],
    device: str = "reference:cpu",
    optimizer: Optimizer = sgd,
) -> dict[str, float]:
    """Trains the step on a device and the same model in float64. Returns the relative error of each loss and of each
    trained parameter (of its change, so that a parameter that does not move is not right by chance)."""
    wide = reference(step, model)
    start = {name: p.detach().clone() for name, p in wide.named_parameters() if p.requires_grad}
    own = optimizer(trained(wide))
    found: dict[str, float] = {}
    with step.plan(device, graphs=["train"]).start() as trainer:
        for number, batch in enumerate(batches):
            got = float(trainer.step(*((batch,) if isinstance(batch, dict) else batch)))
            value = loss(wide, batch)
            own.zero_grad()
            value.backward()
            own.step()
            found[f"loss {number}"] = abs(got - value.item()) / abs(value.item())
        state = trainer.state()
    for name, before in start.items():
        change = (dict(wide.named_parameters())[name].detach() - before).numpy()
        error = np.linalg.norm(state[name] - before.numpy() - change)
        norm = np.linalg.norm(change)
        assert norm > 0, f"{name} does not train"
        found[name] = float(error / norm)
    return found

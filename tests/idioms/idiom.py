"""What an idiom is, and what the idioms share: small models, and a comparison with PyTorch's own loop."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from handheld.step import Step

#: Every device runs the same graphs, so the idioms run on the one that needs no kernels.
DEVICE = "reference:cpu"

Pair = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Idiom:
    """One way in which people write training code in PyTorch, and a function that shows what it does here.

    `code` is what people write. `here` says what becomes of it: "works", or how it is reported and the way out.
    """

    topic: str
    code: str
    here: str
    run: Callable[[], None]


IDIOMS: list[Idiom] = []


def idiom(topic: str, code: str, here: str = "works") -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Adds the decorated function to the table of idioms."""

    def add(run: Callable[[], None]) -> Callable[[], None]:
        IDIOMS.append(Idiom(topic, code, here, run))
        return run

    return add


def mlp(inputs: int = 8, classes: int = 3, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, classes))


def samples(count: int, inputs: int = 8, classes: int = 3, seed: int = 1) -> Pair:
    """Points around one centre per class: easy to learn."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (count,), generator=random)
    centres = torch.randn(classes, inputs, generator=torch.Generator().manual_seed(99))
    return centres[labels] + 0.3 * torch.randn(count, inputs, generator=random), labels


def batches(count: int, size: int = 16, seed: int = 1) -> list[Pair]:
    x, y = samples(count * size, seed=seed)
    return list(zip(x.split(size), y.split(size), strict=True))


Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def torch_loop(
    model: nn.Module,
    loss: Loss,
    optimizer: torch.optim.Optimizer,
    data: Iterable[Pair],
    before_update: Callable[[], None] = lambda: None,
    after_update: Callable[[], None] = lambda: None,
) -> None:
    """The loop of every PyTorch tutorial."""
    model.train()
    for x, y in data:
        optimizer.zero_grad()
        loss(model(x), y).backward()
        before_update()
        optimizer.step()
        after_update()


def twin(model: nn.Module) -> nn.Module:
    """A copy for PyTorch to train beside Handheld."""
    return copy.deepcopy(model)


def assert_same(step: Step, model: nn.Module, tolerance: float = 2e-5) -> None:
    """The parameters and buffers of the step equal those of the model that PyTorch trained."""
    state = step.state()
    for name, value in model.state_dict().items():
        np.testing.assert_allclose(state[name], value.numpy(), rtol=tolerance, atol=tolerance, err_msg=name)

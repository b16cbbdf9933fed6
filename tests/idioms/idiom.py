"""What an idiom is, and what the idioms share: small models, and a comparison with PyTorch's own loop."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Optimizer

import handheld
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


def nothing() -> None:
    """What a loop calls where nothing is to be done."""


def torch_steps(
    loss: Callable[[Any], torch.Tensor],
    optimizer: Optimizer,
    data: Iterable[Any],
    before_update: Callable[[], object] = nothing,
    after_update: Callable[[], object] = nothing,
) -> None:
    """The loop of every PyTorch tutorial, for a function that computes the loss of a batch."""
    for batch in data:
        optimizer.zero_grad()
        loss(batch).backward()
        before_update()
        optimizer.step()
        after_update()


def torch_loop(
    model: nn.Module,
    loss: Callable[..., torch.Tensor],
    optimizer: Optimizer,
    data: Iterable[Any],
    before_update: Callable[[], object] = nothing,
    after_update: Callable[[], object] = nothing,
    inputs: int = 1,
) -> None:
    """The same loop for a model that takes the first `inputs` tensors of a batch, and a loss that takes the rest."""
    model.train()
    torch_steps(
        lambda batch: loss(model(*batch[:inputs]), *batch[inputs:]), optimizer, data, before_update, after_update
    )


def twin(model: nn.Module) -> nn.Module:
    """A copy for PyTorch to train beside Handheld."""
    return copy.deepcopy(model)


def train(model: nn.Module, loss: Any, optimizer: Optimizer, data: Sequence[Any], **options: Any) -> Step:
    """Captures the model with the first batch and trains it on each batch once."""
    step = handheld.capture(model, loss, optimizer, data[0], **options)
    with step.plan(DEVICE).start() as trainer:
        trainer.fit(data, epochs=1)
    return step


def assert_same(step: Step, model: nn.Module, tolerance: float = 2e-5) -> None:
    """The parameters and buffers of the step equal those of the model that PyTorch trained."""
    state = step.state()
    for name, value in model.state_dict().items():
        np.testing.assert_allclose(state[name], value.numpy(), rtol=tolerance, atol=tolerance, err_msg=name)


def assert_same_models(ours: nn.Module, theirs: nn.Module) -> None:
    """The parameters and buffers of both models are equal."""
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=2e-5, atol=2e-5)


def sgd(model: nn.Module) -> Optimizer:
    """Momentum, so that a missing or repeated update changes all later ones."""
    return SGD([p for p in model.parameters() if p.requires_grad], 0.1, momentum=0.9)


def assert_trains_alike(
    model: nn.Module,
    loss: Callable[..., torch.Tensor] = F.cross_entropy,
    data: Sequence[Any] | None = None,
    optimizer: Callable[[nn.Module], Optimizer] = sgd,
    before_update: Callable[[nn.Module], object] = lambda model: None,
    **options: Any,
) -> None:
    """Train the model here, with these options of `capture`, and a copy in PyTorch's own loop: the results are equal.

    PyTorch's loop calls `before_update` with its model, after the gradients are computed.
    """
    data = batches(4) if data is None else data
    other = twin(model)
    step = train(model, loss, optimizer(model), data, **options)
    inputs = options.get("inputs", 1)
    torch_loop(other, loss, optimizer(other), data, before_update=lambda: before_update(other), inputs=inputs)
    assert_same(step, other)


def assert_wrapped_trains_alike(wrap: Callable[[nn.Module], Any]) -> None:
    """A model that is captured in a wrapper trains like the plain one, and gets its weights back."""
    model, data = mlp(), batches(3)
    other, wrapped = twin(model), wrap(model)
    step = train(wrapped, F.cross_entropy, sgd(model), data)
    step.copy_to(wrapped)
    torch_loop(other, F.cross_entropy, sgd(other), data)
    assert_same_models(model, other)


def assert_function_trains_alike(
    loss: Callable[[nn.Module, Any], torch.Tensor],
    model: nn.Module,
    data: Sequence[Any],
    modules: nn.Module | dict[str, nn.Module] | None = None,
    **options: Any,
) -> None:
    """The same for a function that computes the loss of a model and a batch; `modules` are those it uses."""
    modules = model if modules is None else modules
    other = twin(model)
    step = handheld.capture(lambda b: loss(model, b), None, sgd(model), data[0], modules=modules, **options)
    with step.plan(DEVICE).start() as trainer:
        for batch in data:
            trainer.step(*batch)
    step.copy_to(modules)
    torch_steps(lambda batch: loss(other, batch), sgd(other), data)
    assert_same_models(model, other)

"""What training each parameter is worth, and about what it costs: measured on some batches, in PyTorch.

One step of gradient descent lowers the loss by about the rate times the squared norm of the gradient. So a parameter is
worth its squared norm. Training it costs, in bytes:

    own     its gradient, the optimizer's state and, for a weight, the input of its layer
    path    the inputs of all layers after it, which the backward pass goes through; paid once, by the first of them

The costs are only used to compare choices. sparse.py finds out what a choice really needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Candidate:
    """A parameter: what it is worth, its own bytes, and the position of its layer in the forward pass."""

    name: str
    worth: float
    bytes: int
    position: int


@dataclass(frozen=True)
class Candidates:
    """The parameters that may train, the most worth per byte first, and the bytes of the path from each position."""

    ordered: tuple[Candidate, ...]
    path: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """What training all of them costs."""
        return max(self.path, default=0) + sum(c.bytes for c in self.ordered)

    def best(self, budget: float) -> tuple[str, ...]:
        """The names of a choice within a budget of these bytes. For every first layer, the parameters from there on are
        taken in their order as long as they fit; the choice that is worth most wins."""
        chosen: list[Candidate] = []
        for first in sorted({c.position for c in self.ordered}):
            taken, left = list[Candidate](), budget - self.path[first]
            for candidate in self.ordered:
                if candidate.position >= first and candidate.bytes <= left:
                    taken.append(candidate)
                    left -= candidate.bytes
            chosen = max(chosen, taken, key=lambda some: sum(c.worth for c in some))
        return tuple(c.name for c in chosen)

    def cheapest(self) -> str:
        """The parameter that costs least, with its path."""
        return min(self.ordered, key=lambda c: c.bytes + self.path[c.position]).name


def measure(
    model: nn.Module,
    fn: Callable[[Any], Any],
    batches: Sequence[Any],
    names: Mapping[str, nn.Parameter],
    optimizer: torch.optim.Optimizer,
) -> Candidates:
    """Runs the batches through PyTorch. Values, gradients and random state of the model are as before afterwards."""
    squares, inputs = dict.fromkeys(names, 0.0), dict[str, int]()
    with _undisturbed(model), _input_bytes(model, inputs):
        for batch in batches:
            result = fn(batch)
            loss = result[0] if isinstance(result, tuple) else result
            grads = torch.autograd.grad(loss, list(names.values()), allow_unused=True)
            for name, grad in zip(names, grads, strict=True):
                squares[name] += 0.0 if grad is None else float(grad.double().square().sum())
    return _candidates(names, squares, inputs, 1 + _states(optimizer))


def _candidates(
    names: Mapping[str, nn.Parameter], squares: Mapping[str, float], inputs: Mapping[str, int], copies: int
) -> Candidates:
    """`inputs` has the bytes of the input of each layer, in the order of the forward pass; `copies` is how many tensors
    of its size a trained parameter needs."""
    layers = list(inputs)
    sizes = list(inputs.values())
    path = tuple(sum(sizes[first + 1 :]) for first in range(len(sizes)))
    found = []
    for name, parameter in names.items():
        layer = name.rpartition(".")[0]
        # A parameter of a module that is never called (a token, a position) may be needed from the start.
        position = layers.index(layer) if layer in inputs else 0
        kept = inputs.get(layer, 0) if parameter.dim() > 1 else 0
        if squares[name] > 0:
            found.append(Candidate(name, squares[name], parameter.numel() * 4 * copies + kept, position))
    return Candidates(tuple(sorted(found, key=lambda c: c.worth / c.bytes, reverse=True)), path or (0,))


def _states(optimizer: torch.optim.Optimizer) -> int:
    """How many tensors of its size the optimizer keeps per parameter, as far as its options tell."""
    options = optimizer.defaults
    return 2 if "betas" in options else int(bool(options.get("momentum") or options.get("alpha")))


@contextmanager
def _undisturbed(model: nn.Module) -> Iterator[None]:
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)


@contextmanager
def _input_bytes(model: nn.Module, found: dict[str, int]) -> Iterator[None]:
    """While active, notes the bytes of the first input of each layer with parameters, in the order of the calls."""

    def noting(path: str) -> Callable[..., None]:
        def hook(_: nn.Module, args: tuple[Any, ...]) -> None:
            found[path] = args[0].numel() * 4 if args and isinstance(args[0], torch.Tensor) else 0

        return hook

    layers = [(path, part) for path, part in model.named_modules() if any(True for _ in part.parameters(recurse=False))]
    hooks = [part.register_forward_pre_hook(noting(path)) for path, part in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()

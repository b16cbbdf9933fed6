"""The proximal term of FedProx: a step that also keeps the model near the state that the server sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from handheld.errors import HandheldError
from handheld.federated.model import ANCHOR, WEIGHT


class Proximal(torch.nn.Module):
    """A model that returns, while it trains, its output and weight / 2 · the squared distance from the anchors."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model
        self.register_buffer(WEIGHT, torch.zeros(()))
        self._trained = [name for name, value in model.named_parameters() if value.requires_grad]
        if not self._trained:
            raise HandheldError("no parameter of the model is trained, so it has no proximal term")
        for name in self._trained:
            anchor = model.get_parameter(name).detach().clone()
            self.register_buffer(_buffer(name), anchor)

    def forward(self, *inputs: Any) -> Any:
        output = self.model(*inputs)
        if not self.training:
            return output
        distance = sum(
            (self.model.get_parameter(name) - getattr(self, _buffer(name))).square().sum() for name in self._trained
        )
        return output, 0.5 * getattr(self, WEIGHT) * distance


def proximal(
    model: torch.nn.Module, loss: Callable[..., torch.Tensor]
) -> tuple[torch.nn.Module, Callable[..., torch.Tensor]]:
    """The model and its loss with the proximal term of FedProx, for `handheld.capture`. The names of the parameters
    begin with `model.`. The strategy FedProx sends its weight with every round; with others it is zero."""

    def with_term(output: Any, *rest: Any) -> torch.Tensor:
        if isinstance(output, tuple) and len(output) == 2:
            output, distance = output
            near: torch.Tensor = loss(output, *rest) + distance
            return near
        return loss(output, *rest)

    return Proximal(model), with_term


def _buffer(name: str) -> str:
    return ANCHOR + name.replace(".", "/")

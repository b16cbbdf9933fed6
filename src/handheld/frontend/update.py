"""The update of one parameter, under construction. Update rules (update_rules.py) are written with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from handheld.frontend.record import Recorder
from handheld.frontend.values import Val
from handheld.graph.dtypes import F32
from handheld.graph.graph import View

if TYPE_CHECKING:
    from handheld.frontend.optimizers import Optimizer


_ZEROS: Mapping[str, float] = MappingProxyType({})


class Update:
    """Builds the update of one parameter."""

    def __init__(
        self,
        rec: Recorder,
        owner: Optimizer,
        parameter: torch.Tensor,
        gradient: View,
        number: int,
        rates: dict[str, View],
    ) -> None:
        self.rec, self.owner, self.parameter, self.number, self.rates = rec, owner, parameter, number, rates
        self.group: dict[str, Any] = owner.optimizer.param_groups[number]
        self.slot = owner.state.find(parameter)
        self.shape = tuple(parameter.shape)
        self.gradient = gradient
        self.writes: dict[str, int] = {}
        #: The momentum (or beta1) if a scheduler changes it, else nothing.
        self.moving = [rec.slot_view(f"{owner.name}.{owner.moving}.{number}")] if owner.moving else []
        if self.group.get("maximize"):
            self.gradient = rec.map(self.shape, [gradient], lambda g: -g)

    def apply(
        self,
        fields: list[str],
        scalars: list[View],
        build: Callable[..., list[Val]],
        initial: Mapping[str, float] = _ZEROS,
    ) -> None:
        """Adds one map: build(p, g, *states, *scalars) returns [new p, *new states]. States start as zeros, or as
        `initial` says."""
        slots = [self.slot, *(self.owner.slot(self.parameter, f, initial.get(f, 0.0)) for f in fields)]
        p, *states = (self.rec.slot_view(s) for s in slots)
        shape = p.shape
        views = [p, self.gradient, *states, *(View(s.tensor, shape, (0,) * len(shape), 0) for s in scalars)]
        results = self.rec.loops(shape, (), views, build)
        self.writes.update({s: v.tensor for s, v in zip(slots, results, strict=True)})

    def scalar(self, key: str, inputs: list[View], build: Callable[..., Val]) -> View:
        """Returns a number that is computed once per step for all parameters of the group."""
        if key not in self.rates:
            self.rates[key] = self.rec.map((), inputs, build)
        return self.rates[key]

    def group_state(self, field: str, initial: float) -> View:
        """Returns a number of the optimizer's state that all parameters of the group share, from its slot."""
        return self.rec.slot_view(self.owner.group_slot(self.number, field, initial))

    def set_group_state(self, field: str, inputs: list[View], build: Callable[..., Val]) -> View:
        """Gives such a number its new value, once per step."""
        new = self.scalar(f"new {field}", inputs, build)
        self.writes[self.owner.group_slot(self.number, field, 0.0)] = new.tensor
        return new

    def correction(self, beta: float, moving: Sequence[View] = ()) -> View:
        """Returns 1 - beta**t, where t counts steps from 1. `moving` holds the beta if a scheduler changes it."""
        if moving:
            return self.scalar(
                "moving correction",
                [self.rates["done"], *moving],
                lambda t, b: -((t + 1).to(F32) * b.unary("log")).unary("expm1"),
            )
        log = math.log(beta) if beta > 0 else -math.inf
        if beta == 0:
            return self.scalar("one", [self.rates["done"]], lambda t: t.to(F32) * 0.0 + 1.0)
        return self.scalar(
            f"correction {beta}", [self.rates["done"]], lambda t: -((t + 1).to(F32) * log).unary("expm1")
        )

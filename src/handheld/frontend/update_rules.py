"""The update rules of torch.optim, as map nodes over parameter, gradient, state and control values.

- State that PyTorch creates at the first step starts as zeros here. Where that would give another result (SGD with
  dampening), the rule checks the step counter.
- Learning rates are slots, so a schedule can change them without a new plan.
- PyTorch computes bias corrections in double precision on the host. Here they are computed with expm1 from exact
  constants, so that no precision is lost by cancellation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from handheld.frontend.record import Recorder
from handheld.frontend.values import Val
from handheld.graph.dtypes import F32
from handheld.graph.graph import View

if TYPE_CHECKING:
    from handheld.frontend.optimizers import Optimizer

Rule = Callable[["Update"], None]


class Update:
    """Builds the update of one parameter."""

    def __init__(
        self,
        rec: Recorder,
        owner: Optimizer,
        parameter: torch.Tensor,
        gradient: View,
        group: dict[str, Any],
        rates: dict[str, View],
    ) -> None:
        self.rec, self.owner, self.parameter, self.group, self.rates = (rec, owner, parameter, group, rates)
        self.slot = owner.state.find(parameter)
        self.shape = tuple(parameter.shape)
        self.gradient = gradient
        self.writes: dict[str, int] = {}
        if group.get("maximize"):
            self.gradient = rec.map(self.shape, [gradient], lambda g: -g)

    def apply(self, fields: list[str], scalars: list[View], build: Callable[..., list[Val]]) -> None:
        """Adds one map: build(p, g, *states, *scalars) returns [new p, *new states]."""
        slots = [self.slot, *(self.owner.slot(self.parameter, f) for f in fields)]
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

    def correction(self, beta: float) -> View:
        """Returns 1 - beta**t, where t counts steps from 1."""
        log = math.log(beta) if beta > 0 else -math.inf
        if beta == 0:
            return self.scalar("one", [self.rates["done"]], lambda t: t.to(F32) * 0.0 + 1.0)
        return self.scalar(
            f"correction {beta}", [self.rates["done"]], lambda t: -((t + 1).to(F32) * log).unary("expm1")
        )


def _sgd(u: Update) -> None:
    group = u.group
    decay, momentum, dampening = (float(group[k]) for k in ("weight_decay", "momentum", "dampening"))

    def start(p: Val, g: Val) -> Val:
        return g + p * decay if decay else g

    if not momentum:
        u.apply([], [u.rates["lr"]], lambda p, g, lr: [p - lr * start(p, g)])
        return

    def build(p: Val, g: Val, buffer: Val, lr: Val, done: Val | None = None) -> list[Val]:
        g = start(p, g)
        new = buffer * momentum + (g * (1 - dampening) if dampening else g)
        if done is not None:
            new = done.eq(0).where(g, new)
        return [p - lr * (g + new * momentum if group["nesterov"] else new), new]

    scalars = [u.rates["lr"]] + ([u.rates["done"]] if dampening else [])
    u.apply(["momentum_buffer"], scalars, build)


def _adam(u: Update, decoupled: bool) -> None:
    group = u.group
    (beta1, beta2), eps, decay = group["betas"], float(group["eps"]), float(group["weight_decay"])
    c1, c2 = u.correction(float(beta1)), u.correction(float(beta2))
    size = u.scalar("step size", [u.rates["lr"], c1], lambda lr, c: lr / c)
    root = u.scalar("root", [c2], lambda c: c.unary("sqrt"))
    shrink = decoupled or bool(group.get("decoupled_weight_decay"))
    amsgrad = bool(group["amsgrad"])

    def build(p: Val, g: Val, m: Val, v: Val, *rest: Val) -> list[Val]:
        best = rest[0] if amsgrad else None
        lr, step, r = rest[-3:]
        if decay and shrink:
            p = p * (1.0 - lr * decay)
        elif decay:
            g = g + p * decay
        m = m + (g - m) * float(1 - beta1)
        v = v * float(beta2) + g * g * float(1 - beta2)
        top = best.binary("max", v) if best is not None else v
        p = p - step * m / (top.unary("sqrt") / r + eps)
        return [p, m, v, top] if amsgrad else [p, m, v]

    fields = ["exp_avg", "exp_avg_sq"] + (["max_exp_avg_sq"] if amsgrad else [])
    u.apply(fields, [u.rates["lr"], size, root], build)


def _rmsprop(u: Update) -> None:
    group = u.group
    alpha, eps, decay, momentum = (float(group[k]) for k in ("alpha", "eps", "weight_decay", "momentum"))
    centered = bool(group["centered"])

    def build(p: Val, g: Val, square: Val, *rest: Val) -> list[Val]:
        left, lr = list(rest[:-1]), rest[-1]
        g = g + p * decay if decay else g
        square = square * alpha + g * g * (1 - alpha)
        states, spread = [square], square
        if centered:
            mean = left.pop(0)
            mean = mean + (g - mean) * (1 - alpha)
            states.append(mean)
            spread = square - mean * mean
        move = g / (spread.unary("sqrt") + eps)
        if momentum:
            move = left.pop(0) * momentum + move
            states.append(move)
        return [p - lr * move, *states]

    fields = ["square_avg"] + (["grad_avg"] if centered else []) + (["momentum_buffer"] if momentum else [])
    u.apply(fields, [u.rates["lr"]], build)


RULES: dict[str, Rule] = {
    "SGD": _sgd,
    "Adam": lambda u: _adam(u, False),
    "AdamW": lambda u: _adam(u, True),
    "RMSprop": _rmsprop,
}

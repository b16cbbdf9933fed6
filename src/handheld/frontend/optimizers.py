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
from typing import Any

import numpy as np
import torch

from handheld.errors import CaptureError
from handheld.frontend.record import Recorder
from handheld.frontend.state import StateBuilder, host_array
from handheld.frontend.values import Val
from handheld.graph.dtypes import F32
from handheld.graph.graph import View

Rule = Callable[["Update"], None]


class Optimizer:
    """The slots of a torch.optim optimizer: its learning rates, its step counter and its state."""

    def __init__(self, optimizer: torch.optim.Optimizer, state: StateBuilder, name: str) -> None:
        kind = type(optimizer).__name__
        if kind not in RULES or type(optimizer).__module__.split(".")[0] != "torch":
            raise CaptureError(f"optimizer {kind} is not supported. Try: one of {', '.join(RULES)} from torch.optim")
        self.rule, self.kind, self.name, self.state = RULES[kind], kind.lower(), name, state
        self.optimizer = optimizer
        self.step = f"{name}.step"
        if self.step not in state.slots:
            state.add_value(self.step, np.array(self._steps_done(), np.int32), "control", "int64")
        self.parameters: list[tuple[torch.Tensor, int]] = []
        seen: set[int] = set()
        for number, group in enumerate(optimizer.param_groups):
            if f"{name}.lr.{number}" not in state.slots:
                state.add_value(f"{name}.lr.{number}", np.array(float(group["lr"]), np.float32), "control")
            for p in group["params"]:
                if p.requires_grad and id(p) not in seen:
                    seen.add(id(p))
                    self.parameters.append((p, number))

    def _steps_done(self) -> int:
        steps = [int(s["step"]) for s in self.optimizer.state.values() if "step" in s]
        return max(steps, default=0)

    def slot(self, parameter: torch.Tensor, field: str) -> str:
        """Returns the slot of one state tensor of a parameter."""
        owner = self.state.find(parameter)
        name = f"{self.name}.{owner}.{field}"
        if name not in self.state.slots:
            saved = self.optimizer.state.get(parameter, {}).get(field)
            value = host_array(saved) if saved is not None else np.zeros(tuple(parameter.shape), np.float32)
            self.state.add_value(name, value, "optimizer")
        return name

    def emit(self, rec: Recorder, gradients: dict[int, View]) -> dict[str, int]:
        """Adds the update of every parameter that has a gradient. Returns the new tensor of each slot it writes."""
        writes: dict[str, int] = {}
        done = rec.slot_view(self.step)
        rec.phase, rec.torch_op = "update", f"optim.{self.kind}"
        rec.path.append("optimizer")
        writes[self.step] = rec.map((), [done], lambda t: t + 1).tensor
        shared: dict[int, dict[str, View]] = {}
        for parameter, number in self.parameters:
            owner = self.state.find(parameter)
            if owner in writes or id(parameter) not in gradients:
                continue
            group = self.optimizer.param_groups[number]
            rates = shared.setdefault(number, {"lr": rec.slot_view(f"{self.name}.lr.{number}"), "done": done})
            rec.path.append(self.state.path_of(owner))
            update = Update(rec, self, parameter, gradients[id(parameter)], group, rates)
            self.rule(update)
            rec.path.pop()
            writes.update(update.writes)
        rec.path.pop()
        return writes


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


def clip_norm(rec: Recorder, gradients: dict[int, View], limit: float) -> dict[int, View]:
    """Scales all gradients so that their joint norm is at most `limit`, like clip_grad_norm_."""
    from handheld.frontend.reductions import fold

    rec.torch_op = "clip_grad_norm"
    sums = [fold(rec, g, tuple(range(len(g.shape))), lambda a: (a * a).reduce("sum")) for g in gradients.values()]
    while len(sums) > 1:
        sums = [_add_all(rec, sums[i : i + 8]) for i in range(0, len(sums), 8)]
    factor = rec.map((), [sums[0]], lambda s: (limit / (s.unary("sqrt") + 1e-6)).binary("min", 1.0))
    return {k: rec.map(g.shape, [g, factor], lambda a, f: a * f) for k, g in gradients.items()}


def _add_all(rec: Recorder, views: list[View]) -> View:
    def build(*vals: Val) -> Val:
        total = vals[0]
        for v in vals[1:]:
            total = total + v
        return total

    return rec.map((), views, build)


def clip_value(rec: Recorder, gradients: dict[int, View], limit: float) -> dict[int, View]:
    """Limits every element of every gradient to [-limit, limit], like clip_grad_value_."""
    rec.torch_op = "clip_grad_value"
    return {
        k: rec.map(g.shape, [g], lambda a: a.binary("max", -limit).binary("min", limit)) for k, g in gradients.items()
    }

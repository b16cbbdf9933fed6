"""The optimizer of a training step: its slots (rates, step counter, state) and the update of its parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from handheld.callers import warn_user
from handheld.errors import CaptureError
from handheld.frontend.first_step import HOOKS, Start, is_number, learn
from handheld.frontend.generic_update import Inserted, Slots, Template, record
from handheld.frontend.numbers import Expr
from handheld.frontend.record import Recorder
from handheld.frontend.state import StateBuilder, host_array
from handheld.frontend.update import Update
from handheld.frontend.update_rules import MOVING, RULES
from handheld.graph.graph import View


class Optimizer:
    """The slots of a torch.optim optimizer: its learning rates, its step counter and its state."""

    def __init__(self, optimizer: torch.optim.Optimizer, state: StateBuilder, name: str) -> None:
        _check(optimizer)
        _report_hooks(optimizer)
        ruled = _ruled(optimizer)
        self.rule, self.kind, self.name, self.state = RULES.get(ruled), type(optimizer).__name__.lower(), name, state
        self.optimizer = optimizer
        self._templates: dict[tuple[int, ...], Template] = {}
        self.step = f"{name}.step"
        if self.step not in state.slots:
            state.add_value(self.step, np.array(self._steps_done(), np.int32), "control", "int64")
        #: "momentum" or "beta1" if a scheduler changes it: OneCycleLR and CyclicLR leave these notes in the groups.
        self.moving = MOVING.get(ruled, "") if any("max_momentum" in g for g in optimizer.param_groups) else ""
        self.parameters: list[tuple[torch.Tensor, int]] = []
        seen: set[int] = set()
        for number, group in enumerate(optimizer.param_groups):
            if f"{name}.lr.{number}" not in state.slots:
                state.add_value(f"{name}.lr.{number}", np.array(float(group["lr"]), np.float32), "control")
            if self.moving and f"{name}.{self.moving}.{number}" not in state.slots:
                value = group["momentum"] if self.moving == "momentum" else group["betas"][0]
                state.add_value(f"{name}.{self.moving}.{number}", np.array(float(value), np.float32), "control")
            for p in group["params"]:
                if p.requires_grad and id(p) not in seen:
                    seen.add(id(p))
                    self.parameters.append((p, number))

    def _steps_done(self) -> int:
        steps = [int(s["step"]) for s in self.optimizer.state.values() if "step" in s]
        steps += [int(group["step"]) for group in self.optimizer.param_groups if is_number(group.get("step"))]
        return max(steps, default=0)

    def slot(self, parameter: torch.Tensor, field: str, initial: float = 0.0) -> str:
        """Returns the slot of one state tensor of a parameter. PyTorch's own value, if there is one, comes first."""
        owner = self.state.find(parameter)
        name = f"{self.name}.{owner}.{field}"
        if name not in self.state.slots:
            saved = self.optimizer.state.get(parameter, {}).get(field)
            value = host_array(saved) if saved is not None else np.full(tuple(parameter.shape), initial, np.float32)
            self.state.add_value(name, value, "optimizer")
        return name

    def group_slot(self, number: int, field: str, initial: float) -> str:
        """Returns the slot of a number that PyTorch keeps per parameter and that is equal in a whole group."""
        name = f"{self.name}.{field}.{number}"
        if name not in self.state.slots:
            saved = [self.optimizer.state.get(p, {}).get(field) for p in self.optimizer.param_groups[number]["params"]]
            value = next((float(v) for v in saved if v is not None), initial)
            self.state.add_value(name, np.array(value, np.float32), "optimizer")
        return name

    def emit(self, rec: Recorder, gradients: dict[int, View]) -> dict[str, int]:
        """Adds the update of every parameter that has a gradient. Returns the new tensor of each slot it writes."""
        writes: dict[str, int] = {}
        done = rec.slot_view(self.step)
        rec.phase, rec.torch_op = "update", f"optim.{self.kind}"
        rec.path.append("optimizer")
        writes[self.step] = rec.map((), [done], lambda t: t + 1).tensor
        if self.rule is None:
            writes |= self._recorded(rec, gradients)
        else:
            self._by_rule(self.rule, rec, gradients, writes)
        rec.path.pop()
        return writes

    def _by_rule(
        self, rule: Callable[[Update], None], rec: Recorder, gradients: dict[int, View], writes: dict[str, int]
    ) -> None:
        done = rec.slot_view(self.step)
        shared: dict[int, dict[str, View]] = {}
        for parameter, number in self.parameters:
            owner = self.state.find(parameter)
            if owner in writes or id(parameter) not in gradients:
                continue
            rates = shared.setdefault(number, {"lr": rec.slot_view(f"{self.name}.lr.{number}"), "done": done})
            rec.path.append(self.state.path_of(owner))
            update = Update(rec, self, parameter, gradients[id(parameter)], number, rates)
            rule(update)
            rec.path.pop()
            writes.update(update.writes)

    # ── an optimizer without a rule ───────────────────────────────────────────────────────────

    def _recorded(self, rec: Recorder, gradients: dict[int, View]) -> dict[str, int]:
        """Adds the update that the optimizer's own step() makes."""
        parameters = [p for p, _ in self.parameters if id(p) in gradients]
        key = tuple(map(id, parameters))
        if key not in self._templates:
            with torch.utils._python_dispatch._disable_current_modes():
                start = learn(self.optimizer, parameters)
            self._templates[key] = self._template(parameters, start)
        return Inserted(rec, self._templates[key], gradients).writes()

    def _template(self, parameters: list[torch.Tensor], start: Start) -> Template:
        """Records the update. Numbers that count steps use the one step counter, unless they count otherwise."""
        counted = Expr("add", (Expr("leaf", leaf=self.step), 1.0))
        for shared in (True, False):
            template = record(self.optimizer, parameters, self.state, start, self._slots(parameters, start, shared))
            if template.writes.get(self.step, counted) == counted:
                break
        return replace(template, writes={k: v for k, v in template.writes.items() if k != self.step})

    def _slots(self, parameters: list[torch.Tensor], start: Start, shared: bool) -> Slots:
        """Returns the slots of everything that a step changes, and makes those that do not exist."""
        counter = int(self.state.values[self.step])

        def number(name: str, field: str, value: Any) -> str:
            if shared and field == "step" and isinstance(value, int) and value == counter:
                return self.step
            if name not in self.state.slots:
                kind = np.int32 if isinstance(value, int) else np.float32
                self.state.add_value(
                    name, np.array(value, kind), "optimizer", "int64" if kind is np.int32 else "float32"
                )
            return name

        state: dict[tuple[int, str], str] = {}
        for p in parameters:
            owner = self.state.find(p)
            for field, value in start.state[p].items():
                name = f"{self.name}.{owner}.{field}"
                if isinstance(value, torch.Tensor):
                    if name not in self.state.slots:
                        kind = str(value.dtype).removeprefix("torch.")
                        self.state.add_value(name, host_array(value), "optimizer", kind, tuple(value.shape))
                    state[id(p), field] = name
                elif is_number(value):
                    state[id(p), field] = number(name, field, value)
        groups = [
            {"lr": f"{self.name}.lr.{n}", **{k: number(f"{self.name}.{k}.{n}", k, v) for k, v in numbers.items()}}
            for n, numbers in enumerate(start.groups)
        ]
        return Slots(state, groups, {id(p): self.state.find(p) for p in parameters})


#: Optimizers of torch.optim that cannot be captured, and why.
_REFUSED = {
    "LBFGS": "it computes the loss several times per step. Try: torch.optim.Adam, or SGD with momentum",
    "SparseAdam": "it needs sparse gradients, and gradients are dense here. Try: torch.optim.Adam",
}


def _check(optimizer: torch.optim.Optimizer) -> None:
    """Raises CaptureError for an optimizer that cannot be captured."""
    kind = type(optimizer).__name__
    for base in type(optimizer).__mro__:
        if base.__name__ in _REFUSED and base.__module__.startswith("torch."):
            raise CaptureError(f"optimizer {kind} cannot be captured: {_REFUSED[base.__name__]}")
    # Schedulers put a function of their own in the place of optimizer.step, so the class is asked.
    parameters = list(inspect.signature(type(optimizer).step).parameters.values())[1:]
    needed = [p.name for p in parameters if p.default is p.empty]
    if any(p not in ("args", "kwargs") for p in needed):
        raise CaptureError(
            f"optimizer {kind} cannot be captured: its step() needs {needed[0]}, and a captured step computes the loss "
            "once. Try: an optimizer whose step() takes no argument"
        )
    if any(not isinstance(group.get("lr"), (int, float, torch.Tensor)) for group in optimizer.param_groups):
        raise CaptureError(
            f"optimizer {kind} cannot be captured: its parameter groups have no number as learning rate 'lr'. "
            "Try: give it a default lr, which step() may ignore"
        )


def _report_hooks(optimizer: torch.optim.Optimizer) -> None:
    """Warns about functions that PyTorch would call in a training step and that a captured step does not call."""
    if any(getattr(optimizer, name, None) for name in HOOKS):
        warn_user(
            "hooks of the optimizer's step() do not run in a captured step. "
            "Try: call them in your own loop, after trainer.step(...)"
        )
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if any(getattr(p, "_post_accumulate_grad_hooks", None) for p in parameters):
        warn_user(
            "hooks of register_post_accumulate_grad_hook do not run in a captured step. "
            "Try: parameter.register_hook, which is captured"
        )


def _ruled(optimizer: torch.optim.Optimizer) -> str:
    """Returns the name of the rule of an optimizer of torch.optim, or nothing. A subclass has the same rule, unless it
    has a step() of its own."""
    own = inspect.unwrap(type(optimizer).step)
    for base in type(optimizer).__mro__:
        known = base.__module__.startswith("torch.optim") and base.__name__ in RULES
        if known and issubclass(base, torch.optim.Optimizer):
            return base.__name__ if inspect.unwrap(base.step) is own else ""
    return ""

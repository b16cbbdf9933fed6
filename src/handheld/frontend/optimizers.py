"""The optimizer of a training step: its slots (rates, step counter, state) and the update of its parameters."""

from __future__ import annotations

import numpy as np
import torch

from handheld.errors import CaptureError
from handheld.frontend.record import Recorder
from handheld.frontend.state import StateBuilder, host_array
from handheld.frontend.update import Update
from handheld.frontend.update_rules import MOVING, RULES
from handheld.graph.graph import View


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
        #: "momentum" or "beta1" if a scheduler changes it: OneCycleLR and CyclicLR leave these notes in the groups.
        self.moving = MOVING.get(kind, "") if any("max_momentum" in g for g in optimizer.param_groups) else ""
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
        shared: dict[int, dict[str, View]] = {}
        for parameter, number in self.parameters:
            owner = self.state.find(parameter)
            if owner in writes or id(parameter) not in gradients:
                continue
            rates = shared.setdefault(number, {"lr": rec.slot_view(f"{self.name}.lr.{number}"), "done": done})
            rec.path.append(self.state.path_of(owner))
            update = Update(rec, self, parameter, gradients[id(parameter)], number, rates)
            self.rule(update)
            rec.path.pop()
            writes.update(update.writes)
        rec.path.pop()
        return writes

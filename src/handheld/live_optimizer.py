"""The optimizer object that a step was captured with, watched for changes. Needs no PyTorch.

Code that trains in the process that captured the step keeps its PyTorch optimizer. A scheduler, or the user,
changes the learning rates in `optimizer.param_groups`; the trainer copies them to the device before the next
training step. Every other change would be ignored by the captured step, so it is an error.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from handheld.errors import HandheldError
from handheld.units import count

#: Steps between two looks at every parameter of the optimizer. Looking costs about 30 ns per parameter.
LOOK = 16
#: Entries of a parameter group that do not change what the optimizer computes: notes of schedulers, and the
#: choice of an implementation.
_NOTES = {"params", "param_names", "initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum", "swa_lr"}
IGNORED = _NOTES | {"foreach", "fused", "capturable", "differentiable"}

Group = Mapping[str, Any]


class TorchOptimizer(Protocol):
    """What is used of a `torch.optim.Optimizer`."""

    param_groups: list[dict[str, Any]]
    state: Any
    defaults: dict[str, Any]


class LiveOptimizer:
    """An optimizer of this process, and what was last seen of it.

    It is held weakly: if nobody else keeps the optimizer, nothing can change it, and its memory is free.
    """

    def __init__(self, optimizer: TorchOptimizer, name: str, moving: str = "") -> None:
        self._optimizer = weakref.ref(optimizer, self._gone)
        self.name = name
        #: Slots of which a graph has one if it updates with this optimizer: the number of its steps, the first rate.
        self.step_slot, self.rate_slot = f"{name}.step", f"{name}.lr.0"
        #: "momentum" or "beta1" if it may change too, because the step reads it from a slot.
        self.moving = moving
        own = type(optimizer).__module__.partition(".")[0] == "torch"
        # Optimizers of PyTorch compute with the entries in `defaults` only; another one may read any entry.
        keys = optimizer.defaults.keys() if own else {key for group in optimizer.param_groups for key in group}
        self._keys = sorted(keys - IGNORED)
        self._seen = _copy(optimizer)
        self._state: object = None
        self._trained: list[bool] = []
        self._wait = 0
        self.end_capture()

    def _gone(self, _: object) -> None:
        self._seen.clear()  # It keeps parameters alive.
        self._state = None

    def end_capture(self) -> None:
        """Take the parameters as they are now. The user's code may have changed requires_grad during the capture."""
        optimizer = self.optimizer
        if optimizer is not None:
            self._state, self._trained = optimizer.state, _trained(optimizer)

    @property
    def optimizer(self) -> TorchOptimizer | None:
        """The PyTorch optimizer, or None if it no longer exists."""
        return self._optimizer()

    def copy(self) -> LiveOptimizer:
        """Watches the same optimizer for another trainer."""
        other = copy.copy(self)
        other._seen = [dict(group) for group in self._seen]
        if self.optimizer is not None:
            other._optimizer = weakref.ref(self.optimizer, other._gone)
        return other

    def forget_rates(self) -> None:
        """Makes `changes` return every rate (and momentum that may change), also those that did not change."""
        for group in self._seen:
            group["lr"] = None
            if self.moving == "momentum":
                group["momentum"] = None
            elif self.moving:
                group["betas"] = (None, *group["betas"][1:])

    def changes(self) -> dict[str, float]:
        """The slots whose values changed since the last call, with their new values. Called before every step."""
        optimizer = self._optimizer()
        if optimizer is None:
            return {}
        if self._wait:
            self._wait -= 1
        else:
            self._check_parameters(optimizer)
        if optimizer.param_groups == self._seen and optimizer.state is self._state:
            return {}
        return self._look(optimizer)

    def _look(self, optimizer: TorchOptimizer) -> dict[str, float]:
        self._check_state(optimizer)
        groups, changed = optimizer.param_groups, dict[str, float]()
        if len(groups) != len(self._seen):
            raise HandheldError(
                f"the optimizer has {len(groups)} parameter groups; it had {len(self._seen)} when the step was "
                f"captured, and only those are trained. {_AGAIN}"
            )
        for number, (group, seen) in enumerate(zip(groups, self._seen, strict=True)):
            for key in self._keys:
                now, before = _plain(group.get(key)), seen.get(key)
                if now != before:
                    slot, value = self._slot(key, before, now, group)
                    if not 0 <= value < 2.0**128:
                        raise HandheldError(f"{key} of the optimizer is {now}; it must be a finite number, 0 or more")
                    changed[f"{self.name}.{slot}.{number}"] = float(value)
        self._seen = _copy(optimizer)
        return changed

    def _slot(self, key: str, before: Any, now: Any, group: Group) -> tuple[str, float]:
        """The slot of a changed entry, and its new value. Raises HandheldError if the step has no slot for it."""
        if key in ("lr", self.moving):
            return key, now
        if key == "betas" and self.moving == "beta1" and now[1:] == before[1:]:
            return "beta1", now[0]
        raise HandheldError(_not_captured(key, before, now, group))

    def _check_state(self, optimizer: TorchOptimizer) -> None:
        """Values that were loaded into the optimizer after the capture would have no effect."""
        if optimizer.state is not self._state:
            if optimizer.state:
                raise HandheldError(
                    "optimizer.load_state_dict was called after the capture; the trainer does not see the loaded "
                    "values. Try: load before handheld.capture, or trainer.load(values) with those of trainer.state()"
                )
            self._state = optimizer.state

    def _check_parameters(self, optimizer: TorchOptimizer) -> None:
        # PyTorch's schedulers warn if the optimizer was never stepped. The trainer steps in its place.
        optimizer._opt_called = True  # type: ignore[attr-defined]
        now, before = _trained(optimizer), self._trained
        if now != before and len(optimizer.param_groups) == len(self._seen):
            what = (
                f"requires_grad of {count(sum(a != b for a, b in zip(now, before, strict=True)), 'parameter')} changed"
                if len(now) == len(before)
                else f"the optimizer got {count(len(now) - len(before), 'more parameter')}"
            )
            raise HandheldError(f"{what} after the step was captured, which fixed what is trained. {_AGAIN}")
        self._wait = LOOK - 1


#: How a user goes on after the set of trained parameters changed.
_AGAIN = (
    "Try: step.copy_to(model, optimizer), then handheld.capture again, which takes the trained values and the "
    "optimizer's state"
)


def _copy(optimizer: TorchOptimizer) -> list[dict[str, Any]]:
    """The groups as they are now. Lists of parameters stay the same object, so that comparing them is quick."""
    return [
        {key: value if key == "params" else _plain(value) for key, value in group.items()}
        for group in optimizer.param_groups
    ]


def _trained(optimizer: TorchOptimizer) -> list[bool]:
    return [p.requires_grad for group in optimizer.param_groups for p in group["params"]]


def _plain(value: Any) -> Any:
    """A value that does not change when the optimizer's own does: tensors become numbers."""
    if isinstance(value, (tuple, list)):
        return type(value)(_plain(item) for item in value)
    item: Callable[[], Any] | None = getattr(value, "item", None)
    return value if item is None else item()


def _not_captured(key: str, before: object, now: object, group: Group) -> str:
    text = f"{key} of the optimizer is {now}; it was {before} when the step was captured, and is fixed since then"
    if key in ("momentum", "betas") and "max_momentum" in group:
        return (
            f"{text}. The scheduler changes it. Try: cycle_momentum=False; or, for SGD, RMSprop, Adam and AdamW, make "
            "the scheduler before handheld.capture"
        )
    return f"{text}. Only learning rates can change. Try: set {key} before handheld.capture, or capture again"

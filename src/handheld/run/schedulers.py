"""Schedulers of `torch.optim.lr_scheduler` in the training loop: when they step, and how a checkpoint keeps them.

A scheduler is known by its methods, so this needs no PyTorch.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

from handheld.errors import CheckpointError, HandheldError
from handheld.live_optimizer import TorchOptimizer
from handheld.run.history import Epoch
from handheld.run.stopping import HIGHER, Goal

#: What schedulers write into the groups of an optimizer. The state of a scheduler does not hold it.
_WRITTEN = ("lr", "initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum", "swa_lr", "momentum", "betas")


@runtime_checkable
class TorchScheduler(Protocol):
    """What is used of a `torch.optim.lr_scheduler.LRScheduler`."""

    optimizer: TorchOptimizer

    def step(self, *metric: float) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


class Stepper:
    """Steps a scheduler after every epoch or after every update."""

    def __init__(self, scheduler: TorchScheduler, every: str, goal: Goal | None) -> None:
        self.scheduler, self.every, self.goal = scheduler, every, goal
        self.kind = type(scheduler).__name__
        self.plateau = any(kind.__name__ == "ReduceLROnPlateau" for kind in type(scheduler).__mro__)
        if self.plateau and every == "step":
            raise HandheldError(
                "ReduceLROnPlateau looks at the loss of an epoch, so it cannot step after every update. "
                "Try: rate_every='epoch'"
            )

    @property
    def rates(self) -> list[float]:
        return [float(group["lr"]) for group in self.scheduler.optimizer.param_groups]

    def check_length(self, updates: int | None, epochs: int) -> None:
        """OneCycleLR says how often it can step. `updates` and `epochs` are still to come."""
        total, done = getattr(self.scheduler, "total_steps", None), getattr(self.scheduler, "last_epoch", 0)
        needed = epochs if self.every == "epoch" else updates
        if not isinstance(total, int) or needed is None:
            return
        if total - done < needed:
            raise HandheldError(
                f"{self.kind} has total_steps={total} and was stepped {done} times; this training steps it {needed} "
                f"times more. Try: total_steps={done + needed}"
            )
        if total - done > needed and self.every == "epoch":
            warnings.warn(
                f"{self.kind} has total_steps={total}, and this training steps it {needed} times, once per epoch. "
                "Try: rate_every='step'",
                stacklevel=4,
            )

    def after_update(self) -> None:
        if self.every == "step":
            self.scheduler.step()

    def after_epoch(self, row: Epoch) -> None:
        if self.every != "epoch":
            return
        if self.plateau:
            self.scheduler.step(self._watched(row))
        else:
            self.scheduler.step()

    def _watched(self, row: Epoch) -> float:
        """The value that ReduceLROnPlateau looks at: the metric of `best`, or the loss (mode max: the accuracy)."""
        higher = getattr(self.scheduler, "mode", "min") == "max"
        if self.goal is not None and self.goal.higher == higher:
            return self.goal.value(row)
        values = row.test or {"loss": row.loss}
        name = next((name for name in values if HIGHER.get(name) == higher), None)
        if name is None:
            raise HandheldError(
                "ReduceLROnPlateau with mode='max' has no metric to look at: the evaluation gives "
                f"{', '.join(values)}. Try: mode='min' for the loss, or best= with mode='max'"
            )
        return values[name]

    # ── checkpoints ───────────────────────────────────────────────────────────────────────────

    def saved(self) -> dict[str, object]:
        """The scheduler as plain data. Raises CheckpointError if its state holds anything else."""
        groups = [
            {key: _plain(group[key], self.kind) for key in _WRITTEN if key in group}
            for group in self.scheduler.optimizer.param_groups
        ]
        state = _plain(self.scheduler.state_dict(), self.kind)
        return {"kind": self.kind, "every": self.every, "state": state, "groups": groups}

    def resume(self, saved: object) -> Iterator[str]:
        """Continue from the state in a checkpoint. Says what is different now."""
        if not isinstance(saved, Mapping):
            yield f"the checkpoint holds no scheduler, so {self.kind} starts from its own state"
            return
        if saved.get("kind") != self.kind:
            yield f"the scheduler was {saved.get('kind')!s:.40} and is {self.kind}, which starts from its own state"
            return
        if saved.get("every") != self.every:
            yield f"{self.kind} stepped every {saved.get('every')!s:.40} and steps every {self.every} now"
        own = self.scheduler.state_dict()
        state, groups = saved.get("state"), saved.get("groups")
        live = self.scheduler.optimizer.param_groups
        if not isinstance(state, dict) or state.keys() != own.keys() or not isinstance(groups, list):
            raise CheckpointError(
                f"the state of {self.kind} in the checkpoint does not fit this one. Try: the same version of PyTorch"
            )
        if len(groups) != len(live) or not all(isinstance(group, dict) for group in groups):
            raise CheckpointError(f"the scheduler of the checkpoint has {len(groups)} groups, and {len(live)} are here")
        self.scheduler.load_state_dict(_like(state, own))
        for group, values in zip(live, groups, strict=True):
            for key in values.keys() & set(_WRITTEN):
                if hasattr(group.get(key), "fill_"):  # A rate that is a tensor stays that tensor.
                    group[key].fill_(values[key])
                else:
                    group[key] = values[key]


def _plain(value: object, kind: str) -> object:
    """A value that a checkpoint can hold. A dictionary with other keys than texts becomes a list of pairs."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: _plain(item, kind) for key, item in value.items()}
        return [(_plain(key, kind), _plain(item, kind)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value)(_plain(item, kind) for item in value)
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        return value.item()
    raise CheckpointError(
        f"the state of {kind} holds a {type(value).__name__}, which a checkpoint cannot keep. "
        "Try: a scheduler whose state is numbers and lists, or no checkpoint"
    )


def _like(value: Any, own: object) -> Any:
    """The value of a checkpoint in the type that the scheduler's own state has."""
    if isinstance(own, Counter):
        return Counter(dict(value))
    if isinstance(own, Mapping):
        return {key: _like(item, own.get(key)) for key, item in dict(value).items()}
    if isinstance(own, list | tuple) and isinstance(value, list | tuple) and len(own) == len(value):
        return type(own)(_like(item, mine) for item, mine in zip(value, own, strict=True))
    return value

"""Which epoch of a training is the best, when to stop waiting for a better one, and the state of the best.

The history decides: the best epoch is the first with the best value, and patience counts the epochs since then.
So a resumed run knows both without a file. Only the state of the best epoch must be kept: on the host, and in
the checkpoint if there is one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from handheld.errors import HandheldError
from handheld.run.history import Epoch, History

if TYPE_CHECKING:
    from handheld.run.trainer import Trainer

#: Whether a higher value is better, for the metrics that Handheld knows.
HIGHER = {"loss": False, "accuracy": True}


@dataclass(frozen=True)
class Goal:
    """What makes an epoch the best, and how many epochs to wait for a better one."""

    metric: str
    higher: bool
    #: Whether the metric is that of the test set; else it is the mean loss of the training steps.
    tested: bool
    patience: int | None
    keep: bool

    @property
    def name(self) -> str:
        return f"test {self.metric}" if self.tested else f"training {self.metric}"

    def value(self, row: Epoch) -> float:
        if not self.tested:
            return row.loss
        if self.metric not in row.test:
            raise HandheldError(
                f"best={self.metric!r} is no metric of this evaluation, which gives {', '.join(row.test)}. "
                "Try: one of them, or metrics={name: function}"
            )
        return row.test[self.metric]

    def better(self, value: float, than: float) -> bool:
        """NaN is never better, and every number is better than NaN."""
        if math.isnan(than):
            return not math.isnan(value)
        return value > than if self.higher else value < than


def goal_of(
    best: str | None, mode: str | None, patience: int | None, keep: bool, tested: bool, metrics: Mapping[str, object]
) -> Goal | None:
    """The arguments of `fit` as a Goal, or None if they ask for nothing. Raises HandheldError."""
    if patience is not None and (type(patience) is not int or patience < 1):
        raise HandheldError(f"patience={patience!r:.40} must be a whole number of epochs, 1 or more")
    if mode not in (None, "min", "max"):
        raise HandheldError(f"mode={mode!r:.40} must be 'min' or 'max'")
    if best is None and mode is not None:
        raise HandheldError("mode says which direction is better, but no metric is named. Try: best='accuracy'")
    if best is None and patience is None and not keep:
        return None
    metric = "loss" if best is None else best
    if not isinstance(metric, str):
        raise HandheldError(f"best={metric!r:.40} must be the name of a metric, such as 'loss' or 'accuracy'")
    if not tested and metric != "loss":
        raise HandheldError(f"best={metric!r} needs a test set. Try: test=DATA, or best='loss' for the training loss")
    if metrics and metric != "loss" and metric not in metrics:
        raise HandheldError(f"best={metric!r} is no metric here. Try: one of loss, {', '.join(metrics)}")
    if mode is None and metric not in HIGHER:
        raise HandheldError(f"is a higher {metric} better, or a lower one? Try: mode='max' or mode='min'")
    higher = HIGHER[metric] if mode is None else mode == "max"
    return Goal(metric, higher, tested, patience, keep)


@dataclass(frozen=True)
class Kept:
    """The state after an epoch, and its number of accumulated batches."""

    epoch: int
    state: dict[str, np.ndarray]
    micro: int


class Best:
    """The best epoch so far, by a goal. Without a goal it does nothing."""

    def __init__(self, goal: Goal | None, trainer: Trainer) -> None:
        self.goal, self.trainer = goal, trainer
        self.kept: Kept | None = None
        #: Epochs up to this one do not count, because their state is lost.
        self._since = 0

    def after_epoch(self, history: History) -> None:
        """Note the last epoch of the history if it is the best one."""
        if self.goal is None:
            return
        self._find(history)
        last = history.epochs[-1].number
        if history.best_epoch == last and self.goal.keep:
            self.kept = Kept(last, self.trainer.state(), self.trainer.micro)

    def _find(self, history: History) -> None:
        assert self.goal is not None
        history.best_by, history.best_epoch, value = self.goal.name, 0, math.nan
        for row in history.epochs:
            if row.number > self._since and self.goal.better(now := self.goal.value(row), value):
                history.best_epoch, value = row.number, now

    def reason(self, history: History) -> str:
        """Why training should stop now, or ""."""
        if self.goal is None or self.goal.patience is None or not history.epochs:
            return ""
        waited = history.epochs[-1].number - max(history.best_epoch, self._since)
        if waited < self.goal.patience:
            return ""
        direction = "higher" if self.goal.higher else "lower"
        return f"no {direction} {self.goal.name} for {waited} epoch{'s' if waited > 1 else ''}: stopped"

    def resumed(self, history: History, kept: Kept | None) -> Iterator[str]:
        """Continue from a checkpoint. Says what of it cannot be used."""
        if self.goal is None:
            return
        self._find(history)
        if not self.goal.keep or not history.best_epoch:
            return
        if kept is not None and kept.epoch == history.best_epoch:
            self.kept = kept
            return
        self._since = history.epochs[-1].number
        yield (
            f"the best epoch by {self.goal.name} was {history.best_epoch}, but its state was not kept; "
            f"epochs after {self._since} are compared"
        )
        self._find(history)

    def restore(self, history: History) -> bool:
        """Put the state of the best epoch on the device, if it was kept."""
        if self.kept is None:
            return False
        self.trainer.load(self.kept.state)
        self.trainer.micro = self.kept.micro
        history.kept_epoch = self.kept.epoch
        return True

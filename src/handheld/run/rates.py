"""The learning rates of a training loop, from a function of the epochs done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from handheld.errors import HandheldError

if TYPE_CHECKING:
    from handheld.run.trainer import Trainer

#: From the number of epochs done (with a fraction) to the learning rate, or to one rate per group.
Schedule = Callable[[float], "float | Sequence[float]"]


class Rates:
    """The rate of each parameter group (`values`), and where the next ones come from."""

    def __init__(self, trainer: Trainer, schedule: Schedule | None, batches: int | None) -> None:
        self.trainer, self.schedule, self.batches = trainer, schedule, batches
        self.values: list[float] = trainer.rates("train")

    @property
    def first(self) -> float:
        return self.values[0] if self.values else float("nan")

    def before_step(self, epoch: int, position: int) -> list[float] | None:
        """Set the rates of the step at this position. Returns them, or None if they did not change."""
        if self.schedule is None:
            return None
        rates = self._scheduled(self.schedule, epoch, position)
        if len(rates) != len(self.values):
            raise HandheldError(
                f"the schedule returned {len(rates)} rates; the optimizer has {len(self.values)} groups"
            )
        if rates == self.values:
            return None
        for group, rate in enumerate(rates):
            self.trainer.set_rate(rate, group, "train")
        self.values = rates
        return rates

    def _scheduled(self, schedule: Schedule, epoch: int, position: int) -> list[float]:
        """The schedule's rates for the batch at this position."""
        rates = schedule(epoch + (position / self.batches if self.batches else 0.0))
        if isinstance(rates, (int, float)):
            return [float(rates)] * len(self.values)
        return [float(rate) for rate in rates]

    def resumed(self, epoch: int, position: int, steps: int) -> Iterator[str]:
        """After a checkpoint was loaded: take its rates, and say what differs from the rates of this run."""
        before, self.values = self.values, self.trainer.rates("train")
        if self.schedule is None:
            if before != self.values:
                held, own = (", ".join(f"{r:.3g}" for r in rates) for rates in (self.values, before))
                yield f"the checkpoint's rate {held} is used, not the step's {own}"
        elif steps:
            back = (epoch, position - 1) if position else (epoch - 1, (self.batches or 1) - 1)
            now = np.asarray(self._scheduled(self.schedule, *back), np.float32).tolist()
            if now != self.values:
                yield f"the rate of its last step was {self.first:.3g}; now it would be {now[0]:.3g}"

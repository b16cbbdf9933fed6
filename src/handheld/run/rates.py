"""The learning rates of a training loop: from a function of the epochs done, from a scheduler of PyTorch, or as
the optimizer of this process has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from handheld.errors import HandheldError
from handheld.live_optimizer import LiveOptimizer
from handheld.run.checkpoint import Checkpoint
from handheld.run.fit_arguments import batches_per_update
from handheld.run.history import Epoch
from handheld.run.schedulers import Stepper, TorchScheduler
from handheld.run.stopping import Goal

if TYPE_CHECKING:
    from handheld.run.trainer import Trainer

#: From the number of epochs done (with a fraction) to the learning rate, or to one rate per group.
Schedule = Callable[[float], "float | Sequence[float]"]


class Rates:
    """The rate of each parameter group (`values`), and where the next ones come from."""

    def __init__(
        self,
        trainer: Trainer,
        rate: Schedule | TorchScheduler | None,
        every: str,
        batches: int | None,
        goal: Goal | None,
    ) -> None:
        self.trainer, self.batches = trainer, batches
        self.slots = trainer.rate_slots("train")
        self.owner = self.slots[0].rpartition(".lr.")[0]
        self.stepper = Stepper(rate, every, goal) if isinstance(rate, TorchScheduler) else None
        self.schedule = rate if self.stepper is None and callable(rate) else None
        if self.stepper is not None:
            self._attach(self.stepper)
        self.values: list[float] = trainer.rates("train") if self.stepper is None else self.stepper.rates

    def _attach(self, stepper: Stepper) -> None:
        """Make the trainer follow the optimizer of the scheduler."""
        live, optimizer = self.trainer.plan.step.optimizers.get(self.owner), stepper.scheduler.optimizer
        if live is None or live.optimizer is None:  # A step file: any optimizer can hold its rates.
            slots = self.trainer.plan.step.slots
            moving = next((name for name in ("momentum", "beta1") if f"{self.owner}.{name}.0" in slots), "")
            live = LiveOptimizer(optimizer, self.owner, moving)
            if len(optimizer.param_groups) != len(self.slots):
                raise HandheldError(
                    f"the optimizer of the scheduler has {len(optimizer.param_groups)} parameter groups, and that of "
                    f"the step has {len(self.slots)}"
                )
            self.trainer.plan.step.optimizers[self.owner] = live
        elif live.optimizer is not optimizer:
            raise HandheldError(
                f"{stepper.kind} belongs to another optimizer than the one that the step was captured with. "
                "Try: make the scheduler from the captured optimizer"
            )
        live.forget_rates()  # So that the rates of the scheduler replace those of `set_rate`.

    @property
    def first(self) -> float:
        return self.values[0] if self.values else float("nan")

    def before_step(self, epoch: int, position: int) -> dict[str, float]:
        """Set the rates of the step at this position. Returns the slots that changed."""
        changed = self.trainer.follow(self.owner)
        for group, slot in enumerate(self.slots):
            self.values[group] = changed.get(slot, self.values[group])
        if self.schedule is None:
            return changed
        rates = self._scheduled(self.schedule, epoch, position)
        if len(rates) != len(self.values):
            raise HandheldError(
                f"the schedule returned {len(rates)} rates; the optimizer has {len(self.values)} groups"
            )
        if rates != self.values:
            for group, rate in enumerate(rates):
                self.trainer.set_rate(rate, group, self.owner)
            self.values = rates
            changed |= dict(zip(self.slots, rates, strict=True))
        return changed

    def after_step(self) -> None:
        if self.stepper is not None and not self.trainer.micro:
            self.stepper.after_update()

    def after_epoch(self, row: Epoch) -> None:
        if self.stepper is not None:
            self.stepper.after_epoch(row)

    def check_length(self, epochs: int, position: int) -> None:
        """Check that a scheduler of fixed length lasts for the epochs to come, the first from this position."""
        if self.stepper is not None:
            every = batches_per_update(self.trainer)
            left = None if self.batches is None else epochs * self.batches - position + self.trainer.micro
            self.stepper.check_length(None if left is None else left // every, epochs)

    def _scheduled(self, schedule: Schedule, epoch: int, position: int) -> list[float]:
        """The schedule's rates for the batch at this position."""
        rates = schedule(epoch + (position / self.batches if self.batches else 0.0))
        if isinstance(rates, (int, float)):
            return [float(rates)] * len(self.values)
        return [float(rate) for rate in rates]

    # ── checkpoints ───────────────────────────────────────────────────────────────────────────

    def saved(self) -> dict[str, object] | None:
        return None if self.stepper is None else self.stepper.saved()

    def resumed(self, saved: Checkpoint) -> Iterator[str]:
        """After a checkpoint was loaded: take its rates, and say what differs from the rates of this run."""
        before, self.values = self.values, [float(self.trainer.session.read_slot(slot)) for slot in self.slots]
        if self.stepper is not None:
            yield from self.stepper.resume(saved.scheduler)
            self.trainer.plan.step.optimizers[self.owner].forget_rates()
        elif self.schedule is None:
            if before != self.values:
                held, own = (", ".join(f"{r:.3g}" for r in rates) for rates in (self.values, before))
                yield f"the checkpoint's rate {held} is used, not the step's {own}"
        elif saved.history.steps:
            epoch, position = saved.epoch, saved.position
            back = (epoch, position - 1) if position else (epoch - 1, (self.batches or 1) - 1)
            now = np.asarray(self._scheduled(self.schedule, *back), np.float32).tolist()
            if now != self.values:
                yield f"the rate of its last step was {self.first:.3g}; now it would be {now[0]:.3g}"
        if self.stepper is None and isinstance(saved.scheduler, dict):
            yield f"its scheduler {saved.scheduler.get('kind')!s:.40} is not used"


def check_rate(rate: object, every: object) -> None:
    """Check the arguments `rate` and `rate_every` of `fit`."""
    if rate is not None and not callable(rate) and not isinstance(rate, TorchScheduler):
        raise HandheldError(
            f"rate={rate!r:.40} must be a function of the epochs done, such as "
            "lambda epoch: 0.1 * 0.9**epoch, or a scheduler of torch.optim.lr_scheduler. "
            "Try: trainer.set_rate(rate) for one fixed rate"
        )
    if every not in ("epoch", "step"):
        raise HandheldError(f"rate_every={every!r:.40} must be 'epoch' or 'step'")
    if every == "step" and not isinstance(rate, TorchScheduler):
        raise HandheldError(
            "rate_every='step' says when a scheduler steps, and rate is none. A function is called before every step"
        )

"""The losses of a training loop: read late, summed per epoch, and checked for NaN and infinity."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from handheld.errors import NonFiniteGradient, NonFiniteLoss
from handheld.run.nonfinite import Replay

if TYPE_CHECKING:
    from handheld.run.trainer import Loss, Trainer

#: Number of steps whose loss is not read yet. The session allows the host to be this far ahead.
LAG = 2
#: Half precision: how many losses in a row may be NaN. Such a step changes no parameter.
PATIENCE = 16
#: Half precision: after this many steps, check that steps still change the parameters.
LOOK = 64


@dataclass(frozen=True)
class StepLoss:
    """The loss of a step, once it was read, and the learning rate of that step."""

    step: int
    epoch: int
    loss: float
    rate: float


class Losses:
    """The losses of the steps so far. `total` and `count` are those of the current epoch; a smaller batch counts as
    part of a step."""

    def __init__(
        self,
        trainer: Trainer,
        stop_on_nan: bool,
        replay: Replay | None,
        tell: Callable[[StepLoss], None] = lambda loss: None,
    ) -> None:
        #: Is called with every loss that is read.
        self.tell = tell
        self.trainer, self.stop_on_nan, self.replay = trainer, stop_on_nan, replay
        self.total, self.count = 0.0, 0.0
        #: The last loss that was read, and its step.
        self.latest: tuple[float | None, int] = (None, 0)
        #: Where the last checkpoint is from, for error messages.
        self.saved = ""
        self.patience = 0 if trainer.plan.options.get("precision", "float32") == "float32" else PATIENCE
        self._bad = 0
        self._pending: deque[tuple[str, int, Loss, float, int, float]] = deque()

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    def begin_epoch(self) -> None:
        self.total, self.count = 0.0, 0.0

    def add(
        self, loss: Loss, step: int, epoch: int, position: int, weight: float = 1.0, rate: float = math.nan
    ) -> None:
        """Add the loss of a step, and read those of earlier steps."""
        self._pending.append(
            (f"at step {step} (epoch {epoch + 1}, batch {position})", step, loss, weight, epoch + 1, rate)
        )
        self.read(LAG if self.replay is None else 0)

    def read(self, keep: int = 0) -> None:
        """Read losses until only `keep` are still unread. Raises NonFiniteLoss."""
        while len(self._pending) > keep:
            place, step, loss, weight, epoch, rate = self._pending.popleft()
            value = float(loss)
            self.latest = (value, step)
            self.tell(StepLoss(step, epoch, value, rate))
            self._bad = 0 if math.isfinite(value) else self._bad + 1
            if not 0 < self._bad <= self.patience:
                self.total, self.count = self.total + value * weight, self.count + weight
            if self.stop_on_nan and self._bad > self.patience:
                self._pending.clear()
                raise NonFiniteLoss(self._explain(value, step, place))

    def end_epoch(self, place: str) -> None:
        """Read all losses and check them. `place` is where the epoch ends."""
        self.read()
        self.check_scale(place)
        if self._bad and not self.count and self.stop_on_nan:
            value, step = self.latest
            raise NonFiniteLoss(self._explain(value or math.nan, step, f"at {place}"))

    def check_scale(self, place: str) -> None:
        """Half precision: stop a model that makes NaN itself, because every step would be skipped."""
        scale = self.trainer.loss_scale() if self.patience and self.stop_on_nan else None
        if scale is not None and scale.useless:
            raise NonFiniteGradient(
                f"gradients are NaN or infinite even with a loss scale of {scale.scale:.1g}, at "
                f"{place}; {scale.skipped_steps:,} steps were skipped. The scale is not the cause: the model's "
                "backward pass makes them. Try: --precision float32 --find-nan "
                "(find_nan=True) to see which op does"
            )

    def _explain(self, value: float, step: int, place: str) -> str:
        text = f"the loss became {value} {place}"
        if self.patience:
            text += ", and was not finite in the steps before: activations are too large for half precision"
        if self.replay is None:
            bad = "data without NaN" if step <= 1 else "a lower learning rate"
            text += f". Try: {bad}, or find_nan=True (--find-nan) to see which op caused it"
        else:
            cause = self.replay.find()
            text += f": {cause.text}"
            if cause.steps_back:
                text += f", in step {step - cause.steps_back}"
        return f"{text}. The last checkpoint is from {self.saved}" if self.saved else text

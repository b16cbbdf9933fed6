"""The training loop: epochs, evaluation, checkpoints, and every way a run can end.

The device is never waited for without need: the loss that progress shows is that of a step or two
ago, whose result has long arrived. A checkpoint holds everything the next step depends on, so a
run that is resumed gives the same bits as one that was never stopped.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from handheld import package
from handheld.errors import CheckpointError, HandheldError, NonFiniteGradient, NonFiniteLoss
from handheld.run.batch import batch_sizes
from handheld.run.batches import Batch, Data
from handheld.run.checkpoint import Checkpoint, data_facts, read_checkpoint
from handheld.run.evaluate import evaluate
from handheld.run.fit_arguments import as_data, check_callbacks, writable
from handheld.run.guards import Guards
from handheld.run.history import Epoch, History
from handheld.run.interrupt import Interrupt, Interrupted
from handheld.run.metrics import Metric
from handheld.run.nonfinite import Replay

if TYPE_CHECKING:
    from handheld.run.trainer import Loss, Trainer

#: steps whose loss is not read yet; the session itself lets the host be as far ahead
LAG = 2
#: in halves: losses in a row that may be no number. Such a step changes no parameter.
PATIENCE = 16
#: and steps after which it is seen whether steps still change something
LOOK = 64

#: epochs done, with the fraction of the present one -> the rate, or one for each group
Schedule = Callable[[float], "float | Sequence[float]"]


@dataclass(frozen=True)
class Progress:
    """What a callback gets after each step. `loss` is that of `loss_step`, a step or two ago."""

    epoch: int
    epochs: int
    #: batches of this epoch done, and how many it has if that is known
    position: int
    batches: int | None
    step: int
    loss: float | None
    loss_step: int
    rate: float
    samples: int


def fit(
    trainer: Trainer,
    data: Any,
    *,
    epochs: int,
    test: Any = None,
    metrics: Mapping[str, Metric] | None = None,
    callbacks: Sequence[Any] = (),
    checkpoint: str | Path | None = None,
    every: int | None = None,
    resume: bool = False,
    battery_floor: float | None = None,
    thermal_limit: float | None = None,
    stop_on_nan: bool = True,
    find_nan: bool = False,
    rate: Schedule | None = None,
) -> History:
    """Trains for `epochs` and evaluates on `test` after each.

    `data` and `test` are `Data` (arrays, images, text) or any iterable of batches. A callback has
    any of `on_step(Progress)`, `on_epoch(Epoch)`, `on_message(str)`; if one returns False training
    ends. `checkpoint` is written after every epoch and every `every` steps, and on Ctrl-C or
    SIGTERM, which end in `Interrupted`; `resume` goes on from it to the same bits. Then other
    data is an error; other epochs, rates or another device are told by a message. Below
    `battery_floor` percent training ends, above `thermal_limit` °C it waits. `find_nan` names the
    op that made the first NaN, at the price of reading the state now and then and the loss of every
    step; the trainer is then back in the state before the step at fault.
    """
    if type(epochs) is not int or epochs < 0:
        raise HandheldError(f"epochs={epochs!r:.40} should be a whole number, 0 or more")
    if every is not None and (type(every) is not int or every < 1):
        raise HandheldError(f"every={every!r:.40} should be a whole number of steps from 1 on")
    check_callbacks(callbacks)
    if metrics is not None and not (isinstance(metrics, Mapping) and all(map(callable, metrics.values()))):
        raise HandheldError("metrics should be a dictionary of functions f(outputs, batch) by name")
    if rate is not None and not callable(rate):
        raise HandheldError(
            f"rate={rate!r:.40} should be a function of the epochs done, such as "
            "lambda epoch: 0.1 * 0.9**epoch. For one rate: trainer.set_rate(rate)"
        )
    if resume and checkpoint is None:
        raise CheckpointError("resume needs the checkpoint to resume from: checkpoint=PATH")
    graphs = trainer.plan.graphs
    if "train" not in graphs and not batch_sizes(graphs, "train"):
        raise HandheldError(
            f"fit runs the graph 'train', and this plan has {', '.join(graphs)}. "
            "Several updates are run by name: trainer.run(name, *batch)"
        )
    guards = Guards(battery_floor, thermal_limit)
    loop = _Loop(trainer, as_data(data, epochs), epochs, callbacks, rate)
    loop.test = None if test is None else as_data(test, epochs)
    loop.metrics, loop.guards, loop.every = metrics, guards, every
    loop.stop_on_nan = stop_on_nan or find_nan
    loop.replay = Replay(trainer) if find_nan else None
    loop.path = None if checkpoint is None else writable(Path(checkpoint))
    if resume:
        loop.resume()
    with loop.interrupt:
        return loop.run()


class _Stop(Exception):
    """The run ends here, in good order."""


class _Loop:
    """One call of `fit`: where it is, and what it has seen of the present epoch."""

    test: Data | None = None
    metrics: Mapping[str, Metric] | None = None
    guards: Guards
    every: int | None = None
    stop_on_nan = True
    replay: Replay | None = None
    path: Path | None = None

    def __init__(
        self, trainer: Trainer, data: Data, epochs: int, callbacks: Sequence[Any], rate: Schedule | None
    ) -> None:
        self.trainer, self.data, self.epochs = trainer, data, epochs
        self.callbacks, self.schedule = callbacks, rate
        self.interrupt = Interrupt()
        self.history = History()
        self.epoch = self.position = 0
        count = getattr(data, "__len__", None)
        self.batches: int | None = None if count is None else int(count())
        self.rates: list[float] = trainer.rates("train")
        self.pending: deque[tuple[int, int, Loss]] = deque()
        self.latest: tuple[float | None, int] = (None, 0)
        self.saved = ""
        self.bad = 0
        self.patience = PATIENCE if trainer.plan.options.get("precision") == "half" else 0
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        self.loss_sum, self.losses, self.samples, self.seconds = 0.0, 0, 0, 0.0
        self.started = time.perf_counter()

    # ── the way through ───────────────────────────────────────────────────────────────────────

    def run(self) -> History:
        try:
            while self.epoch < self.epochs:
                for batch in self.data.epoch(self.epoch, self.position):
                    self._step(batch)
                self._end_epoch()
        except _Stop as stop:
            self._end_early(str(stop))
        except KeyboardInterrupt:  # the second one
            self.history.stopped = self._where(f"{self.interrupt.word} twice: stopped at once")
            kept = f". The last checkpoint is of {self.saved}" if self.saved else ""
            raise Interrupted(self.history.stopped + kept, self.history, self.interrupt.signal) from None
        return self.history

    def _step(self, batch: Batch) -> None:
        changed = self._set_rates()
        if self.replay is not None:
            self.replay.before_step(batch, changed)
        loss = self.trainer.step(*batch)
        self.position += 1
        self.history.steps += 1
        self.samples += self.data.batch_size
        self.pending.append((self.history.steps, self.position, loss))
        self._drain(LAG if self.replay is None else 0)
        self._tell(
            "on_step",
            Progress(
                self.epoch + 1,
                self.epochs,
                self.position,
                self.batches,
                self.history.steps,
                *self.latest,
                self.rates[0] if self.rates else math.nan,
                self.data.batch_size,
            ),
        )
        if self.history.steps % LOOK == 0:
            self._look()
        if self.every is not None and self.history.steps % self.every == 0:
            self._save()
        self._check()

    def _check(self) -> None:
        """Between two steps: whether to go on, to wait, or to stop."""
        before = self.guards.paused_seconds
        reason = self.guards.check(self.interrupt, lambda text: self._tell("on_message", text))
        paused = self.guards.paused_seconds - before
        self.started += paused  # waiting is not training
        self.history.paused_seconds += paused
        if self.interrupt() or reason:
            raise _Stop(reason or self.interrupt.word)

    def _end_epoch(self) -> None:
        self._drain(0)
        self._look()
        if self.bad and not self.losses and self.stop_on_nan:
            value, step = self.latest
            raise NonFiniteLoss(self._explain(value or math.nan, step, self.position))
        seconds = self.seconds + time.perf_counter() - self.started
        row = Epoch(
            self.epoch + 1,
            self.loss_sum / max(self.losses, 1),
            self.rates[0] if self.rates else math.nan,
            self.samples,
            seconds,
        )
        if self.test is not None:
            row.test = evaluate(self.trainer, self.test, self.metrics, self._check)
        self.history.epochs.append(row)
        self.epoch, self.position = self.epoch + 1, 0
        self._begin_epoch()
        self._save()
        self._tell("on_epoch", row)
        if self.epoch < self.epochs:
            self._check()

    def _end_early(self, reason: str) -> None:
        self._drain(0)
        self._save()
        self.history.stopped = self._where(reason)
        if reason == self.interrupt.word:
            kept = (
                f"{self.path} holds the state: resume=True goes on from it"
                if self.path is not None
                else "The trainer holds the state"
            )
            raise Interrupted(f"{self.history.stopped}. {kept}", self.history, self.interrupt.signal)

    def _where(self, reason: str) -> str:
        return f"{reason} in epoch {self.epoch + 1} of {self.epochs}, after step {self.history.steps}"

    # ── losses and rates ──────────────────────────────────────────────────────────────────────

    def _drain(self, keep: int) -> None:
        """Reads losses until `keep` are still on their way."""
        while len(self.pending) > keep:
            step, position, loss = self.pending.popleft()
            value = float(loss)
            self.latest = (value, step)
            self.bad = 0 if math.isfinite(value) else self.bad + 1
            if not 0 < self.bad <= self.patience:
                self.loss_sum, self.losses = self.loss_sum + value, self.losses + 1
            if self.stop_on_nan and self.bad > self.patience:
                self.pending.clear()
                raise NonFiniteLoss(self._explain(value, step, position))

    def _look(self) -> None:
        """In halves: a model that makes NaN itself would skip every step, for ever."""
        scale = self.trainer.loss_scale() if self.patience and self.stop_on_nan else None
        if scale is not None and scale.useless:
            raise NonFiniteGradient(
                f"gradients are NaN or infinite even with the loss scaled by {scale.scale:.1g}, at "
                f"step {self.history.steps} (epoch {self.epoch + 1}); "
                f"{scale.skipped_steps:,} steps were skipped. It is not the scale: the model's "
                "backward pass makes them. Try: --precision float32 --find-nan "
                "(find_nan=True) to see which op does"
            )

    def _explain(self, value: float, step: int, position: int) -> str:
        text = f"the loss became {value} at step {step} (epoch {self.epoch + 1}, batch {position})"
        if self.patience:
            text += ", and was no number in the steps before: activations that halves cannot hold"
        if self.replay is None:
            text += ". Try: a lower rate, or find_nan=True (--find-nan) to see which op made it"
        else:
            cause = self.replay.find()
            text += f": {cause.text}"
            if cause.steps_back:
                text += f", in step {step - cause.steps_back}"
        return f"{text}. The last checkpoint is of {self.saved}" if self.saved else text

    def _set_rates(self) -> list[float] | None:
        """The schedule's rates for this step, if they differ from the last one's."""
        if self.schedule is None:
            return None
        rates = self._scheduled(self.schedule, self.epoch, self.position)
        if len(rates) != len(self.rates):
            raise HandheldError(f"the schedule gave {len(rates)} rates; the optimizer has {len(self.rates)} groups")
        if rates == self.rates:
            return None
        for group, rate in enumerate(rates):
            self.trainer.set_rate(rate, group, "train")
        self.rates = rates
        return rates

    def _scheduled(self, schedule: Schedule, epoch: int, position: int) -> list[float]:
        """The schedule's rates for the batch at this position."""
        found = schedule(epoch + (position / self.batches if self.batches else 0.0))
        return [float(found)] * len(self.rates) if isinstance(found, (int, float)) else [float(rate) for rate in found]

    def _tell(self, method: str, what: Any) -> None:
        for callback in self.callbacks:
            call = getattr(callback, method, None)
            if call is not None and call(what) is False:
                raise _Stop("stopped by a callback")

    # ── checkpoints ───────────────────────────────────────────────────────────────────────────

    def _save(self) -> None:
        if self.path is None:
            return
        self._drain(0)  # a state that made a NaN never replaces a good one
        seconds = self.seconds + time.perf_counter() - self.started
        meta = {
            "epoch": self.epoch,
            "position": self.position,
            "micro": self.trainer.micro,
            "epochs": self.epochs,
            "device": self.trainer.plan.caps.name,
            "data": data_facts(self.data),
            "history": self.history.to_json(),
            "partial": [self.loss_sum, self.losses, self.samples, seconds],
        }
        try:
            package.save_state(self.path, self.trainer.state(), meta)
        except CheckpointError as error:
            raise CheckpointError(
                f"{error}. Training stopped after step {self.history.steps}; the "
                "trainer still holds the state: trainer.state()"
            ) from error
        self.saved = f"epoch {self.epoch + 1}, batch {self.position}: {self.path}"

    def resume(self) -> None:
        """Goes back to where the checkpoint was written, or CheckpointError."""
        assert self.path is not None
        found = read_checkpoint(self.path, self.data, self.trainer.plan.step.slots)
        before = self.trainer.rates("train")
        self.trainer.load(found.state)
        self.epoch, self.position, self.trainer.micro = found.epoch, found.position, found.micro
        self.history, self.rates = found.history, self.trainer.rates("train")
        self.loss_sum, self.losses, self.samples, self.seconds = found.partial
        self.saved = f"epoch {found.epoch + 1}, batch {found.position}: {self.path}"
        changes = list(self._changes(found, before))
        if changes:
            self._tell("on_message", f"not all is as it was for {self.path}: {'; '.join(changes)}")

    def _changes(self, found: Checkpoint, before: list[float]) -> Iterator[str]:
        """What is not as it was when the checkpoint was written, and can be meant."""
        if found.epochs not in (0, self.epochs):
            yield f"epochs were {found.epochs} and are {self.epochs}"
        device = self.trainer.plan.caps.name
        if found.device not in ("", device):
            yield f"the device was {found.device} and is {device}, so that last bits differ"
        if self.schedule is None:
            if before != self.rates:
                held, own = (", ".join(f"{r:.3g}" for r in found) for found in (self.rates, before))
                yield f"its rate {held} is used, not the step's {own}"
        elif self.history.steps:
            back = (found.epoch, found.position - 1) if found.position else (found.epoch - 1, (self.batches or 1) - 1)
            now = np.asarray(self._scheduled(self.schedule, *back), np.float32).tolist()
            if now != self.rates:
                yield (f"the rate of its last step was {self.rates[0]:.3g}, and would be {now[0]:.3g} now")

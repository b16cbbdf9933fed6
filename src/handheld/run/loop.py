"""The training loop: epochs, evaluation, checkpoints, and every way in which a run can end.

The loop does not wait for the device: the loss in `Progress` is that of one or two steps before, whose
result has already arrived. A checkpoint holds everything that the next step depends on, so a resumed
run gives the same bits as a run that was never stopped.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from handheld.data.batches import Batch, Data, rows_in
from handheld.errors import BatchError, CheckpointError, DeviceLost, NonFiniteGradient, NonFiniteLoss
from handheld.package import checkpoint_origin
from handheld.run.checkpoint import Checkpoint, data_facts, read_checkpoint, write_checkpoint
from handheld.run.evaluate import evaluate
from handheld.run.fit_arguments import as_data, batches_per_update, check_calls, check_counts, check_graphs, writable
from handheld.run.history import Epoch, History
from handheld.run.interrupt import Interrupt, Interrupted
from handheld.run.losses import LOOK, Losses, StepLoss
from handheld.run.metrics import Metric
from handheld.run.nonfinite import Replay
from handheld.run.rates import Rates, Schedule, check_rate
from handheld.run.schedulers import TorchScheduler
from handheld.run.sizes import add_sizes, largest, sizes_for
from handheld.run.stopping import Best, goal_of

if TYPE_CHECKING:
    from handheld.run.guards import Guards
    from handheld.run.trainer import Trainer


@dataclass(frozen=True)
class Progress:
    """What a callback gets after each step. `loss` belongs to `loss_step`, one or two steps before."""

    epoch: int
    epochs: int
    #: Batches of this epoch that are done, and how many it has if that is known.
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
    callbacks: Sequence[object] = (),
    checkpoint: str | Path | None = None,
    every: int | None = None,
    resume: bool = False,
    battery_floor: float | None = None,
    thermal_limit: float | None = None,
    stop_on_nan: bool = True,
    find_nan: bool = False,
    rate: Schedule | TorchScheduler | None = None,
    rate_every: str = "epoch",
    patience: int | None = None,
    best: str | None = None,
    mode: str | None = None,
    keep_best: bool = False,
) -> History:
    """Train for `epochs` and evaluate on `test` after each epoch.

    `data` and `test` are `Data` (arrays, images, text) or any iterable of batches. A callback has any of
    `on_step(Progress)`, `on_loss(StepLoss)`, `on_epoch(Epoch)` and `on_message(str)`; False from `on_step`
    or `on_epoch` ends the training. `checkpoint` is written after every epoch, every `every` steps, and on
    Ctrl-C or SIGTERM, which raise `Interrupted`. `resume` continues from it with the same bits; other data
    is an error, and other epochs or rates, or another device, only cause a message.

    `rate` is a function of the epochs done, or a scheduler of `torch.optim.lr_scheduler`, which steps
    after every epoch, or after every update with `rate_every="step"`. `ReduceLROnPlateau` gets the test
    loss, or the training loss without a test set.

    Training ends if `patience` epochs in a row are not better than the best one so far. `best` names the
    metric that decides (default: the loss), `mode` ("max" or "min") what is better if it is your own
    metric. With `keep_best` the trainer is left in the state of the best epoch.

    Training ends below `battery_floor` percent and pauses above `thermal_limit` °C, also those of a target.
    `find_nan` names the op that made the first NaN. It costs time: the state is read now and then, and the
    loss of every step. The trainer is then back in the state before the step at fault.
    """
    check_counts(epochs, every)
    check_calls(callbacks, metrics)
    check_rate(rate, rate_every)
    check_graphs(trainer, find_nan)
    if resume and checkpoint is None:
        raise CheckpointError("resume needs a checkpoint to continue from. Try: checkpoint=PATH")
    goal = goal_of(best, mode, patience, keep_best, test is not None, metrics or {})
    loop = _Loop(trainer, as_data(data, epochs), epochs, callbacks)
    loop.guards = _guards(battery_floor, thermal_limit, trainer.plan.device)
    loop.losses = Losses(trainer, stop_on_nan or find_nan, Replay(trainer) if find_nan else None, loop.hear)
    loop.rates, loop.best = Rates(trainer, rate, rate_every, loop.batches, goal), Best(goal, trainer)
    loop.test = None if test is None else as_data(test, epochs)
    loop.metrics, loop.every = metrics, every
    loop.path = None if checkpoint is None else writable(Path(checkpoint))
    if resume:
        loop.resume()
    with loop.interrupt:
        return loop.run()


class _Stop(Exception):
    """Ends the run cleanly."""


def _guards(battery_floor: float | None, thermal_limit: float | None, device: str) -> Guards:
    from handheld.run.guards import Guards  # Its modules about sensors and targets are slow to import.

    return Guards(battery_floor, thermal_limit, device)


class _Loop:
    """One call of `fit`: its position, and the sums of the current epoch."""

    test: Data | None = None
    metrics: Mapping[str, Metric] | None = None
    guards: Guards
    losses: Losses
    rates: Rates
    best: Best
    every: int | None = None
    path: Path | None = None

    def __init__(self, trainer: Trainer, data: Data, epochs: int, callbacks: Sequence[object]) -> None:
        self.trainer, self.data, self.epochs, self.callbacks = trainer, data, epochs, callbacks
        self.interrupt = Interrupt()
        self.history = History()
        self.epoch = self.position = 0
        self.size = largest(trainer, "train")
        count = getattr(data, "__len__", None)
        self.batches: int | None = None if count is None else int(count())
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        self.samples, self.seconds, self.dropped = 0, 0.0, 0
        self.started = time.perf_counter()

    # ── epochs and steps ──────────────────────────────────────────────────────────────────────

    def run(self) -> History:
        self.rates.check_length(self.epochs - self.epoch, self.position)
        add_sizes(self.trainer, sizes_for(self.trainer, self.data, self.test))  # Not in the middle of the training.
        try:
            self._check_patience()
            while self.epoch < self.epochs:
                for batch in self.data.epoch(self.epoch, self.position):
                    if not self._drop(batch):
                        self._step(batch)
                self._end_epoch()
            self.best.restore(self.history)
        except _Stop as stop:
            self._end_early(str(stop))
        except (NonFiniteLoss, NonFiniteGradient) as error:
            if self.losses.replay is not None or not self.best.restore(self.history):
                raise
            raise type(error)(f"{error}. The trainer holds the state of epoch {self.history.kept_epoch}") from error
        except DeviceLost as error:
            if not self.losses.saved:
                raise
            how = "It is intact; resume=True (--resume) goes on from it"
            raise error.add(f"The last checkpoint is from {self.losses.saved}. {how}") from error
        except KeyboardInterrupt:  # This is the second Ctrl-C.
            self.history.stopped = self._where(f"{self.interrupt.word} twice: stopped at once")
            kept = f". The last checkpoint is from {self.losses.saved}" if self.losses.saved else ""
            raise Interrupted(self.history.stopped + kept, self.history, self.interrupt.signal) from None
        return self.history

    def _drop(self, batch: Batch) -> bool:
        """Whether the batch is left out, because it is too small for the graph and no other one can be had."""
        size = rows_in(batch)
        problem = self.trainer.add_sizes("train", [size]) if size < self.size else ""
        if problem:
            if not self.history.dropped and not self.dropped:
                samples = "1 sample" if size == 1 else f"{size} samples"
                self._say(f"a batch of {samples} is left out; the step trains on {self.size}. {problem}")
            self.dropped += size
            self.position += 1
        return bool(problem)

    def _step(self, batch: Batch) -> None:
        changed = self.rates.before_step(self.epoch, self.position)
        if self.losses.replay is not None:
            self.losses.replay.before_step(batch, changed)
        loss = self.trainer.step(*batch)
        self.rates.after_step()
        self.position += 1
        self.history.steps += 1
        size = rows_in(batch)
        self.samples += size
        self.losses.add(
            loss, self.history.steps, self.epoch, self.position, size / (self.size or size), self.rates.first
        )
        self._tell(
            "on_step",
            Progress(
                self.epoch + 1,
                self.epochs,
                self.position,
                self.batches,
                self.history.steps,
                *self.losses.latest,
                self.rates.first,
                size,
            ),
        )
        if self.history.steps % LOOK == 0:
            self.losses.check_scale(self._place())
        if self.every is not None and self.history.steps % self.every == 0:
            self._save()
        self._check()

    def _check(self) -> None:
        """Between two steps, decide whether to continue, to wait or to stop."""
        before = self.guards.paused_seconds
        reason = self.guards.check(self.interrupt, lambda text: self._tell("on_message", text))
        paused = self.guards.paused_seconds - before
        self.started += paused  # Waiting does not count as training time.
        self.history.paused_seconds += paused
        if self.interrupt() or reason:
            raise _Stop(reason or self.interrupt.word)

    def _end_epoch(self) -> None:
        self.losses.end_epoch(self._place())
        seconds = self.seconds + time.perf_counter() - self.started
        row = Epoch(self.epoch + 1, self.losses.mean, self.rates.first, self.samples, seconds)
        row.dropped = self.dropped + self.data.dropped
        if self.dropped and not self.samples:
            raise BatchError(
                f"every batch of epoch {self.epoch + 1} is too small for the step, which trains on {self.size} "
                f"samples. Try: batches of {self.size}"
            )
        if self.test is not None:
            tested = evaluate(self.trainer, self.test, self.metrics, self._check)
            row.test, row.note = dict(tested), tested.note
            if row.note and all(row.note != e.note for e in self.history.epochs):
                self._say(row.note)
        self.history.epochs.append(row)
        self.rates.after_epoch(row)
        self.best.after_epoch(self.history)
        self.epoch, self.position = self.epoch + 1, 0
        self.losses.begin_epoch()
        self._begin_epoch()
        self._save()
        self._tell("on_epoch", row)
        self._check_patience()
        if self.epoch < self.epochs:
            self._check()

    def _check_patience(self) -> None:
        reason = self.best.reason(self.history)
        if reason and self.epoch < self.epochs:
            self.history.early = True
            raise _Stop(reason)

    def _end_early(self, reason: str) -> None:
        self.losses.read()
        self._save()
        self.history.stopped = self._where(reason)
        kept = self.best.restore(self.history)
        if reason == self.interrupt.word:
            state = f"the state of epoch {self.history.kept_epoch}, the best" if kept else "the state"
            held = (
                f"{self.path} holds the state; resume=True continues from it"
                if self.path is not None
                else f"The trainer holds {state}"
            )
            raise Interrupted(f"{self.history.stopped}. {held}", self.history, self.interrupt.signal)

    def _place(self) -> str:
        return f"step {self.history.steps} (epoch {self.epoch + 1}, batch {self.position})"

    def _where(self, reason: str) -> str:
        if not self.position and self.epoch:
            return f"{reason} after epoch {self.epoch} of {self.epochs} (step {self.history.steps})"
        return f"{reason} in epoch {self.epoch + 1} of {self.epochs}, after step {self.history.steps}"

    # ── messages ──────────────────────────────────────────────────────────────────────────────

    def _tell(self, method: str, what: object) -> None:
        for callback in self.callbacks:
            call = getattr(callback, method, None)
            if call is not None and call(what) is False:
                raise _Stop("stopped by a callback")

    def hear(self, loss: StepLoss) -> None:
        """Hand on a loss that was read. This cannot end the training: losses are also read while it ends."""
        for callback in self.callbacks:
            if hasattr(callback, "on_loss"):
                callback.on_loss(loss)

    def _say(self, text: str) -> None:
        """A message that the user must see, also if no callback shows messages."""
        if not any(hasattr(callback, "on_message") for callback in self.callbacks):
            warnings.warn(text, stacklevel=2)
        self._tell("on_message", text)

    # ── checkpoints ───────────────────────────────────────────────────────────────────────────

    def _save(self) -> None:
        if self.path is None:
            return
        self.losses.read()  # Reading all losses first keeps a state with NaN from replacing a good one.
        self.interrupt.hold()  # The steps and the evaluation before this may have built kernels.
        seconds = self.seconds + time.perf_counter() - self.started
        meta = {
            "epoch": self.epoch,
            "position": self.position,
            "micro": self.trainer.micro,
            "epochs": self.epochs,
            "device": self.trainer.plan.caps.name,
            "accumulate": batches_per_update(self.trainer),
            "data": data_facts(self.data),
            "step": checkpoint_origin(self.trainer.plan.step),
            "history": self.history.to_json(),
            "dropped": self.dropped,
            "partial": [self.losses.total, self.losses.count, self.samples, seconds],
            "scheduler": self.rates.saved(),
        }
        try:
            write_checkpoint(self.path, self.trainer.state(), meta, self.best.kept)
        except CheckpointError as error:
            raise CheckpointError(
                f"{error}. Training stopped after step {self.history.steps}; the "
                "trainer still holds the state. Try: trainer.state()"
            ) from error
        self.losses.saved = f"epoch {self.epoch + 1}, batch {self.position}: {self.path}"

    def resume(self) -> None:
        """Go back to where the checkpoint was written. Raises CheckpointError if it does not fit."""
        assert self.path is not None
        saved = read_checkpoint(self.path, self.data, self.trainer.plan.step.slots)
        self.trainer.load(saved.state)
        self.epoch, self.position, self.trainer.micro = saved.epoch, saved.position, saved.micro
        self.history = saved.history
        self.losses.total, self.losses.count, self.samples, self.seconds = saved.partial
        self.dropped = saved.dropped
        self.losses.saved = f"epoch {saved.epoch + 1}, batch {saved.position}: {self.path}"
        changes = list(self._changes(saved))
        if self.epoch < self.epochs:
            batch = f", batch {self.position + 1}" if self.position else ""
            self._tell("on_message", f"continuing at epoch {self.epoch + 1} of {self.epochs}{batch}, from {self.path}")
        if changes:
            self._tell("on_message", f"settings differ from those of {self.path}: {'; '.join(changes)}")

    def _changes(self, saved: Checkpoint) -> Iterator[str]:
        """The settings that differ from those of the checkpoint; the user may want each of them."""
        if saved.epochs not in (0, self.epochs):
            yield f"epochs were {saved.epochs} and are {self.epochs}"
        count = batches_per_update(self.trainer)
        if saved.accumulate not in (0, count):
            yield f"one update used {saved.accumulate} batches and uses {count}"
        device = self.trainer.plan.caps.name
        if saved.device not in ("", device):
            yield f"the device was {saved.device} and is {device}, so the last bits will differ"
        yield from self.rates.resumed(saved)
        yield from self.best.resumed(self.history, saved.best)

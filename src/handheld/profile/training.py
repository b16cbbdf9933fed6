"""Records a training in a run file: losses, rates, metrics, the time of every step, and all sensors.

    with recorded("lenet5-train-1.run", settings={"what": "lenet5"}) as record:
        record.attach(trainer)
        trainer.fit(data, epochs=5, callbacks=[record])

The device's commands are not recorded, so that the training is not slowed: a step costs two readings of the clock.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from handheld.profile.machine import machine_of
from handheld.profile.profiler import Profiler
from handheld.profile.sampling import Sensors
from handheld.run.history import Epoch, History
from handheld.run.losses import StepLoss
from handheld.run.trainer import Trainer
from handheld.sensors.base import Where
from handheld.store.rows import TrainingEpochRow, TrainingStepRow

NEVER = 1 << 61  # No step is recorded command by command.


class TrainingRecord:
    """A callback of `fit` that writes what it is told."""

    def __init__(self, profiler: Profiler) -> None:
        self.profiler, self.path = profiler, profiler.path
        self._step = 0

    def attach(self, trainer: Trainer) -> None:
        self.profiler.attach(trainer, advice=False)

    def on_loss(self, now: StepLoss) -> None:
        self._step = now.step
        self.profiler.writer.add(
            TrainingStepRow(now.step, now.epoch, self.profiler.machine.now_ns(), now.loss, now.rate)
        )

    def on_epoch(self, row: Epoch) -> None:
        self.profiler.writer.add(
            TrainingEpochRow(
                row.number,
                self.profiler.machine.now_ns(),
                self._step,
                row.loss,
                row.rate,
                row.samples,
                row.seconds,
                dict(row.test),
                row.dropped,
                row.note,
            )
        )

    def finish(self, history: History) -> None:
        """Write how the training ended."""
        self.profiler.writer.meta(
            training={
                "stopped": history.stopped,
                "paused_seconds": history.paused_seconds,
                "best_epoch": history.best_epoch,
                "best_by": history.best_by,
                "kept_epoch": history.kept_epoch,
                "steps": history.steps,
            }
        )


@contextlib.contextmanager
def recorded(
    path: str | Path,
    settings: Mapping[str, Any],
    sensors: Sensors = True,
    where: Where | None = None,
    code: Path | None = None,
    trainer: Trainer | None = None,
) -> Iterator[TrainingRecord]:
    """A record of the training that runs within the context. The `trainer` tells which machine runs it; by default it
    is this one."""
    own = {**settings, "training": True}
    runs_on = machine_of(trainer.plan.device, where, trainer.session.pid) if trainer else machine_of("opencl", where)
    with runs_on as machine:
        found = machine.sources(sensors)
        with (
            Profiler(path, warmup=NEVER, settings=own, code=code, machine=machine) as profiler,
            machine.sampled(profiler.writer, found),
        ):
            yield TrainingRecord(profiler)

"""`handheld train`: trains a model on data, on one device."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from handheld.cli import output
from handheld.cli.data_options import PLAIN, DataOptions, with_data_options
from handheld.cli.means_options import AS_IS, Means, with_means
from handheld.cli.options import AcceptFrozen, Force, Json, OnAuto, Precision, Seed, Size, Spec
from handheld.cli.partial_options import with_partial_options
from handheld.cli.placing import Goal, Wanted, placed
from handheld.cli.prepare import Job, check_new, check_rates, check_writable, prepare, schedule_of
from handheld.cli.progress import Bar
from handheld.cli.stages import stages
from handheld.cli.train_record import Written, check_record, writing
from handheld.cli.trained import Trained, how_to_go_on, introduce, print_result
from handheld.cli.training_options import PLAIN as PLAIN_TRAINING
from handheld.cli.training_options import TrainingOptions, with_training_options
from handheld.errors import CheckpointError, DeviceLost, HandheldError, StepFileError
from handheld.partial.options import WHOLE, PartialOptions
from handheld.placement.pair import devices_of, first_of, is_pair, start_pair
from handheld.run import loop
from handheld.run.batch import batch_sizes
from handheld.run.checkpoint import read_checkpoint, read_result
from handheld.run.guards import Guards
from handheld.run.history import History
from handheld.run.interrupt import Interrupted
from handheld.run.rates import Schedule as Schedules
from handheld.run.trainer import Trainer
from handheld.step import Step

Data = Annotated[
    str,
    typer.Option(
        "--data",
        metavar="DATA",
        show_default=False,
        help=(
            "digits, pydoc (the text of Python's manual), a .npz file, a folder of images (one "
            "sub-folder per class), a .csv file, or a .txt file; see above."
        ),
    ),
]
Epochs = Annotated[int, typer.Option("--epochs", min=1, metavar="N")]
Batch = Annotated[
    int | None, typer.Option("--batch", min=1, metavar="N", help=("Samples per step. Default: the model's own."))
]
Lr = Annotated[
    float | None, typer.Option("--lr", metavar="RATE", help=("Learning rate. Default: the optimizer's own."))
]
Schedule = Annotated[
    str, typer.Option("--schedule", metavar="NAME", help=("cosine (falls to zero at the end) or constant."))
]
Checkpoint = Annotated[
    Path | None,
    typer.Option(
        "--checkpoint", metavar="FILE", help=("Write the state here after every epoch and on Ctrl-C or SIGTERM.")
    ),
]
Every = Annotated[
    int | None, typer.Option("--every", min=1, metavar="N", help=("Also write the checkpoint every N steps."))
]
Resume = Annotated[
    bool, typer.Option("--resume", help=("Continue from the checkpoint; the result is the same bit for bit."))
]
Export = Annotated[
    Path | None, typer.Option("--export", metavar="FILE.step", help=("Write the trained model as a step file."))
]
BatteryFloor = Annotated[
    float | None,
    typer.Option(
        "--battery-floor",
        metavar="PERCENT",
        help=("Stop cleanly when the battery (that of a target, if it trains there) is lower."),
    ),
]
ThermalLimit = Annotated[
    float | None,
    typer.Option("--thermal-limit", metavar="CELSIUS", help=("Pause while the device, or the target, is hotter.")),
]
FindNan = Annotated[
    bool, typer.Option("--find-nan", help=("If the loss becomes NaN, name the op that caused it (slower)."))
]


@with_partial_options
@with_means
@with_training_options
@with_data_options
def train(
    what: Spec,
    data: Data,
    size: Size = None,
    on: OnAuto = "opencl",
    goal: Goal = None,
    precision: Precision = "float32",
    epochs: Epochs = 20,
    batch: Batch = None,
    lr: Lr = None,
    schedule: Schedule = "cosine",
    seed: Seed = 0,
    checkpoint: Checkpoint = None,
    every: Every = None,
    resume: Resume = False,
    export: Export = None,
    force: Force = False,
    battery_floor: BatteryFloor = None,
    thermal_limit: ThermalLimit = None,
    find_nan: FindNan = False,
    accept_frozen: AcceptFrozen = False,
    json: Json = False,
    given: DataOptions = PLAIN,
    training: TrainingOptions = PLAIN_TRAINING,
    partial: PartialOptions = WHOLE,
    means: Means = AS_IS,
) -> None:
    """Train a model and print its test accuracy.

    On Ctrl-C or SIGTERM the current step is finished, the checkpoint is written (with --checkpoint), and the
    command says how to continue. A second Ctrl-C stops at once. A step file trains without PyTorch. NAME-
    train-N.run gets losses, metrics and sensors, and NAME-train-N.html shows them.

    DATA_FORMATS

    \b
    Examples:
    handheld train lenet5 --data digits
    handheld train mine.py:make --data photos/ --only biases --memory-limit 512MiB
    handheld train mine.py:make --data text.txt --lora 8 --frozen-bits 4 --stream
    handheld train lenet5 --data digits --on opencl:0+opencl:1     # two devices
    """
    started, limit = time.perf_counter(), training.memory_limit_bytes
    files = _Files(checkpoint, every, resume, export).check(force, training)
    check_rates(schedule, lr)
    place = Wanted(what, size, on, batch, goal, precision, data, given, partial, limit, seed, trains=True)
    on, batch = placed(replace(place, means=means, micro_batches=training.micro_batches), json)
    limits = _Limits(battery_floor, thermal_limit, find_nan).check(on)
    with stages(json) as say:
        own_part = files.same(partial.at(first_of(on)))
        job = prepare(what, size, data, batch, seed, accept_frozen, given, training.update, own_part)
        files.check_epochs(epochs, job)
        started_trainer = _started(job, on, precision, training, means, say)
    own = {"precision": precision, "epochs": epochs, "schedule": schedule, "lr": lr, "seed": seed}
    with started_trainer as trainer, writing(trainer, training.record, job, own) as record:
        rates = schedule_of(schedule, lr, trainer.rates("train"), epochs)
        history = _fit(trainer, job, files, limits, training, epochs, rates, quiet=json, record=record)
        result = Trained.of(job, trainer, history, time.perf_counter() - started)
        record.finish(history)
    _conclude(replace(result, record=record.path, page=record.page), history, job, files, json)


def _started(
    job: Job, on: str, precision: str, training: TrainingOptions, means: Means, say: Callable[[str], None]
) -> Trainer:
    """The started trainer on one device, or on two if that is faster."""
    parts = training.micro_batches
    options: dict[str, Any] = {"precision": precision, "memory_limit_bytes": training.memory_limit_bytes}
    if not is_pair(on):
        return job.step.plan(on, graphs=job.graphs, micro_batches=parts, **options, **means.options()).start()
    if means != AS_IS:
        raise HandheldError("--spill, --stream and --state-bits work on one device. Try: --on with one device")
    if parts not in (None, 1):
        raise HandheldError("two devices share a batch already. Try: --micro-batches with one device")
    whole = batch_sizes(job.graphs, "train").get(job.batch, "train")
    paired = start_pair(job.step, devices_of(on), whole, job.graphs, say=say, **options)
    output.warn(paired.text)
    return paired.trainer


@dataclass(frozen=True)
class _Files:
    """What the training reads and writes."""

    checkpoint: Path | None
    every: int | None
    resume: bool
    export: Path | None

    def check(self, force: bool, training: TrainingOptions) -> _Files:
        """Check before the first step that the paths can be written. Returns the files themselves."""
        check_record(training.record)
        if self.every is not None and self.checkpoint is None:
            raise CheckpointError("--every needs a checkpoint to write. Try: --checkpoint FILE")
        if self.resume and (self.checkpoint is None or not self.checkpoint.exists()):
            missing = f"there is no file {self.checkpoint}" if self.checkpoint else "add --checkpoint FILE"
            raise CheckpointError(f"--resume needs a checkpoint to continue from: {missing}")
        if self.export is not None:
            check_new(self.export, force)
        for path in (self.checkpoint, self.export):
            if path is not None:
                check_writable(path)
        if self.checkpoint is not None and self.checkpoint.exists() and not self.resume:
            raise CheckpointError(f"{self.checkpoint} exists. Add --resume to continue from it, or remove it")
        return self

    def same(self, partial: PartialOptions) -> PartialOptions:
        """The options of partial training. A training that goes on trains what its budget has chosen before."""
        if not self.resume or not partial.sparse or self.checkpoint is None:
            return partial
        return PartialOptions.of(read_result(self.checkpoint).origin)

    def check_epochs(self, epochs: int, job: Job) -> None:
        """Warn if the checkpoint already has all the epochs."""
        if self.resume and self.checkpoint is not None:
            done = read_checkpoint(self.checkpoint, job.dataset.train, job.step.slots).epoch
            if done >= epochs:
                output.warn(f"{self.checkpoint} already has {output.count(done, 'epoch')}; --epochs {epochs} adds none")


@dataclass(frozen=True)
class _Limits:
    """What ends or pauses the training early."""

    battery_floor: float | None
    thermal_limit: float | None
    find_nan: bool

    def check(self, on: str) -> _Limits:
        """Report a missing sensor before the capture. Returns the limits themselves."""
        Guards(self.battery_floor, self.thermal_limit, first_of(on))
        return self


def _fit(
    trainer: Trainer,
    job: Job,
    files: _Files,
    limits: _Limits,
    training: TrainingOptions,
    epochs: int,
    rates: Schedules,
    quiet: bool,
    record: Written,
) -> History:
    own = trainer.rates("train")
    for note in job.notes:
        output.warn(note)
    if not quiet:
        introduce(job, trainer)
    with Bar(job.dataset.train, epochs, quiet=quiet) as bar, _rescue(trainer, files.checkpoint, record.path):
        history = loop.fit(
            trainer,
            job.dataset.train,
            epochs=epochs,
            test=job.dataset.test,
            callbacks=[bar, *record.callbacks],
            checkpoint=files.checkpoint,
            every=files.every,
            resume=files.resume,
            battery_floor=limits.battery_floor,
            thermal_limit=limits.thermal_limit,
            stop_on_nan=trainer.plan.device != "null",
            find_nan=limits.find_nan,
            rate=rates,
            patience=training.patience,
            best=training.best,
            keep_best=training.keep_best,
        )
    for group, rate in enumerate(own):  # The next training must start from the optimizer's own rates.
        trainer.set_rate(rate, group, "train")
    return history


@contextmanager
def _rescue(trainer: Trainer, checkpoint: Path | None, record: str = "") -> Iterator[None]:
    """Say how to continue after Ctrl-C, SIGTERM or a lost target.

    If a checkpoint cannot be written, try to save the trained model to the folder for temporary files.
    """
    try:
        yield
    except Interrupted as stop:
        text = f"{stop.history.stopped}. {how_to_go_on(checkpoint, record)}"
        raise Interrupted(text, stop.history, stop.signal) from None
    except DeviceLost as error:
        raise error.add(how_to_go_on(checkpoint, record)) from error
    except CheckpointError as error:
        if not isinstance(error.__cause__, CheckpointError):
            raise  # No step was trained yet, so there is nothing to save.
        raise CheckpointError(f"{error.__cause__}. {_keep(trainer.plan.step)}") from error


def _keep(step: Step) -> str:
    """Save the trained model to the folder for temporary files. Returns a sentence that says where it is."""
    try:
        kept = step.save(Path(tempfile.gettempdir()) / f"handheld-{os.getpid()}.step")
    except StepFileError as error:
        return f"The trained model could not be saved either: {error}"
    return f"The trained model is in {kept}; training from it counts epochs from 1"


def _conclude(result: Trained, history: History, job: Job, files: _Files, json: bool) -> None:
    """Write the step file if one is asked for, and print the result."""
    if files.export is not None:
        try:
            result = replace(result, exported=str(job.step.save(files.export)))
        except StepFileError as error:
            raise StepFileError(f"{error}. {_keep(job.step)}") from error
    if json:
        output.print_json(result.to_json())
    else:
        print_result(result, history, job.dataset, files.checkpoint)

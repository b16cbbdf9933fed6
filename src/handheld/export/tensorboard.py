"""Writes the scalars of a training for TensorBoard: a folder with one event file.

    train/loss_step, train/rate        by step
    train/loss, train/samples_per_second, test/accuracy, …     by epoch

The source is the run file of a training, or the history in a checkpoint, which has epochs only.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from handheld.analyse.run import Run
from handheld.errors import RunFileError
from handheld.export.write import needed


class Scalar(NamedTuple):
    """One value of a series: its number on the horizontal axis, and the time of day in seconds."""

    tag: str
    step: int
    value: float
    wall_s: float


def write(run: Run, out: Path) -> list[Path]:
    """Write the scalars of a training into the folder `out`."""
    if not run.training_steps() and not run.epochs():
        raise RunFileError(
            f"{run.path} has no losses: it is a profile, not a training. Try: the run file that handheld train wrote, "
            "or its checkpoint"
        )
    return write_scalars(list(_scalars(run)), out)


def _scalars(run: Run) -> Iterator[Scalar]:
    begun, unix = run.meta.get("begun_monotonic_ns") or 0, run.meta.get("begun_unix_ns") or 0

    def wall(t_ns: int) -> float:
        return (unix + t_ns - begun) * 1e-9

    for step in run.training_steps():
        value = float("nan") if step.loss is None else step.loss
        yield Scalar("train/loss_step", step.step, value, wall(step.t_ns))
        yield Scalar("train/rate", step.step, step.rate, wall(step.t_ns))
    for epoch in run.epochs():
        yield from epoch_scalars(epoch.number, epoch.loss, epoch.samples, epoch.seconds, epoch.test, wall(epoch.t_ns))


def epoch_scalars(
    number: int, loss: float | None, samples: int, seconds: float, test: Mapping[str, float], wall_s: float
) -> Iterator[Scalar]:
    """The scalars of one epoch."""
    yield Scalar("train/loss", number, float("nan") if loss is None else loss, wall_s)
    if seconds > 0:
        yield Scalar("train/samples_per_second", number, samples / seconds, wall_s)
    for name, value in test.items():
        yield Scalar(f"test/{name}", number, value, wall_s)


def write_scalars(scalars: Sequence[Scalar], out: Path) -> list[Path]:
    """Write an event file. The folder must not have one: TensorBoard would show both as one series."""
    tensorboard = needed("tensorboardX", "tensorboardX")
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.glob("*tfevents*")):
            raise RunFileError(f"{out} already has events of TensorBoard. Try: another --out, or delete it")
        with tempfile.TemporaryDirectory(prefix=".events", dir=out.parent) as folder:
            with tensorboard.SummaryWriter(logdir=folder) as writer:
                for scalar in scalars:
                    writer.add_scalar(scalar.tag, scalar.value, scalar.step, scalar.wall_s)
            return list(_moved(sorted(Path(folder).iterdir()), out))
    except OSError as error:
        raise RunFileError(f"{out} cannot be written: {error.strerror or error}. Try: another --out") from None


def _moved(files: Iterable[Path], out: Path) -> Iterator[Path]:
    for file in files:
        shutil.copyfile(file, partial := out / f".{file.name}.part")
        os.replace(partial, target := out / file.name)
        yield target

"""The run file and the page that `handheld train` writes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from handheld.analyse.run import open_run
from handheld.cli import output
from handheld.cli.prepare import Job, check_writable
from handheld.cli.report import write_beside
from handheld.cli.training_options import RecordOptions
from handheld.errors import HandheldError, RunFileError
from handheld.profile.training import TrainingRecord, recorded
from handheld.run.history import History
from handheld.run.interrupt import ignore_interrupts
from handheld.run.trainer import Trainer


class Written:
    """What is written about a training: nothing, a run file, or a run file and its page."""

    def __init__(self, record: TrainingRecord | None = None) -> None:
        self._record = record
        self.path = "" if record is None else str(record.path)
        self.page = ""

    @property
    def callbacks(self) -> tuple[object, ...]:
        return () if self._record is None else (self._record,)

    def finish(self, history: History) -> None:
        if self._record is not None:
            self._record.finish(history)


def check_record(options: RecordOptions) -> None:
    """Check before the capture that --out can be written."""
    if options.out is not None:
        check_writable(options.out)
        if options.out.exists():
            raise HandheldError(f"{options.out} exists. Try: another --out, or delete it")


@contextlib.contextmanager
def writing(trainer: Trainer, options: RecordOptions, job: Job, own: Mapping[str, Any]) -> Iterator[Written]:
    """Record the training that runs within the context, and write its page at the end, also if it was stopped.

    The training matters more than its record: if the record cannot be written, a warning says so.
    """
    if not options.record:
        yield Written()
        return
    path = options.out or _free(job.name)
    settings = {"what": job.name, "data": job.dataset.name, "batch": job.batch, **own}
    with contextlib.ExitStack() as stack:
        try:
            record = stack.enter_context(recorded(path, settings, trainer=trainer))
            record.attach(trainer)
        except RunFileError as error:
            if options.out is not None:
                raise
            output.warn(f"{error}. The training goes on without a run file and a page. Try: --out FILE.run")
            stack.close()
            yield Written()
            return
        written = Written(record)
        try:
            yield written
        except BaseException as error:  # Also after Ctrl-C there is a page of what was trained.
            if isinstance(error, KeyboardInterrupt):
                ignore_interrupts()
            _close(stack, written, options.page, error)
            raise
        _close(stack, written, options.page)


def _close(stack: contextlib.ExitStack, written: Written, page: bool, error: BaseException | None = None) -> None:
    """End the record, whose status says what ended the training, and write the page."""
    try:
        stack.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)
        with open_run(written.path) as run:
            made = write_beside(run) if page and run.training_steps() else None
        written.page = "" if made is None else str(made)
    except RunFileError as problem:
        output.warn(f"{problem}")


def _free(name: str) -> Path:
    """NAME-train-1.run, or the first number whose file does not exist."""
    stem = Path(name).stem.replace(":", "-") or "run"
    return next(path for n in range(1, 1_000_000) if not (path := Path(f"{stem}-train-{n}.run")).exists())

"""Options of `handheld train` about the update, the best epoch and the memory limit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from handheld.cli.options import MemoryLimit, nbytes, with_options
from handheld.errors import HandheldError
from handheld.run.stopping import HIGHER
from handheld.updates import UpdateOptions

Accumulate = Annotated[
    int, typer.Option("--accumulate", min=1, metavar="N", help="One update uses the mean gradient of N batches.")
]
ClipNorm = Annotated[
    float | None, typer.Option("--clip-norm", metavar="X", help="Limit the joint norm of all gradients to X.")
]
ClipValue = Annotated[
    float | None, typer.Option("--clip-value", metavar="X", help="Limit every element of a gradient to [-X, X].")
]
Patience = Annotated[
    int | None,
    typer.Option("--patience", min=1, metavar="N", help="Stop after N epochs that are not better than the best one."),
]
Best = Annotated[
    str | None,
    typer.Option("--best", metavar="METRIC", help="What makes an epoch the best: loss (the default) or accuracy."),
]
KeepBest = Annotated[
    bool,
    typer.Option(
        "--keep-best", help="The result is the state of the best epoch, not of the last. The checkpoint holds both."
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FILE.run",
        help="Run file for losses, metrics, step times and sensors. Default: NAME-train-N.run here.",
    ),
]
PageOption = Annotated[
    bool, typer.Option("--page/--no-page", help="Write the page of the training beside the run file.")
]
RecordOption = Annotated[bool, typer.Option("--record/--no-record", help="Write the run file, and the page.")]


MicroBatches = Annotated[
    int | None,
    typer.Option(
        "--micro-batches",
        min=1,
        metavar="K",
        help=(
            "Run a batch in K parts with one update. Default: 1, or more to meet a memory limit if the update stays "
            "the same."
        ),
    ),
]


@dataclass(frozen=True)
class RecordOptions:
    """What is written about the training."""

    out: Path | None = None
    page: bool = True
    record: bool = True


@dataclass(frozen=True)
class TrainingOptions:
    """How batches become updates, which epoch is the result, what is written, and how much memory may be used."""

    update: UpdateOptions
    patience: int | None = None
    best: str | None = None
    keep_best: bool = False
    record: RecordOptions = RecordOptions()
    memory_limit_bytes: int | None = None
    micro_batches: int | None = None

    @staticmethod
    def read(
        accumulate: Accumulate = 1,
        clip_norm: ClipNorm = None,
        clip_value: ClipValue = None,
        patience: Patience = None,
        best: Best = None,
        keep_best: KeepBest = False,
        out: Out = None,
        page: PageOption = True,
        record: RecordOption = True,
        memory_limit: MemoryLimit = None,
        micro_batches: MicroBatches = None,
    ) -> TrainingOptions:
        """The options from what was typed. Raises HandheldError for a metric that does not exist."""
        if best is not None and best not in HIGHER:
            raise HandheldError(f"--best {best:.40} is no metric. Try: --best {' or --best '.join(HIGHER)}")
        if out is not None and not record:
            raise HandheldError("--out names a run file, and --no-record asks for none. Try: one of the two")
        written = RecordOptions(out, page, record)
        update = UpdateOptions(accumulate, clip_norm, clip_value)
        return TrainingOptions(update, patience, best, keep_best, written, nbytes(memory_limit), micro_batches)


#: Gives a command the options of `TrainingOptions.read`, as its argument `training`.
with_training_options = with_options(TrainingOptions.read, "training")

#: No option was given.
PLAIN = TrainingOptions(UpdateOptions())

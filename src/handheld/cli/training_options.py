"""Options of `handheld train` about the update and about the best epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from handheld.cli.options import with_options
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


@dataclass(frozen=True)
class TrainingOptions:
    """How batches become updates, and which epoch is the result."""

    update: UpdateOptions
    patience: int | None = None
    best: str | None = None
    keep_best: bool = False

    @staticmethod
    def read(
        accumulate: Accumulate = 1,
        clip_norm: ClipNorm = None,
        clip_value: ClipValue = None,
        patience: Patience = None,
        best: Best = None,
        keep_best: KeepBest = False,
    ) -> TrainingOptions:
        """The options from what was typed. Raises HandheldError for a metric that does not exist."""
        if best is not None and best not in HIGHER:
            raise HandheldError(f"--best {best:.40} is no metric. Try: --best {' or --best '.join(HIGHER)}")
        return TrainingOptions(UpdateOptions(accumulate, clip_norm, clip_value), patience, best, keep_best)


#: Gives a command the options of `TrainingOptions.read`, as its argument `training`.
with_training_options = with_options(TrainingOptions.read, "training")

#: No option was given.
PLAIN = TrainingOptions(UpdateOptions())

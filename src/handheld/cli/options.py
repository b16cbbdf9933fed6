"""Options that several commands have, said once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from handheld.errors import HandheldError

SPEC_HELP = (
    "A workload (lenet5), a step file, or file.py:factory: a function that returns "
    "(model, loss, optimizer) or, with an example batch or a function of its size, "
    "(model, loss, optimizer, batch)."
)

Spec = Annotated[str, typer.Argument(metavar="WHAT", help=SPEC_HELP, show_default=False)]
Size = Annotated[
    str | None,
    typer.Option(
        "--size",
        metavar="SIZE",
        show_default=False,
        help=("Of a workload: small (images of 32x32), paper (as published, 224x224), or pixels."),
    ),
]
On = Annotated[
    str,
    typer.Option(
        "--on", metavar="DEVICE", help=("opencl, opencl:NAME as doctor prints it, reference:cpu, reference:cuda.")
    ),
]
Precision = Annotated[
    str, typer.Option("--precision", metavar="NAME", help=("float32, or half: 16 bits in memory, and a scaled loss."))
]
Json = Annotated[bool, typer.Option("--json", help=('Print one JSON document: the result, or {"error": ...}.'))]
AcceptFrozen = Annotated[
    bool, typer.Option("--accept-frozen", help=("Go on although Python code read values while the step was captured."))
]
Force = Annotated[bool, typer.Option("--force", help=("Replace a step file that is there already."))]
Data = Annotated[
    str | None,
    typer.Option(
        "--data", metavar="DATA", show_default=False, help=("Data to take example batches from, as in train.")
    ),
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help=("Same seed, device and tuning: same bits."))]


def out_folder(folder: Path) -> Path:
    """The folder of --out, there before anything is measured."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HandheldError(f"--out {folder} cannot be made: {error.strerror}") from None
    return folder

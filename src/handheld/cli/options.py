"""Options that several commands share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Any

import typer

from handheld.errors import HandheldError

SPEC_HELP = (
    "A workload (lenet5), a step file, or file.py:factory. The factory is a function that returns "
    "(model, loss, optimizer) or (model, loss, optimizer, batch); batch is an example batch, or a "
    "function that makes one for a batch size."
)

Spec = Annotated[str, typer.Argument(metavar="WHAT", help=SPEC_HELP, show_default=False)]
Size = Annotated[
    str | None,
    typer.Option(
        "--size",
        metavar="SIZE",
        show_default=False,
        help=("Size of a workload: small (32x32 images), paper (as published, 224x224), or a number of pixels."),
    ),
]
On = Annotated[
    str,
    typer.Option(
        "--on",
        metavar="DEVICE",
        help=("opencl, opencl:NAME (names: handheld doctor), reference:cpu or reference:cuda."),
    ),
]
Precision = Annotated[
    str, typer.Option("--precision", metavar="NAME", help=("float32, or half: 16 bits in memory and a scaled loss."))
]
Json = Annotated[bool, typer.Option("--json", help=('Print one JSON document: the result, or {"error": ...}.'))]
Last = Annotated[
    bool, typer.Option("--last", help=("Take the last state of a checkpoint, also if it holds that of the best epoch."))
]
AcceptFrozen = Annotated[
    bool, typer.Option("--accept-frozen", help=("Continue although Python code read values during the capture."))
]
Force = Annotated[bool, typer.Option("--force", help=("Replace an existing step file."))]
Data = Annotated[
    str | None,
    typer.Option(
        "--data", metavar="DATA", show_default=False, help=("Take example batches from this data, as in train.")
    ),
]
Seed = Annotated[
    int, typer.Option("--seed", metavar="N", help=("Random seed. Same seed, device and tuning: same bits."))
]


def out_folder(folder: Path) -> Path:
    """Make the folder of --out before anything is measured, and return it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HandheldError(f"--out {folder} cannot be created: {error.strerror}") from None
    return folder


def with_options(
    read: Callable[..., object], name: str, without: Collection[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator that gives a command the options that are the parameters of `read`, except those in `without`. The
    command gets the result of `read` as its argument `name`."""
    every = inspect.signature(read, eval_str=True).parameters
    added = {key: parameter for key, parameter in every.items() if key not in without}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters

        @functools.wraps(command)
        def run(**values: Any) -> None:
            made = read(**{key: values.pop(key) for key in added})
            command(**values, **{name: made})

        shown = [p.replace(kind=p.KEYWORD_ONLY) for p in (*own.values(), *added.values()) if p.name != name]
        run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]  # typer reads it
        run.__annotations__ = {p.name: p.annotation for p in shown}
        del run.__wrapped__  # typer would read its parameters instead
        return run

    return decorate

"""Options that several commands share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Any

import typer

from handheld.errors import HandheldError
from handheld.units import parse_size

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
_NAMES = "opencl, opencl:NAME (names: handheld doctor), "
_TARGETS = "adb, adb:SERIAL, ssh:user@host, reference:cpu or reference:cuda."
_OPENCL = "adb, adb:SERIAL or ssh:user@host."
_AUTO = "auto (the best device here), "
FLEET_HELP = "fleet:GROUP runs on many devices (handheld fleet)."


def _on(text: str) -> Any:
    return typer.Option("--on", metavar="DEVICE", help=text)


On = Annotated[str, _on(_NAMES + _TARGETS)]
#: For commands that can choose a device.
OnAuto = Annotated[str, _on(_NAMES + _AUTO + _TARGETS)]
#: For commands that need an OpenCL device.
OnOpenCL = Annotated[str, _on(_NAMES + _OPENCL)]
#: The same for commands that also run on a fleet.
OnFleet = Annotated[str, _on(f"{_NAMES}{_TARGETS} {FLEET_HELP}")]
OnAutoFleet = Annotated[str, _on(f"{_NAMES}{_AUTO}{_TARGETS} {FLEET_HELP}")]
OnOpenCLFleet = Annotated[str, _on(f"{_NAMES}{_OPENCL} {FLEET_HELP}")]
Precision = Annotated[
    str,
    typer.Option(
        "--precision",
        metavar="NAME",
        help=(
            "float32; half: 16 bits in memory and a scaled loss; half-compute: products and convolutions also in 16 "
            "bits, where the device can."
        ),
    ),
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


MEMORY_LIMIT_HELP = (
    "Most memory that the plan may need, such as 512MiB. To fit, values of the forward pass are computed again in the "
    "backward pass. Default: the device's memory."
)
MemoryLimit = Annotated[str | None, typer.Option("--memory-limit", metavar="SIZE", help=MEMORY_LIMIT_HELP)]


def nbytes(text: str | None, option: str = "--memory-limit") -> int | None:
    """Bytes from a text such as `512MiB`, `2g` or `1000000`. MB and MiB are the same."""
    if text is None:
        return None
    number = parse_size(text)
    if number is None:
        raise HandheldError(f"{option} {text!r} must be a size. Try: 512MiB or 2GiB")
    return number


def split(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def batches(text: str | None) -> tuple[int, ...]:
    words = split(text or "")
    wrong = [word for word in words if not word.isdigit() or int(word) < 1]
    if wrong or (text is not None and not words):
        raise HandheldError(
            f"--batch {text!r} must be batch sizes of at least 1, separated by commas. Try: --batch 1,4,16"
        )
    return tuple(int(word) for word in words)


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

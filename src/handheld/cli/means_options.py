"""Options about means to need less memory on the device, beyond computing values again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from handheld.cli.options import with_options
from handheld.errors import HandheldError

Spill = Annotated[
    bool,
    typer.Option(
        "--spill",
        help=(
            "To fit, values may also leave the device and come back: to host memory, or to a file if the device shares "
            "it. The faster way is chosen."
        ),
    ),
]
Stream = Annotated[
    bool, typer.Option("--stream", help="Keep frozen parameters there too, and copy them to the device when needed.")
]
SpillTo = Annotated[
    Path | None,
    typer.Option(
        "--spill-to",
        metavar="FOLDER",
        show_default=False,
        help="The folder for that file. Default: the cache folder; its space is reserved before the first step.",
    ),
]
StateBits = Annotated[
    int,
    typer.Option(
        "--state-bits",
        metavar="32|16|8",
        help="Store momenta and averages of squares of the optimizer in so many bits each.",
    ),
]


@dataclass(frozen=True)
class Means:
    """The options of `step.plan` that need less memory on the device."""

    spill: bool = False
    stream: bool = False
    spill_to: str | None = None
    state_bits: int = 32

    def options(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def of(data: Mapping[str, Any]) -> Means:
        """The options from what `options` returned, read from a file. Raises KeyError or TypeError."""
        means = Means(**data)
        if type(means.spill) is not bool or type(means.stream) is not bool or type(means.state_bits) is not int:
            raise TypeError(f"means is {data!r:.80}")
        if not isinstance(means.spill_to, str | None):
            raise TypeError(f"spill_to is {means.spill_to!r:.40}")
        return means


def read(spill: Spill = False, stream: Stream = False, spill_to: SpillTo = None, state_bits: StateBits = 32) -> Means:
    """The options from what was typed. Raises HandheldError for options that contradict each other."""
    if spill_to is not None and not (spill or stream):
        raise HandheldError("--spill-to says where, but nothing leaves the device. Try: with --spill or --stream")
    if state_bits not in (32, 16, 8):
        raise HandheldError(f"--state-bits {state_bits} is not possible. Try: 32, 16 or 8")
    return Means(spill, stream, None if spill_to is None else str(spill_to), state_bits)


#: Gives a command the options of `read`, as its argument `means`.
with_means = with_options(read, "means")
#: The same for a command that compares each op: optimizer state in few bits differs by more than rounding.
with_exact_means = with_options(read, "means", without={"state_bits"})
AS_IS = Means()

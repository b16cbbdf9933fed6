"""Options about what of a model trains, and how its frozen weights are stored."""

from __future__ import annotations

from typing import Annotated

import typer

from handheld.cli.options import with_options
from handheld.errors import HandheldError
from handheld.partial.options import PartialOptions

Only = Annotated[
    str | None,
    typer.Option(
        "--only",
        metavar="WHAT,WHAT",
        show_default=False,
        help=(
            "Train only these parameters: last:N (layers), biases, norms, patterns of names (head, *.attn.*), or "
            "sparse:64MiB and sparse:20ms (those worth most within a budget)."
        ),
    ),
]
Freeze = Annotated[
    str | None,
    typer.Option(
        "--freeze", metavar="PATTERN,PATTERN", show_default=False, help="Do not train parameters with these names."
    ),
]
Lora = Annotated[
    int | None,
    typer.Option(
        "--lora",
        min=1,
        metavar="RANK",
        show_default=False,
        help="Freeze the model and train LoRA of this rank beside its layers, and what --only names.",
    ),
]
LoraOn = Annotated[
    str | None,
    typer.Option(
        "--lora-on",
        metavar="PATTERN,PATTERN",
        show_default=False,
        help="The layers that get LoRA. Default: all linear layers and convolutions.",
    ),
]
FrozenBits = Annotated[
    int | None,
    typer.Option("--frozen-bits", metavar="8|4", show_default=False, help="Store frozen weights in so many bits each."),
]


def read(
    only: Only = None, freeze: Freeze = None, lora: Lora = None, lora_on: LoraOn = None, frozen_bits: FrozenBits = None
) -> PartialOptions:
    """The options from what was typed. Raises HandheldError for options that contradict each other."""
    return PartialOptions(
        _words("--only", only), _words("--freeze", freeze), lora, _words("--lora-on", lora_on), frozen_bits
    ).check()


def _words(option: str, text: str | None) -> tuple[str, ...]:
    words = tuple(word.strip() for word in (text or "").split(",") if word.strip())
    if text is not None and not words:
        raise HandheldError(f"{option} names nothing. Try: {option} head")
    return words


#: Gives a command the options of `read`, as its argument `partial`.
with_partial_options = with_options(read, "partial")

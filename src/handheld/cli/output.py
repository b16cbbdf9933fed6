"""Shared output of the commands: two consoles, numbers with units, JSON."""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import math
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from handheld.units import count as count  # noqa: PLC0414  The commands call it output.count.
from handheld.units import size as size  # noqa: PLC0414  The commands call it output.size.


class TrimmedConsole(Console):
    """A console whose lines have no trailing spaces, unless a terminal shows them."""

    def print(self, *objects: Any, **options: Any) -> None:
        if self.is_terminal:
            super().print(*objects, **options)
            return
        with self.capture() as captured:
            super().print(*objects, **options)
        text = Text(re.sub(r"[ \t]+$", "", captured.get(), flags=re.MULTILINE))
        super().print(text, end="", no_wrap=True, overflow="ignore", crop=False)


#: Results go to stdout; progress, notes and errors go to stderr.
out = TrimmedConsole(highlight=False, soft_wrap=False)
err = TrimmedConsole(stderr=True, highlight=False)


#: What is written instead of a character that the encoding of a stream does not have; `?` for all others.
_PLAIN = {"µ": "u", "×": "x", "…": "...", "±": "+-", "–": "-", "°": " deg ", "≥": ">=", "≤": "<="}


def write_any_encoding() -> None:
    """Let stdout and stderr write every text, also where their encoding is not UTF-8 (a serial console, an old locale).
    Otherwise a `µ` would end a command with an error after its work is done."""
    codecs.register_error("handheld.plain", _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="handheld.plain")


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_PLAIN.get(letter, "?") for letter in error.object[error.start : error.end]), error.end


def print_json(data: object) -> None:
    """Print one JSON document to stdout, without colour; NaN and infinities become null."""
    escaped = "utf" not in (sys.stdout.encoding or "utf").lower()
    print(json.dumps(finite(data), indent=2, ensure_ascii=escaped, allow_nan=False))


def print_error(kind: str, message: str) -> None:
    """Print the error instead of a result, with the text that stderr gets."""
    print_json({"error": {"type": kind, "message": message}})


def finite(data: object) -> object:
    if isinstance(data, dict):
        return {str(key): finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def fail(message: str) -> None:
    """Print the single red line of a command that failed."""
    err.print(Text.assemble(("error: ", "bold red"), message), soft_wrap=True)


def stopped(message: str) -> None:
    err.print(Text.assemble(("stopped: ", "bold yellow"), message), soft_wrap=True)


def caution(message: str) -> None:
    """Print a warning about the results, above them on stdout. Nothing if the text is empty."""
    if message:
        out.print(Text.assemble(("warning: ", "bold red"), message))


def warn(message: str, place: str = "") -> None:
    """Print a note, or a warning about the user's code at `place` (its file and line)."""
    label = f"warning: {place}: " if place else "note: "
    err.print(Text.assemble((label, "bold yellow"), message), soft_wrap=not err.is_terminal)


def grid(rows: Iterable[tuple[str, str | Text]]) -> Table:
    """Names and values in two columns. The name column has the same width in every table of a command."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True, min_width=13)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    return table


def middle(text: str, width: int, head: int | None = None) -> str:
    """The text, cut in its middle, or after `head` characters, if it is longer than `width`."""
    if len(text) <= width:
        return text
    head = width // 2 if head is None else head
    return f"{text[:head]}…{text[len(text) - (width - head - 1) :]}"


def path(where: Path) -> str:
    """A path for the value column of a grid, cut to fit. (--json prints the whole path.)"""
    text = str(where)
    with contextlib.suppress(ValueError, RuntimeError):
        text = f"~/{where.relative_to(Path.home())}"
    return middle(text, out.width - 15)


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def number(value: float) -> str:
    """A loss with four decimals, or with an exponent if it would not fit into a table."""
    return f"{value:.2e}" if abs(value) >= 1e4 else f"{value:.4f}"

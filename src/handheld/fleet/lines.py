"""Finds the line of a TOML text where a key is set. Readers of TOML keep no positions, and messages need them."""

from __future__ import annotations

import re
from collections.abc import Iterator

_HEADER = re.compile(r"^\s*\[\[?([^\[\]]+)\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"""^\s*((?:[\w.\- ]|"[^"]*"|'[^']*')+?)\s*=""")
_PART = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([\w-]+))\s*(?:\.|$)""")


def line_of(text: str, *path: str) -> int:
    """The number of the line that sets the key `path`, such as ("devices", "pi", "target"). If no line sets it, that
    of the nearest table around it; 1 if there is none."""
    best, at = -1.0, 1
    for number, found in _paths(text):
        same = found == path[: len(found)]
        inside = found[: len(path)] == path
        length = len(found) if same else len(path) - 0.5 if inside else -1.0
        if length > best:
            best, at = length, number
    return at


def _paths(text: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    """The lines that open a table or set a key, with the whole path of it."""
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        if match := _HEADER.match(line):
            table = _parts(match[1])
            yield number, table
        elif match := _KEY.match(line):
            yield number, (*table, *_parts(match[1]))


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(a or b or c for a, b, c in _PART.findall(dotted))

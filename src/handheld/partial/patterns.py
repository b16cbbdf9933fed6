"""Patterns of names: shell globs (`layers.*.bias`), with the nearest names for a pattern that matches nothing."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence

from handheld.errors import HandheldError
from handheld.names import nearest

SHOWN = 3


def matching(patterns: str | Sequence[str], names: Iterable[str], what: str, words: Sequence[str] = ()) -> list[str]:
    """The names that any of the patterns matches, in their order. A pattern also matches what is inside the module that
    it names: `layers.0` matches `layers.0.weight`. Raises HandheldError for a pattern that matches nothing. `words` are
    what the user may have meant instead of a pattern."""
    known = list(names)
    wanted = [patterns] if isinstance(patterns, str) else list(patterns)
    found: set[str] = set()
    for pattern in wanted:
        here = {name for name in known if _matches(pattern, name)}
        if not here:
            raise HandheldError(f"the pattern {pattern!r} matches no {what}. {_hint(pattern, known, words)}")
        found |= here
    return [name for name in known if name in found]


def _matches(pattern: str, name: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(name, f"{pattern}.*")


def _hint(pattern: str, names: Sequence[str], words: Sequence[str]) -> str:
    """The names that are nearest to a pattern, or some names if none is near."""
    if not names:
        return "There is none"
    modules = [name.rpartition(".")[0] for name in names if "." in name]
    near = nearest(pattern, dict.fromkeys((*words, *names, *modules)))
    if not near and "*" in pattern:
        parts = dict.fromkeys(part for name in names for part in name.split("."))
        near = [f"*.{part}" for part in nearest(pattern.rpartition(".")[2].strip("*"), parts)]
    near = near or nearest(pattern.replace("*", ""), names)
    shown = near or list(names[:SHOWN])
    words = "The nearest names are" if near else "Names are, for example,"
    return f"{words} {', '.join(shown)}"

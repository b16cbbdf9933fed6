"""Names that a user may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

SHOWN = 3


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """The known names that are nearest to a name, at most three: those that begin with it, then those like it."""
    names = list(known)
    low = {each.lower(): each for each in names}
    begin = [each for each in names if len(name) > 1 and each.lower().startswith(name.lower())]
    alike = [low[each] for each in difflib.get_close_matches(name.lower(), low, n=SHOWN, cutoff=0.5)]
    return list(dict.fromkeys((*begin, *alike)))[:SHOWN]


def suggestion(name: str, known: Iterable[str], otherwise: str) -> str:
    """`Try: lenet5, alexnet or mlp`, or `Try: ` and something else if no known name is near."""
    *some, last = nearest(name, known) or [""]
    if not last:
        return f"Try: {otherwise}"
    return f"Try: {', '.join(some)} or {last}" if some else f"Try: {last}"

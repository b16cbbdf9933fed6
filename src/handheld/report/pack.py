"""Compact forms of tables and traces for a payload."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

DIGITS = 5  # significant digits of a number in a payload


def rounded(value: float | None, digits: int = DIGITS) -> float | int | None:
    """The value with so many significant digits, or None if it is None or not finite."""
    if value is None or not math.isfinite(value):
        return None
    if value == 0 or (isinstance(value, int) and abs(value) < 10**digits):
        return value
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def columns(rows: Mapping[str, Sequence[object]], texts: Iterable[str] = ()) -> dict[str, object]:
    """A table as columns. The columns named in `texts` become positions in a list of their different values."""
    packed: dict[str, list[object]] = {}
    names: dict[str, list[str]] = {}
    shared = set(texts)
    for name, values in rows.items():
        if name in shared:
            known = {text: n for n, text in enumerate(dict.fromkeys(map(str, values)))}
            names[name], packed[name] = list(known), [known[str(value)] for value in values]
        else:
            packed[name] = [rounded(v) if isinstance(v, (int, float)) else v for v in values]
    return {"columns": packed, "texts": names}


def thinned(t: np.ndarray, values: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """At most about `most` points of a trace, with the smallest and the largest value of each stretch kept."""
    if len(t) <= most:
        return t, values
    edges = np.linspace(0, len(t), max(most // 2, 1) + 1).astype(np.int64)
    kept: list[int] = []
    for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        part = values[begin:end]
        kept += sorted({begin + int(part.argmin()), begin + int(part.argmax())})
    return t[kept], values[kept]

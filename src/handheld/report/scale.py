"""Axes of charts: positions of values, ticks, and how numbers are written."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

LETTER = 0.58  # approximate width of a letter, as a share of the font size


def number(value: float | None) -> str:
    """The number with three significant digits and thousands separators, or a dash if it is missing."""
    if value is None or not math.isfinite(value):
        return "–"
    size = abs(value)
    if size >= 1e9 or 0 < size < 1e-3:
        digits, power = f"{value:.2e}".split("e")
        return f"{digits.rstrip('0').rstrip('.')}e{int(power)}"
    decimals = 0 if size >= 100 or not size else max(2 - math.floor(math.log10(size)), 0)
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def quantity(value: float | None, unit: str) -> str:
    """A number with its unit. There is no space before a percent sign."""
    if value is None or not unit:
        return number(value)
    return f"{number(value)}{'' if unit == '%' else ' '}{unit}"


@dataclass(frozen=True)
class Axis:
    """A quantity and its unit. `low` and `high` are kept if given. If `ticks` are given, only these are drawn; use
    them for example for the widths of a sweep."""

    label: str
    unit: str = ""
    log: bool = False
    low: float | None = None
    high: float | None = None
    ticks: Sequence[float] = ()

    @property
    def title(self) -> str:
        return f"{self.label} ({self.unit})" if self.unit else self.label

    def fitted(self, values: Iterable[float | None], zero: bool = False) -> Axis:
        """The axis with limits that include all values. A linear axis begins at zero if `zero` is set, or if the
        smallest value is near zero compared with the range. A logarithmic axis ignores values that are not
        positive."""
        shown = [v for v in (*values, *self.ticks) if v is not None and math.isfinite(v) and (v > 0 or not self.log)]
        low, high = (min(shown), max(shown)) if shown else (1.0, 10.0) if self.log else (0.0, 1.0)
        if self.log:
            if low == high:
                low, high = low / 2, high * 2
            elif not self.ticks:
                low, high = low / (high / low) ** 0.04, high * (high / low) ** 0.04
        else:
            low = min(low, 0.0) if zero or low < (high - low) else low
            span = (high - low) or abs(high) or 1.0
            if not self.ticks:
                step = _nice(span / 4)
                high = max(math.ceil(high / step - 1e-9) * step, low + step)
                low = math.floor(low / step + 1e-9) * step
        low = low if self.low is None else self.low
        high = high if self.high is None else self.high
        return replace(self, low=low, high=high if high > low else low + 1.0)

    def at(self, value: float, begin: float, end: float) -> float:
        """The position of a value between two pixels. A value beyond the limits is put at the edge."""
        assert self.low is not None and self.high is not None, "call fitted() first"
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(max(value, low))
        share = min(max((value - low) / (high - low), 0.0), 1.0)
        return begin + share * (end - begin)

    def marks(self, most: int = 6) -> list[float]:
        """The values that get a tick."""
        assert self.low is not None and self.high is not None, "call fitted() first"
        if self.ticks:
            return [t for t in self.ticks if self.low <= t <= self.high]
        if self.log:
            return _powers(self.low, self.high, most)
        step = _nice((self.high - self.low) / max(most - 1, 1))
        first = math.ceil(self.low / step - 1e-9)
        return [n * step for n in range(first, math.floor(self.high / step + 1e-9) + 1)]


def _nice(step: float) -> float:
    """The step, rounded up to 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(power * n for n in (1, 2, 5, 10) if power * n >= step * (1 - 1e-9))


def _powers(low: float, high: float, most: int) -> list[float]:
    """Powers of ten, with values between them if there is room for `most` ticks, or only every n-th power if not."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for between in ((1, 2, 5), (1, 3), (1,)):
        ticks = [n * 10.0**p for p in range(first, last + 1) for n in between]
        ticks = [v for v in ticks if low * (1 - 1e-9) <= v <= high * (1 + 1e-9)]
        if len(ticks) <= most:
            return ticks
    return ticks[:: math.ceil(len(ticks) / most)]


def width(text: str, size: float) -> float:
    """The approximate width of a text in pixels at a font size."""
    return len(text) * size * LETTER


def apart(places: Sequence[tuple[float, str]], size: float, gap: float = 6.0) -> list[int]:
    """The indices of labels, centred at their places on one line, that can be written without touching: the first, the
    last, and those between them that fit."""

    def edges(index: int) -> tuple[float, float]:
        centre, text = places[index]
        half = width(text, size) / 2 + gap / 2
        return centre - half, centre + half

    order = sorted(range(len(places)), key=lambda index: places[index][0])
    kept: list[int] = order[:1]
    for index in order[1:]:
        if edges(index)[0] >= edges(kept[-1])[1]:
            kept.append(index)
    if order and kept[-1] != order[-1]:
        while len(kept) > 1 and edges(order[-1])[0] < edges(kept[-1])[1]:
            kept.pop()
        if edges(order[-1])[0] >= edges(kept[-1])[1]:
            kept.append(order[-1])
    return kept


def spread_out(places: Sequence[float], size: float, low: float, high: float) -> list[float]:
    """The places, moved as little as possible so that they are `size` apart and within the limits."""
    order = sorted(range(len(places)), key=lambda index: places[index])
    at = [max(places[index], low) for index in order]
    for n in range(1, len(at)):
        at[n] = max(at[n], at[n - 1] + size)
    limit = high
    for n in range(len(at) - 1, -1, -1):
        at[n] = min(at[n], limit)
        limit = at[n] - size
    moved = [0.0] * len(at)
    for place, index in zip(at, order, strict=True):
        moved[index] = place
    return moved

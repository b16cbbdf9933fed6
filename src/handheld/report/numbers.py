"""How numbers are written."""

from __future__ import annotations

import math


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

"""Numbers with units, for messages."""

from __future__ import annotations


def count(number: int, what: str) -> str:
    """The number and the noun in singular or plural: `1 step`, `28 launches`."""
    ending = "" if number == 1 else "es" if what.endswith("ch") and what != "epoch" else "s"
    return f"{number:,} {what}{ending}"


def size(nbytes: float) -> str:
    """Bytes in the largest unit that keeps the number above one: `12 B`, `3.4 KiB`, `1.9 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024 or unit == "GiB":
            return f"{nbytes:,.0f} {unit}" if unit == "B" else f"{nbytes:,.1f} {unit}"
        nbytes /= 1024
    raise AssertionError

"""Numbers with units, for messages."""

from __future__ import annotations


def count(number: int, what: str) -> str:
    """The number and the noun in singular or plural: `1 step`, `28 launches`."""
    ending = "" if number == 1 else "es" if what.endswith("ch") and what != "epoch" else "s"
    return f"{number:,} {what}{ending}"


_BINARY = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def parse_size(text: str) -> int | None:
    """Bytes from a text such as `512MiB`, `2g` or `1000000`. All units are binary. None if it is no size."""
    word = text.strip().lower().removesuffix("bytes").removesuffix("b").removesuffix("i")
    unit = word[-1:] if word[-1:] in _BINARY else ""
    try:
        number = float(word.removesuffix(unit)) * _BINARY[unit]
    except ValueError:
        return None
    return int(number) if 1 <= number < 2**63 else None


def size(nbytes: float) -> str:
    """Bytes in the largest unit that keeps the number above one: `12 B`, `3.4 KiB`, `1.9 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024 or unit == "GiB":
            return f"{nbytes:,.0f} {unit}" if unit == "B" else f"{nbytes:,.1f} {unit}"
        nbytes /= 1024
    raise AssertionError

"""Readers of single values from untrusted JSON data.

Each reader takes the data and a name for error messages. It returns a value of its type or raises StepFileError.
Sizes have limits, so that the cost of reading is bounded by the size of the data.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeVar

from handheld.errors import StepFileError

MAX_DIMS = 64
MAX_TEXT = 10_000
MAX_LIST = 100_000
MAX_DEPTH = 16
_MAX_INT = 2**63

#: The values that notes may hold. Tuples and lists are kept apart.
Note = None | bool | int | float | str | tuple["Note", ...] | list["Note"] | dict[str, "Note"]

V = TypeVar("V")
Item = Callable[[object, str], V]


def need(condition: bool, message: str) -> None:
    if not condition:
        raise StepFileError(f"malformed step file: {message}")


def bad(value: object, where: str, wanted: str) -> StepFileError:
    shown = f"a {type(value).__name__}"
    if isinstance(value, str):
        shown = repr(value[:40])
    elif isinstance(value, float) or (isinstance(value, int) and abs(value) <= _MAX_INT):
        shown = repr(value)
    return StepFileError(f"malformed step file: {where} should be {wanted}, not {shown}")


def an_object(data: object, where: str) -> dict[str, object]:
    if not isinstance(data, dict) or len(data) > MAX_LIST:
        raise bad(data, where, f"an object of at most {MAX_LIST} entries")
    for key in data:
        text(key, f"a key of {where}")
    return data


def fields(data: object, keys: tuple[str, ...], where: str) -> list[object]:
    if not isinstance(data, dict):
        raise bad(data, where, "an object")
    missing = [key for key in keys if key not in data]
    need(not missing, f"{where} has no {', '.join(missing)}")
    need(len(data) == len(keys), f"{where} has unknown entries; is the file newer than this version of Handheld?")
    return [data[key] for key in keys]


def row(data: object, size: int, where: str) -> list[object]:
    if not isinstance(data, list | tuple) or len(data) != size:
        raise bad(data, where, f"a list of {size}")
    return list(data)


def a_list(data: object, item: Item[V], where: str, most: int = MAX_LIST) -> tuple[V, ...]:
    if not isinstance(data, list | tuple):
        raise bad(data, where, "a list")
    if len(data) > most:
        raise bad(data, where, f"a list of at most {most} entries")
    return tuple([item(entry, where) for entry in data])


def text(data: object, where: str) -> str:
    if not isinstance(data, str):
        raise bad(data, where, "text")
    if len(data) > MAX_TEXT:
        raise bad(data, where, f"text of at most {MAX_TEXT} characters")
    try:
        data.encode()
    except UnicodeEncodeError:
        raise StepFileError(f"malformed step file: {where} is not valid Unicode") from None
    return data


def word(data: object, known: Collection[str], where: str) -> str:
    if not isinstance(data, str) or data not in known:
        raise bad(data, where, f"one of {', '.join(known)}")
    return data


def an_int(data: object, where: str) -> int:
    if type(data) is not int or not -_MAX_INT <= data < _MAX_INT:
        raise bad(data, where, "an integer of 64 bits")
    return data


def a_size(data: object, where: str) -> int:
    number = an_int(data, where)
    if number < 0:
        raise bad(data, where, "0 or more")
    return number


def a_bool(data: object, where: str) -> bool:
    if not isinstance(data, bool):
        raise bad(data, where, "true or false")
    return data


def a_number(data: object, where: str) -> float:
    if isinstance(data, dict):
        need(len(data) == 1 and "f" in data, f"{where} is not a number")
        return float(word(data["f"], ("inf", "-inf", "nan"), where))
    if isinstance(data, bool) or type(data) is float:
        return data
    return an_int(data, where)


def ints(data: object, where: str) -> tuple[int, ...]:
    return a_list(data, an_int, where, MAX_DIMS)


def a_shape(data: object, where: str) -> tuple[int, ...]:
    return a_list(data, a_size, where, MAX_DIMS)


def a_value(data: object, where: str, depth: int = 0) -> Note:
    """Reads any value that notes may hold."""
    need(depth <= MAX_DEPTH, f"{where} is nested deeper than {MAX_DEPTH}")
    if data is None or isinstance(data, bool):
        return data
    if isinstance(data, str):
        return text(data, where)
    if isinstance(data, list | tuple):
        return a_list(data, lambda entry, inside: a_value(entry, inside, depth + 1), where)
    if isinstance(data, dict) and len(data) == 1:
        if "l" in data:
            return list(a_list(data["l"], lambda entry, at: a_value(entry, at, depth + 1), where))
        if "d" in data:
            entries = an_object(data["d"], where).items()
            return {key: a_value(entry, where, depth + 1) for key, entry in entries}
    return a_number(data, where)

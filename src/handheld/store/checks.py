"""What the values of a run file may be. Whatever else a damaged or foreign file holds is refused when it is read.

A check is a function that takes a value and says what is wrong with it, or returns "". Checks of columns follow from
the types of a record's fields (`column`); checks of the entries of `meta` are listed here (`meta_flaw`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast, get_type_hints

Check: TypeAlias = Callable[[object], str]

MOST = 2**62  # Times and sizes are below this, so that sums of two fit into 64 bits.
MOST_DEEP = 20  # how deeply lists and objects of an entry may be nested


def _wrong(what: str, value: object) -> str:
    return f"expected {what}, found {value!r:.60}"


def whole(value: object) -> str:
    return "" if type(value) is int and abs(value) < MOST else _wrong("a whole number below 2**62", value)


def count(value: object) -> str:
    return "" if type(value) is int and 0 <= value < MOST else _wrong("a whole number from 0 to 2**62", value)


def number(value: object) -> str:
    if type(value) is int:
        return whole(value)
    return "" if type(value) is float else _wrong("a number", value)


def finite(value: object) -> str:
    return number(value) or ("" if math.isfinite(value) else _wrong("a finite number", value))  # type: ignore[arg-type]


def positive(value: object) -> str:
    return finite(value) or ("" if value > 0 else _wrong("a number above 0", value))  # type: ignore[operator]


def not_negative(value: object) -> str:
    return finite(value) or ("" if value >= 0 else _wrong("a number from 0", value))  # type: ignore[operator]


def text(value: object) -> str:
    return "" if isinstance(value, str) else _wrong("a text", value)


def flag(value: object) -> str:
    return "" if isinstance(value, bool) else _wrong("true or false", value)


def anything(value: object) -> str:
    """Any value that is not nested too deeply to be written again."""
    return "" if _depth(value) <= MOST_DEEP else f"it is nested more than {MOST_DEEP} levels deep"


def _depth(value: object) -> int:
    if isinstance(value, (list, tuple, Mapping)):
        inner = value.values() if isinstance(value, Mapping) else value
        return 1 + max(map(_depth, inner), default=0)
    return 0


def optional(check: Check) -> Check:
    return lambda value: "" if value is None else check(value)


def each(check: Check) -> Check:
    """A list whose items all pass the check."""

    def checked(value: object) -> str:
        if not isinstance(value, (list, tuple)):
            return _wrong("a list", value)
        return next((flaw for item in value if (flaw := check(item))), "")

    return checked


def tuple_of(*checks: Check) -> Check:
    """A list with one item per check."""

    def checked(value: object) -> str:
        if not isinstance(value, (list, tuple)) or len(value) != len(checks):
            return _wrong(f"a list of {len(checks)} items", value)
        return next((flaw for check, item in zip(checks, value, strict=True) if (flaw := check(item))), "")

    return checked


def mapping(check: Check) -> Check:
    """An object whose values all pass the check."""

    def checked(value: object) -> str:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            return _wrong("an object", value)
        return next((f"{key!r}: {flaw}" for key, item in value.items() if (flaw := check(item))), "")

    return checked


def fields(**checks: Check) -> Check:
    """An object with these fields, which may be absent if their check accepts None. It may have others too."""

    def checked(value: object) -> str:
        flaw = mapping(anything)(value)
        if flaw or not isinstance(value, Mapping):
            return flaw
        return next((f"{key!r}: {flaw}" for key, check in checks.items() if (flaw := check(value.get(key)))), "")

    return checked


# ── columns ───────────────────────────────────────────────────────────────────────────────────

_BY_TYPE: dict[Any, Check] = {
    int: whole,
    int | None: optional(whole),
    float: number,
    float | None: optional(number),
    str: text,
    bool: flag,
    tuple[str, ...]: each(text),
    tuple[int, ...]: each(whole),
    Mapping[str, int]: mapping(count),
    Mapping[str, float]: mapping(number),
}


def columns(record: type) -> dict[str, Check]:
    """The check of each field of a record, by its type. Times of the host (`..._ns`) are not negative."""
    checks = {name: _BY_TYPE[kind] for name, kind in get_type_hints(record).items() if kind in _BY_TYPE}
    times = {name: count if checks[name] is whole else optional(count) for name in checks if name.endswith("_ns")}
    return {**checks, **{name: check for name, check in times.items() if name != "device_ns"}}


def column_flaw(check: Check, values: Sequence[object]) -> str:
    """What is wrong with the first bad value of a column, or "". Columns of one plain type are checked at once."""
    kinds = set(map(type, values))
    if kinds == {int}:
        numbers = cast("Sequence[int]", values)
        return check(min(numbers)) or check(max(numbers))
    if kinds in ({str}, {type(None)}, {bool}):
        return check(values[0])
    return next((flaw for value in values if (flaw := check(value))), "")


# ── the entries of meta ───────────────────────────────────────────────────────────────────────

_SOURCE = fields(period_s=number, readings=count, missed=count, mean_s=number, cpu_share=number)
_MEMORY = fields(
    peak_op=optional(whole), peak_bytes=optional(count), owners=optional(each(tuple_of(text, text, count)))
)
_GAIN = fields(**{"shapes": count, "mean": finite, "low": finite, "high": finite, "from": text})
_RAIL = fields(
    name=text, covers=each(text), part_of=text, idle_watts=not_negative, gap_watts=not_negative, deviation=not_negative
)
_EFFORT = fields(op=text, kernel=text, flops=count, bytes=count, launches=count, groups=count, items=count)
_SAMPLE = fields(effort=_EFFORT, seconds=positive, joules=mapping(positive))
_CEILINGS = fields(
    flops=positive,
    bytes_s=positive,
    to_device_bytes_s=positive,
    to_device_latency_s=not_negative,
    to_host_bytes_s=positive,
    to_host_latency_s=not_negative,
    memory=optional(each(tuple_of(positive, positive))),
    launch_device_s=optional(positive),
    others=optional(finite),
)
_ENTRIES: dict[str, Check] = {
    "status": text,
    "device": text,
    "caps": fields(name=optional(text), kind=optional(text), driver=optional(text), unified_memory=optional(flag)),
    "settings": fields(
        repeat=optional(mapping(anything)),
        steps=optional(count),
        graphs=optional(each(text)),
        what=optional(text),
        batch=optional(count),
        model=optional(text),
        size=optional(text),
    ),
    "schedule": mapping(optional(count)),
    "plan_options": fields(precision=optional(text)),
    "plan_bytes": count,
    "fit": text,
    "allocated_bytes": count,
    "arena_bytes": count,
    "peak_bytes": number,
    "started_ns": count,
    "begun_monotonic_ns": count,
    "begun_unix_ns": count,
    "recording_ns": count,
    "recording_share": finite,
    "idle_ns": tuple_of(count, count),
    "loss": number,
    "process": fields(pid=count, created=number),
    "target": text,
    "host": fields(memory_bytes=optional(count), cores=optional(count)),
    "clock": fields(of=text, ahead_ns=whole, error_ns=count),
    "machine": fields(core_kinds=optional(mapping(anything)), memory_bytes=optional(count), cores=optional(count)),
    "versions": mapping(text),
    "kernels": mapping(count),
    "tuned": mapping(mapping(whole)),
    "plan_hash": text,
    "code": fields(commit=optional(text)),
    "sensors_absent": mapping(text),
    "others": mapping(anything),
    "estimate": fields(watts_busy=positive, watts_idle=not_negative),
    "sampler": fields(
        elapsed_s=number, lost=optional(count), cpu_share=number, sources=mapping(_SOURCE), stretch=optional(number)
    ),
    "energy_model": fields(
        device=text,
        driver=text,
        date=text,
        measuring_s=not_negative,
        compute_units=positive,
        cache_bytes=count,
        families=optional(mapping(count)),
        rails=each(_RAIL),
        samples=each(_SAMPLE),
    ),
    "half": text,
    "arithmetic": text,
    "less_memory": fields(limit_bytes=positive, bytes=positive, more=number),
    "no_energy_model": text,
    "stale_energy_model": text,
    "launch_sizes": mapping(tuple_of(text, count, count)),
    "isolated": fields(graph=text, plan_bytes=optional(count), op_ms=mapping(not_negative)),
    "ceilings": _CEILINGS,
    "chains": each(tuple_of(count, count, count, count, count)),
    "devices": each(fields(device=text, name=optional(text), ceilings=_CEILINGS)),
    "training": fields(stopped=text, paused_seconds=number, best_epoch=count, best_by=text, kept_epoch=count),
    "tuning": fields(variants=count, without=each(count), gains=mapping(_GAIN)),
}


def meta_flaw(key: str, value: object) -> str:
    """What is wrong with an entry of `meta`, or "". Entries that this version does not know may hold anything."""
    check = _MEMORY if key.startswith("memory.") else _ENTRIES.get(key, anything)
    flaw = optional(check)(value)
    if not flaw and key == "estimate" and isinstance(value, Mapping) and value["watts_idle"] > value["watts_busy"]:
        flaw = "the idle watts are above the busy watts"
    return flaw

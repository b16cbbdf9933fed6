"""What `doctor` says of sensors: each with a live reading, or the reason that there is none."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rich.text import Text

from handheld.cli import output
from handheld.sensors import Channel, ProbedSource, SensorLost, Where, find
from handheld.sensors.base import Value
from handheld.sensors.counters import rate

APART_S = 0.25  # between two readings of a counter
_EACH = 4  # channels of a kind that are shown one by one


def examine(where: Where | None = None) -> list[dict[str, Any]]:
    """Every source as plain data. A counter has a rate: W for J, a share of the time for s."""
    found = find(where)
    time.sleep(APART_S)
    return [_examined(one) for one in found]


def _examined(one: ProbedSource) -> dict[str, Any]:
    data: dict[str, Any] = {"name": one.name, "about": one.about, "available": not one.reason, "reason": one.reason}
    if one.sensor is None:
        return data
    try:
        now, last = time.monotonic(), tuple(one.sensor.read())
    except (SensorLost, OSError) as error:
        return {**data, "available": False, "reason": str(error)}
    finally:
        one.sensor.close()
    channels = [
        _channel(channel, (one.t_s, before), (now, after))
        for channel, before, after in zip(one.sensor.channels, one.first, last, strict=True)
    ]
    return {**data, "period_s": one.sensor.period_s, "cost_s": one.cost_s, "channels": channels}


def _channel(channel: Channel, before: tuple[float, Value], after: tuple[float, Value]) -> dict[str, Any]:
    value = after[1]
    speed = None
    if channel.counter and not isinstance(value, str) and not isinstance(before[1], str):
        speed = rate(channel, before[0], before[1], after[0], value)
    missing = isinstance(value, str)
    return {
        "name": channel.name,
        "quantity": channel.quantity,
        "unit": channel.unit,
        "counter": channel.counter,
        "covers": list(channel.covers),
        "part_of": channel.part_of,
        "value": None if missing else value,
        "rate": speed,
        "reason": value if missing else "",
    }


def rows(sensors: list[dict[str, Any]]) -> list[tuple[str, str | Text]]:
    """The same for people: names and a line or two each."""
    made: list[tuple[str, str | Text]] = []
    for one in sensors:
        if not one["available"]:
            made.append((one["name"], Text(f"no: {one['reason']}", style="dim")))
            continue
        often = f"every {_seconds(one['period_s'])}, {_seconds(one['cost_s'])} a reading"
        made.append((one["name"], Text.assemble(_reading(one["channels"]), (f" ({often})", "dim"))))
    return made


def _reading(channels: list[dict[str, Any]]) -> str:
    parts = []
    for quantity in dict.fromkeys(channel["quantity"] for channel in channels):
        group = [channel for channel in channels if channel["quantity"] == quantity]
        shown = [(channel, _value(channel)) for channel in group]
        numbers = [(value, text) for channel, text in shown if (value := _number(channel)) is not None]
        if len(group) <= _EACH or not numbers:
            parts += [f"{channel['name']} {text}" for channel, text in shown[:_EACH]]
        else:
            low, high = min(numbers)[1], max(numbers)[1]
            parts.append(f"{group[0]['name']} … {group[-1]['name']} " + (low if low == high else f"{low} to {high}"))
    return ", ".join(parts)


def _number(channel: dict[str, Any]) -> float | None:
    found: float | None = channel["rate"] if channel["counter"] else channel["value"]
    return found


def _value(channel: dict[str, Any]) -> str:
    number = _number(channel)
    if number is None:
        return f"not read: {channel['reason'] or 'the counter did not run on'}"
    return _WORDS[channel["quantity"], channel["counter"]](number)


_WORDS: dict[tuple[str, bool], Callable[[float], str]] = {
    ("power", False): lambda w: f"{w:.3g} W" if w < 1000 else f"{w:,.0f} W",
    ("energy", True): lambda w: f"{w:.3g} W" if w < 1000 else f"{w:,.0f} W",
    ("energy", False): lambda j: f"{j / 3600:.3g} Wh",
    ("time", True): lambda share: f"{min(share, 1):.0%}",  # ticks are coarse: 101%
    ("time", False): lambda s: f"{s:.3g} s",
    ("utilisation", False): lambda percent: f"{percent:.0f}%",
    ("frequency", False): lambda hz: f"{hz / 1e9:.2f} GHz" if hz >= 1e9 else f"{hz / 1e6:.0f} MHz",
    ("temperature", False): lambda celsius: f"{celsius:.0f} °C",
    ("memory", False): output.size,
    ("charge", False): lambda coulomb: f"{coulomb / 3.6:,.0f} mAh",
}


def _seconds(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} µs"

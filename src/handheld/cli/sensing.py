"""The sensors in `handheld doctor`: a live reading of each, or the reason why there is none."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import NotRequired, TypedDict

from rich.text import Text

from handheld.backends.runner.observe import observed
from handheld.cli import output
from handheld.sensors import Channel, ProbedSource, SensorLost, Where, find
from handheld.sensors.base import Value
from handheld.sensors.counters import rate
from handheld.sensors.mirror import Mirror
from handheld.sensors.replay import Replay, Replayed

APART_S = 0.25  # Seconds between the two readings of a counter.
_EACH = 4  # Up to this many channels of one kind are shown one by one.


class ChannelFacts(TypedDict):
    """One quantity of a sensor. `value` is None if it could not be read; `reason` says why."""

    name: str
    quantity: str
    unit: str
    counter: bool
    covers: list[str]
    part_of: str
    value: float | None
    rate: float | None
    reason: str


class SensorFacts(TypedDict):
    """A sensor source. The last three fields are there if it is available."""

    name: str
    about: str
    available: bool
    reason: str
    period_s: NotRequired[float]
    cost_s: NotRequired[float]
    channels: NotRequired[list[ChannelFacts]]


def examine(where: Where | None = None) -> list[SensorFacts]:
    """Every sensor source as plain data. A counter gets a rate: W for J, a share of the time for s."""
    sources = find(where)
    time.sleep(APART_S)
    return [_examined(source, time.monotonic) for source in sources]


def examine_on(device: str) -> list[SensorFacts]:
    """The same about the machine of a target. Its sampler reads every source for a moment, which tells the costs."""
    with observed(device) as machine, Mirror(machine) as mirror:
        sources = mirror.find()
        replay = Replay(mirror, [type(source.sensor) for source in sources if source.sensor], {})
        machine.sample(replay.wanted())
        time.sleep(APART_S)
        replay.feed(machine.stop_sampling())
        sampled = {source.track.source.name: source for source in replay.sources}
        return [_examined_there(source, sampled.get(source.name), mirror) for source in sources]


def _examined_there(source: ProbedSource, sampled: Replayed | None, mirror: Mirror) -> SensorFacts:
    if sampled is None:
        return _examined(source, time.monotonic)
    cost = sampled.cost()
    timed = replace(source, cost_s=cost.wall_s / max(cost.readings, 1))
    return _examined(timed, lambda: sampled.track.t_ns * 1e-9, mirror.shown)


def _examined(
    source: ProbedSource, clock: Callable[[], float], shown: Callable[[str], str] = lambda text: text
) -> SensorFacts:
    data: SensorFacts = {
        "name": source.name,
        "about": source.about,
        "available": not source.reason,
        "reason": source.reason,
    }
    if source.sensor is None:
        return data
    try:
        now = clock()
        last = [shown(value) if isinstance(value, str) else value for value in source.sensor.read()]
    except (SensorLost, OSError) as error:
        return {**data, "available": False, "reason": shown(str(error))}
    finally:
        source.sensor.close()
    channels = [
        _channel(channel, (source.t_s, before), (now, after))
        for channel, before, after in zip(source.sensor.channels, source.first, last, strict=True)
    ]
    return {**data, "period_s": source.sensor.period_s, "cost_s": source.cost_s, "channels": channels}


def _channel(channel: Channel, before: tuple[float, Value], after: tuple[float, Value]) -> ChannelFacts:
    value = after[1]
    speed = None
    if channel.counter and not isinstance(value, str) and not isinstance(before[1], str):
        speed = rate(channel, before[0], before[1], after[0], value)
    return {
        "name": channel.name,
        "quantity": channel.quantity,
        "unit": channel.unit,
        "counter": channel.counter,
        "covers": list(channel.covers),
        "part_of": channel.part_of,
        "value": None if isinstance(value, str) else value,
        "rate": speed,
        "reason": value if isinstance(value, str) else "",
    }


def rows(sensors: list[SensorFacts]) -> list[tuple[str, str | Text]]:
    """The same as names and text for the terminal."""
    rows: list[tuple[str, str | Text]] = []
    for sensor in sensors:
        if not sensor["available"]:
            rows.append((sensor["name"], Text(f"no: {sensor['reason']}", style="dim")))
            continue
        often = f"every {_seconds(sensor['period_s'])}, {_seconds(sensor['cost_s'])} per reading"
        rows.append((sensor["name"], Text.assemble(_reading(sensor["channels"]), (f" ({often})", "dim"))))
    return rows


def _reading(channels: list[ChannelFacts]) -> str:
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


def _number(channel: ChannelFacts) -> float | None:
    return channel["rate"] if channel["counter"] else channel["value"]


def _value(channel: ChannelFacts) -> str:
    number = _number(channel)
    if number is None:
        return f"not read: {channel['reason'] or 'the counter did not advance'}"
    return _WORDS[channel["quantity"], channel["counter"]](number)


_WORDS: dict[tuple[str, bool], Callable[[float], str]] = {
    ("power", False): lambda w: f"{w:.3g} W" if w < 1000 else f"{w:,.0f} W",
    ("energy", True): lambda w: f"{w:.3g} W" if w < 1000 else f"{w:,.0f} W",
    ("energy", False): lambda j: f"{j / 3600:.3g} Wh",
    ("time", True): lambda share: f"{min(share, 1):.0%}",  # Coarse ticks may give 101%.
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

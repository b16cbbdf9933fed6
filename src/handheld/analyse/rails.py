"""Power and energy over a window, per rail. A rail is a channel of power or an energy counter."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from handheld.store.reader import RunFile
from handheld.store.record import Record
from handheld.store.rows import SourceRow

#: A rail that averages shows only its own window after this many times the average: NVML's also lags.
SETTLED = 1.5
_AVERAGE = re.compile(r"\(([0-9.]+) s average\)")


@dataclass(frozen=True)
class Series:
    """The readings of one channel: times in ns, and values. The values of a counter only rise."""

    source: str
    name: str
    quantity: str
    unit: str
    counter: bool
    covers: tuple[str, ...]
    part_of: str
    t_ns: np.ndarray
    values: np.ndarray

    @property
    def rail(self) -> str:
        return f"{self.source}/{self.name}"

    def within(self, begin: int, end: int) -> np.ndarray:
        """The values read in the window."""
        return self.values[(self.t_ns >= begin) & (self.t_ns <= end)]

    def ticks(self, begin: int, end: int) -> int:
        """How often the value changed in the window."""
        values = self.within(begin, end)
        return int((np.diff(values) != 0).sum())

    @property
    def average_ns(self) -> int:
        """The time over which the source averages the power, as its name says; 0 if it does not."""
        found = _AVERAGE.search(self.name)
        return round(float(found[1]) * 1e9) if found else 0

    @cached_property
    def _updates(self) -> tuple[np.ndarray, np.ndarray]:
        """The readings at which a counter rose. Between two updates a reading is older than its time."""
        rose = np.concatenate(([True], np.diff(self.values) != 0))
        return self.t_ns[rose], self.values[rose]

    def _count(self, at: int) -> float:
        times, values = self._updates
        if at > times[-1] and len(times) > 2:  # The next update was not seen: the counter rises on as before.
            rate = (values[-1] - values[-3]) / (times[-1] - times[-3])
            return float(values[-1] + rate * min(at - times[-1], times[-1] - times[-2]))
        return float(np.interp(at, times, values))

    def joules(self, begin: int, end: int) -> float | None:
        """The energy of the window: the difference of a counter, or power times time. None if the readings do not cover
        the window, or if it is shorter than the time over which the source averages."""
        if len(self.t_ns) < 2 or self.t_ns[0] > begin or self.t_ns[-1] < end:
            return None
        if self.counter:
            return self._count(end) - self._count(begin)
        if self.average_ns:
            # Earlier readings also average what was before the window.
            watts = self.within(begin + round(SETTLED * self.average_ns), end)
            return float(watts.mean()) * (end - begin) * 1e-9 if len(watts) else None
        inside = (self.t_ns > begin) & (self.t_ns < end)
        at = np.concatenate(([begin], self.t_ns[inside], [end])).astype(np.float64)
        watts = np.interp(at, self.t_ns, self.values)
        return float(((watts[1:] + watts[:-1]) / 2 * np.diff(at)).sum() * 1e-9)


@dataclass(frozen=True, slots=True)
class ChannelSamples(Record):
    """How many readings a channel has, and their range."""

    source: str
    channel: str
    quantity: str
    unit: str
    counter: bool
    covers: tuple[str, ...]
    n: int
    mean: float | None
    min: float | None
    max: float | None


def channel_samples(channel: Series, begin: int, end: int) -> ChannelSamples:
    """Number and range of the readings from `begin` to `end`."""
    values = channel.within(begin, end)
    return ChannelSamples(
        source=channel.source,
        channel=channel.name,
        quantity=channel.quantity,
        unit=channel.unit,
        counter=channel.counter,
        covers=channel.covers,
        n=len(values),
        mean=float(values.mean()) if len(values) else None,
        min=float(values.min()) if len(values) else None,
        max=float(values.max()) if len(values) else None,
    )


def series(file: RunFile) -> list[Series]:
    """All channels with at least one value."""
    result = []
    for source in file.table(SourceRow, "ORDER BY id"):
        channels = file.channels(source.id)
        read = file.readings(source.id, len(channels))
        for channel in channels:
            values = read.values[:, channel.position]
            valid = ~np.isnan(values)
            if valid.any():
                result.append(
                    Series(
                        source.name,
                        channel.name,
                        channel.quantity,
                        channel.unit,
                        channel.counter,
                        channel.covers,
                        channel.part_of,
                        read.t_ns[valid],
                        values[valid],
                    )
                )
    return result


def rails(channels: list[Series]) -> list[Series]:
    """The channels that measure energy. If a source has both an energy counter and the power of the same parts,
    only the counter is taken. The energy that is left in a battery is no counter, and no rail."""
    counted = {(s.source, s.covers) for s in channels if s.quantity == "energy" and s.counter}
    return [
        s
        for s in channels
        if (s.quantity == "energy" and s.counter) or (s.quantity == "power" and (s.source, s.covers) not in counted)
    ]

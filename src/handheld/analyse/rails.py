"""Power and energy over a window, by rail. A rail is a channel of power or of an energy counter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from handheld.store.reader import RunFile
from handheld.store.record import Record
from handheld.store.rows import ChannelRow, SourceRow


@dataclass(frozen=True)
class Series:
    """One channel: times in ns and values; of a counter they only rise."""

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
        """Values read in the window."""
        return self.values[(self.t_ns >= begin) & (self.t_ns <= end)]

    def ticks(self, begin: int, end: int) -> int:
        """How often the value changed in the window."""
        values = self.within(begin, end)
        return int((np.diff(values) != 0).sum())

    def joules(self, begin: int, end: int) -> float | None:
        """Energy of the window: a counter's difference, or power times time; None where the
        readings do not reach around it."""
        if len(self.t_ns) < 2 or self.t_ns[0] > begin or self.t_ns[-1] < end:
            return None
        if self.counter:
            low, high = np.interp((begin, end), self.t_ns, self.values)
            return float(high - low)
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


def channel_samples(one: Series, begin: int, end: int) -> ChannelSamples:
    """Of the readings from `begin` to `end`."""
    values = one.within(begin, end)
    return ChannelSamples(
        source=one.source,
        channel=one.name,
        quantity=one.quantity,
        unit=one.unit,
        counter=one.counter,
        covers=one.covers,
        n=len(values),
        mean=float(values.mean()) if len(values) else None,
        min=float(values.min()) if len(values) else None,
        max=float(values.max()) if len(values) else None,
    )


def series(file: RunFile) -> list[Series]:
    """Every channel with at least one value."""
    found = []
    for source in file.table(SourceRow, "ORDER BY id"):
        channels = file.table(ChannelRow, "WHERE source=? ORDER BY position", source.id)
        read = file.readings(source.id, len(channels))
        for one in channels:
            values = read.values[:, one.position]
            here = ~np.isnan(values)
            if here.any():
                found.append(
                    Series(
                        source.name,
                        one.name,
                        one.quantity,
                        one.unit,
                        one.counter,
                        one.covers,
                        one.part_of,
                        read.t_ns[here],
                        values[here],
                    )
                )
    return found


def rails(channels: list[Series]) -> list[Series]:
    """The channels that say something about energy; where a source has a counter of what it also
    reports as power, the counter."""
    counted = {(s.source, s.covers) for s in channels if s.quantity == "energy"}
    return [
        s for s in channels if s.quantity == "energy" or (s.quantity == "power" and (s.source, s.covers) not in counted)
    ]

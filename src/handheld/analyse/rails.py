"""Power and energy over a window, per rail. A rail is a channel of power or an energy counter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from handheld.store.reader import RunFile
from handheld.store.record import Record
from handheld.store.rows import SourceRow


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

    def joules(self, begin: int, end: int) -> float | None:
        """The energy of the window: the difference of a counter, or power times time. None if the readings do not cover
        the window."""
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
    only the counter is taken."""
    counted = {(s.source, s.covers) for s in channels if s.quantity == "energy"}
    return [
        s for s in channels if s.quantity == "energy" or (s.quantity == "power" and (s.source, s.covers) not in counted)
    ]

"""What was read of one source: readings and gaps, ready to be written.

Wraps are removed from counters. A missing value becomes NaN and begins a gap. The thread that reads a source of this
machine (worker.py) and the replay of a target's readings (replay.py) both write through a track.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import math
import statistics
import struct
from collections.abc import Sequence

from handheld.errors import SensorError
from handheld.sensors.base import Sensor, Value, Where
from handheld.sensors.counters import Rising
from handheld.sensors.sink import Gap, Reading

SILENT_S = 2.0  # a longer time without a reading is a gap
_UPDATES = 256  # how many intervals between changes are kept per channel


class Track:
    """The readings of one source. `sensor` is None while the source is lost."""

    numbers = itertools.count(1)  # ids of gaps, shared by all tracks

    def __init__(self, number: int, source: type[Sensor], where: Where) -> None:
        self.number, self.source, self.where = number, source, where
        self.sensor: Sensor | None = source.probe(where)
        self.channels = self.sensor.channels
        self.readings: collections.deque[Reading] = collections.deque()
        self.gaps: collections.deque[Gap] = collections.deque()
        self.t_ns = 0  # the time of the last reading
        self._pack = struct.Struct(f"<{len(self.channels)}d").pack
        self._open: dict[int | None, Gap] = {}  # gaps that have not ended, by channel; None is the whole source
        self._rising = [Rising(channel) if channel.counter else None for channel in self.channels]
        self._last: list[tuple[float, int] | None] = [None] * len(self.channels)
        self._changes: list[list[int]] = [[] for _ in self.channels]

    @property
    def lost(self) -> bool:
        """Whether a gap of the whole source is open."""
        return None in self._open

    def values(self) -> Sequence[Value]:
        """Read the sensor. Raises what it raises, and SensorError if it returns another number of values."""
        assert self.sensor is not None
        values = self.sensor.read()
        if len(values) != len(self.channels):
            raise SensorError(f"it returns {len(values)} values for {len(self.channels)} channels")
        return values

    def keep(self, t_ns: int, values: Sequence[Value]) -> None:
        """Add a reading."""
        self._end_gap(None, t_ns)
        row = [self._number(position, t_ns, value) for position, value in enumerate(values)]
        self.t_ns = t_ns
        self.readings.append(Reading(self.number, t_ns, self._pack(*row)))

    def _number(self, position: int, t_ns: int, value: Value) -> float:
        """The number to store: counters without wraps, NaN for a missing value."""
        if isinstance(value, str) or not math.isfinite(value):
            if position not in self._open:
                self.gap(position, t_ns, str(value))
            return math.nan
        if position in self._open:
            self._end_gap(position, t_ns)
        self._changed(position, t_ns, value)
        rising = self._rising[position]
        if rising is None:
            return value
        lost = rising.lost
        total = rising.add(t_ns * 1e-9, value)
        if rising.lost != lost:
            self.gap(position, self.t_ns, "the counter was reset: what it counted in between is unknown")
            self._end_gap(position, t_ns)
        return total

    def _changed(self, position: int, t_ns: int, value: float) -> None:
        last, changes = self._last[position], self._changes[position]
        if last is None:
            self._last[position] = (value, 0)  # The time of the last change is not known yet.
        elif last[0] != value:
            if last[1] and len(changes) < _UPDATES:
                changes.append(t_ns - last[1])
            self._last[position] = (value, t_ns)

    def gap(self, channel: int | None, from_ns: int, reason: str) -> Gap:
        """Begin a gap of a channel, or of the whole source."""
        gap = self._open[channel] = Gap(next(self.numbers), self.number, channel, from_ns, None, reason)
        self.gaps.append(gap)
        return gap

    def _end_gap(self, channel: int | None, t_ns: int) -> None:
        gap = self._open.pop(channel, None)
        if gap is not None:
            self.gaps.append(Gap(gap.id, gap.source, gap.channel, gap.from_ns, t_ns, gap.reason))

    def lose(self, t_ns: int, reason: str) -> None:
        """The sensor does not answer any more."""
        assert self.sensor is not None
        with contextlib.suppress(Exception):
            self.sensor.close()
        self.sensor = None
        if not self.lost:
            self.gap(None, self.t_ns or t_ns, reason)

    def revive(self) -> bool:
        """Look for a lost sensor again. Returns whether it is back."""
        try:
            sensor = self.source.probe(self.where)
        except Exception:  # It is still gone. The gap already has the first reason.
            return False
        if [channel.name for channel in sensor.channels] != [channel.name for channel in self.channels]:
            sensor.close()  # A different device has replaced it, so the numbers do not belong to this source.
            return False
        self.sensor = sensor
        return True

    def updates_s(self) -> tuple[float | None, ...]:
        """Per channel: the median time between two different values."""
        return tuple(statistics.median(c) * 1e-9 if len(c) > 2 else None for c in map(list, self._changes))

"""A thread that reads one source repeatedly.

Readings and gaps wait in two queues for the thread that writes them. Wraps are removed from counters. A missing value
becomes NaN and begins a gap.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import math
import statistics
import struct
import threading
import time
from typing import Any

from handheld.errors import SensorError
from handheld.sensors.base import Sensor, Value, Where
from handheld.sensors.counters import Rising
from handheld.sensors.sink import Cost, Gap, Reading

RETRY_S, RETRY_MOST_S = 0.25, 4.0  # the first and the longest wait before a lost sensor is looked for again; it doubles
SILENT_S = 2.0  # a reading that takes longer is recorded as a gap
_UPDATES = 256  # how many intervals between changes are kept per channel
_NAP_S = 0.05  # shorter waits need not be interruptible
_BUSY = 0.5  # readings of one source take at most this share of the time
_SLOWEST_S = 0.25  # stretching never makes a period longer than this


class Worker(threading.Thread):
    """Reads one source until `stop` is set."""

    numbers = itertools.count(1)  # ids of gaps, shared by all workers

    def __init__(self, number: int, source: type[Sensor], where: Where, period_s: float | None) -> None:
        super().__init__(name=source.name, daemon=True)
        self.number, self.source, self.where = number, source, where
        self.sensor: Sensor | None = source.probe(where)
        self.channels = self.sensor.channels
        self.takes_s = _quickest(self.sensor)
        self.period_s = max(period_s or self.sensor.period_s, self.takes_s / _BUSY)
        self.asked = period_s is not None  # The user set this period: it is never stretched.
        self.stretch = 1.0  # the factor for the period, set by child.Pace
        self.readings: collections.deque[Reading] = collections.deque()
        self.gaps: collections.deque[Gap] = collections.deque()
        self.stop = threading.Event()
        self.once_more = False  # whether to read a last time before it ends
        self.since_ns: int | None = None  # when the current reading began, if one is under way
        self._count = self._missed = self._wall_ns = self._max_ns = self._cpu_ns = 0
        self._pack = struct.Struct(f"<{len(self.channels)}d").pack
        self._open: dict[int | None, Gap] = {}  # gaps that have not ended, by channel; None is the whole source
        self._rising = [Rising(channel) if channel.counter else None for channel in self.channels]
        self._last: list[tuple[float, int] | None] = [None] * len(self.channels)
        self._changes: list[list[int]] = [[] for _ in self.channels]
        self._t_ns = self._done_ns = 0  # the time of the last reading, and when it was complete

    # ── the thread ────────────────────────────────────────────────────────────────────────

    def run(self) -> None:
        retry = RETRY_S
        due = time.monotonic()
        while not self.stop.is_set():
            if self.sensor is None:
                if self.stop.wait(retry):
                    break
                retry = RETRY_S if self._revive() else min(2 * retry, RETRY_MOST_S)
                due = time.monotonic()
                continue
            self._read(self.sensor)
            self._cpu_ns = time.thread_time_ns()
            due = self._wait(due + self.pace_s)
        if self.sensor is not None and self.once_more:
            self._read(self.sensor)  # So that all measured time lies between two readings.
        if self.sensor is not None:
            self.sensor.close()

    @property
    def pace_s(self) -> float:
        """The current time between two readings."""
        if self.asked:
            return self.period_s
        return max(self.period_s, min(self.period_s * self.stretch, _SLOWEST_S))

    def _wait(self, due: float) -> float:
        """Sleep until `due` and return it. Deadlines that have already passed are counted and skipped."""
        now = time.monotonic()
        if now > due:
            skipped = int((now - due) / self.pace_s) + 1
            self._missed += skipped
            due += skipped * self.pace_s
        if due - now > _NAP_S:
            self.stop.wait(due - now)
        else:  # Sleeping costs half of waiting for an event.
            time.sleep(due - now)
        return due

    def _read(self, sensor: Sensor) -> None:
        begun = time.monotonic_ns()
        if begun - self._done_ns > (self.period_s + SILENT_S) * 1e9 and self._done_ns and None not in self._open:
            self._gap(None, self._t_ns, "the sampler did not run: its process was stopped, or the machine was too busy")
        self.since_ns = begun
        try:
            values = sensor.read()
            if len(values) != len(self.channels):
                raise SensorError(f"it returns {len(values)} values for {len(self.channels)} channels")
        except Exception as error:  # A plug-in may raise anything. This source is lost; the others go on.
            self._lose(begun, str(error) or type(error).__name__)
            return
        finally:
            self.since_ns = None
            self._done_ns = time.monotonic_ns()
        took = self._done_ns - begun
        self._count += 1
        self._wall_ns += took
        self._max_ns = max(self._max_ns, took)
        self._keep(begun + took // 2, values)

    def _keep(self, t_ns: int, values: Any) -> None:
        self._end_gap(None, t_ns)
        row = [self._number(position, t_ns, value) for position, value in enumerate(values)]
        self._t_ns = t_ns
        self.readings.append(Reading(self.number, t_ns, self._pack(*row)))

    def _number(self, position: int, t_ns: int, value: Value) -> float:
        """The number to store: counters without wraps, NaN for a missing value."""
        if isinstance(value, str) or not math.isfinite(value):
            if position not in self._open:
                self._gap(position, t_ns, str(value))
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
            self._gap(position, self._t_ns, "the counter was reset: what it counted in between is unknown")
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

    def _gap(self, channel: int | None, from_ns: int, reason: str) -> None:
        gap = self._open[channel] = Gap(next(self.numbers), self.number, channel, from_ns, None, reason)
        self.gaps.append(gap)

    def _end_gap(self, channel: int | None, t_ns: int) -> None:
        gap = self._open.pop(channel, None)
        if gap is not None:
            self.gaps.append(Gap(gap.id, gap.source, gap.channel, gap.from_ns, t_ns, gap.reason))

    def _lose(self, t_ns: int, reason: str) -> None:
        assert self.sensor is not None
        with contextlib.suppress(Exception):
            self.sensor.close()
        self.sensor = None
        if None not in self._open:
            self._gap(None, self._t_ns or t_ns, reason)

    def _revive(self) -> bool:
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

    # ── called by the thread that writes ──────────────────────────────────────────────────

    def silent(self) -> Gap | None:
        """Begin a gap if the current reading takes too long. The next reading ends the gap."""
        since = self.since_ns
        if since is None or None in self._open or time.monotonic_ns() - since < SILENT_S * 1e9:
            return None
        self._gap(None, since, "it does not answer")
        return self._open.get(None)

    def cost(self) -> Cost:
        updates = tuple(statistics.median(c) * 1e-9 if len(c) > 2 else None for c in map(list, self._changes))
        return Cost(
            self.number,
            self._count,
            self._missed,
            self._wall_ns * 1e-9,
            self._max_ns * 1e-9,
            self._cpu_ns * 1e-9,
            updates,
        )


def _quickest(sensor: Sensor) -> float:
    """The shortest of three readings; the first ones are slower than usual."""
    times = []
    for _ in range(3):
        begun = time.monotonic()
        sensor.read()
        times.append(time.monotonic() - begun)
    return min(times)

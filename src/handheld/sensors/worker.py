"""A thread that reads one source repeatedly. Readings and gaps wait in its track for the thread that writes them."""

from __future__ import annotations

import threading
import time

from handheld.sensors.base import Sensor, Where
from handheld.sensors.sink import Cost, Gap
from handheld.sensors.track import SILENT_S, Track

RETRY_S, RETRY_MOST_S = 0.25, 4.0  # the first and the longest wait before a lost sensor is looked for again; it doubles
_NAP_S = 0.05  # shorter waits need not be interruptible
_BUSY = 0.5  # readings of one source take at most this share of the time
_SLOWEST_S = 0.25  # stretching never makes a period longer than this


class Worker(threading.Thread):
    """Reads one source until `stop` is set."""

    def __init__(self, number: int, source: type[Sensor], where: Where, period_s: float | None) -> None:
        super().__init__(name=source.name, daemon=True)
        self.number, self.source = number, source
        self.track = Track(number, source, where)
        assert self.track.sensor is not None
        self.channels, self.readings, self.gaps = self.track.channels, self.track.readings, self.track.gaps
        self.takes_s = _quickest(self.track.sensor)
        self.period_s = max(period_s or self.track.sensor.period_s, self.takes_s / _BUSY)
        self.asked = period_s is not None  # The user set this period: it is never stretched.
        self.stretch = 1.0  # the factor for the period, set by child.Pace
        self.stop = threading.Event()
        self.once_more = False  # whether to read a last time before it ends
        self.since_ns: int | None = None  # when the current reading began, if one is under way
        self._count = self._missed = self._wall_ns = self._max_ns = self._cpu_ns = 0
        self._done_ns = 0  # when the last reading was complete

    # ── the thread ────────────────────────────────────────────────────────────────────────

    def run(self) -> None:
        retry = RETRY_S
        due = time.monotonic()
        while not self.stop.is_set():
            if self.track.sensor is None:
                if self.stop.wait(retry):
                    break
                retry = RETRY_S if self.track.revive() else min(2 * retry, RETRY_MOST_S)
                due = time.monotonic()
                continue
            self._read()
            self._cpu_ns = time.thread_time_ns()
            due = self._wait(due + self.pace_s)
        if self.track.sensor is not None and self.once_more:
            self._read()  # So that all measured time lies between two readings.
        if self.track.sensor is not None:
            self.track.sensor.close()

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

    def _read(self) -> None:
        track, begun = self.track, time.monotonic_ns()
        if begun - self._done_ns > (self.period_s + SILENT_S) * 1e9 and self._done_ns and not track.lost:
            reason = "the sampler did not run: its process was stopped, or the machine was too busy"
            track.gap(None, track.t_ns, reason)
        self.since_ns = begun
        try:
            values = track.values()
        except Exception as error:  # A plug-in may raise anything. This source is lost; the others go on.
            track.lose(begun, str(error) or type(error).__name__)
            return
        finally:
            self.since_ns = None
            self._done_ns = time.monotonic_ns()
        took = self._done_ns - begun
        self._count += 1
        self._wall_ns += took
        self._max_ns = max(self._max_ns, took)
        track.keep(begun + took // 2, values)

    # ── called by the thread that writes ──────────────────────────────────────────────────

    def silent(self) -> Gap | None:
        """Begin a gap if the current reading takes too long. The next reading ends the gap."""
        since = self.since_ns
        if since is None or self.track.lost or time.monotonic_ns() - since < SILENT_S * 1e9:
            return None
        return self.track.gap(None, since, "it does not answer")

    def cost(self) -> Cost:
        return Cost(
            self.number,
            self._count,
            self._missed,
            self._wall_ns * 1e-9,
            self._max_ns * 1e-9,
            self._cpu_ns * 1e-9,
            self.track.updates_s(),
        )


def _quickest(sensor: Sensor) -> float:
    """The shortest of three readings; the first ones are slower than usual."""
    times = []
    for _ in range(3):
        begun = time.monotonic()
        sensor.read()
        times.append(time.monotonic() - begun)
    return min(times)

"""Turns what the sampler of a target read into readings, with the same sources as on this machine.

    Machine.samples ──►  records: id, length, time, content
                           │ Replay: the content becomes that of the mirrored file
                           ▼
                         Sensor.read, once all files of the source have their content of that moment
                           │ Track: counters without wraps, gaps
                           ▼
                         the sink (TargetSampler: a thread that asks four times per second)

Times are by the target's CLOCK_MONOTONIC. If the connection is lost, what was asked for before is in the sink.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from handheld.errors import DeviceError, SensorError
from handheld.sensors.base import Sensor
from handheld.sensors.child import WRITE_S, Writer
from handheld.sensors.files import File
from handheld.sensors.mirror import Mirror, Wanted
from handheld.sensors.sampler import SourceSummary, Summary
from handheld.sensors.sink import Cost, Gap, Sink
from handheld.sensors.track import SILENT_S
from handheld.sensors.wire import SAME, STATUS, UNREADABLE, records
from handheld.sensors.worker import RETRY_MOST_S, RETRY_S

_TOTALS, _FIGURES = 4, 6  # numbers of a status: in all, and per source
_LEAST_BYTES = 4096
_DROPPED = "readings were lost: the target had no room for them until they were fetched"


@dataclass(frozen=True)
class Status:
    """What sampling on the target has cost so far."""

    elapsed_s: float = 0.0
    cpu_s: float = 0.0
    dropped: int = 0
    stretch: float = 1.0
    #: number of a source -> readings, missed deadlines, seconds spent, longest, processor seconds
    sources: Mapping[int, tuple[int, int, float, float, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, content: bytes) -> Status:
        numbers = struct.unpack(f"<{len(content) // 8}q", content)
        rows = [numbers[i : i + _FIGURES] for i in range(_TOTALS, len(numbers), _FIGURES)]
        return cls(
            numbers[0] * 1e-9,
            numbers[1] * 1e-9,
            numbers[2],
            numbers[3] * 1e-3,
            {
                number: (readings, missed, wall * 1e-9, longest * 1e-9, cpu * 1e-9)
                for number, readings, missed, wall, longest, cpu in rows
            },
        )


class Replayed:
    """One source of a target."""

    def __init__(self, number: int, source: type[Sensor], mirror: Mirror, period_s: float | None) -> None:
        self.number, self.mirror = number, mirror
        self.track, self.files = mirror.tracked(number, source)
        assert self.track.sensor is not None
        self.period_s = period_s or self.track.sensor.period_s
        self.readings, self.gaps = self.track.readings, self.track.gaps
        self.status = Status()
        self._begun_ns = 0  # when the first file of the reading under way was read
        self._retry_s, self._retry_ns = RETRY_S, 0

    def wanted(self) -> list[Wanted]:
        return [
            Wanted(
                self.number << 16 | i,
                self.mirror.where.shown(file.path),
                max(round(self.period_s * 1e6), 1),
                _most_bytes(file),
            )
            for i, file in enumerate(self.files)
        ]

    def read(self, position: int, t_ns: int) -> None:
        """The file with this position has its content of this time. With the last file, the reading is complete."""
        if position == 0:
            self._begun_ns = t_ns
        if position == len(self.files) - 1:
            self._complete((self._begun_ns or t_ns) + (t_ns - (self._begun_ns or t_ns)) // 2)
            self._begun_ns = 0

    def _complete(self, t_ns: int) -> None:
        track = self.track
        if track.sensor is None and not self._revived(t_ns):
            return
        if track.t_ns and t_ns - track.t_ns > (self.period_s + SILENT_S) * 1e9 and not track.lost:
            track.gap(None, track.t_ns, "the sampler did not run: it was stopped, or the target was too busy")
        try:
            values = track.values()
        except Exception as error:  # A plug-in may raise anything. This source is lost; the others go on.
            track.lose(t_ns, self.mirror.shown(str(error) or type(error).__name__))
            self._retry_s, self._retry_ns = RETRY_S, t_ns
            return
        track.keep(t_ns, [self.mirror.shown(value) if isinstance(value, str) else value for value in values])

    def _revived(self, t_ns: int) -> bool:
        if t_ns - self._retry_ns < self._retry_s * 1e9:
            return False
        self._retry_s, self._retry_ns = min(2 * self._retry_s, RETRY_MOST_S), t_ns
        return self.track.revive()

    def dropped(self) -> None:
        """Readings of some sources were dropped since the last one of this source."""
        if self.track.t_ns and not self.track.lost:
            self.track.gap(None, self.track.t_ns, _DROPPED)

    def silent(self) -> Gap | None:
        return None

    def cost(self) -> Cost:
        readings, missed, wall_s, max_s, cpu_s = self.status.sources.get(self.number, (0, 0, 0.0, 0.0, 0.0))
        return Cost(self.number, readings, missed, wall_s, max_s, cpu_s, self.track.updates_s())


def _most_bytes(file: File) -> int:
    """How much of a file is to be read: numbers grow, and what is not needed stays on the target."""
    try:
        needed = len(file.text())
    except OSError:
        needed = 0
    return max(needed * 5 // 4 + 256, 256 if file.until else _LEAST_BYTES)


class Replay:
    """All sources of a target. `feed` takes what its sampler read."""

    def __init__(self, mirror: Mirror, sources: Iterable[type[Sensor]], periods_s: Mapping[str, float]) -> None:
        self.mirror = mirror
        self.sources = [
            Replayed(number, source, mirror, periods_s.get(source.name)) for number, source in enumerate(sources)
        ]
        self.status = Status()

    def wanted(self) -> list[Wanted]:
        return [wanted for source in self.sources for wanted in source.wanted()]

    def feed(self, data: bytes) -> None:
        for number, length, t_ns, content in records(data):
            if number == STATUS:
                self._report(Status.of(content))
                continue
            source, position = self.sources[number >> 16], number & 0xFFFF
            if length != SAME:
                path = self.mirror.where.shown(source.files[position].path)
                self.mirror.set(path, content, readable=not length & UNREADABLE)
            source.read(position, t_ns)

    def _report(self, status: Status) -> None:
        lost = status.dropped > self.status.dropped
        self.status = status
        for source in self.sources:
            source.status = status
            if lost:
                source.dropped()


class TargetSampler:
    """Samples the sensors of a target into a sink from `__enter__` to `__exit__`, as `Sampler` does here."""

    def __init__(
        self, mirror: Mirror, sources: Iterable[type[Sensor]], sink: Sink, periods_s: Mapping[str, float] | None = None
    ) -> None:
        self.replay = Replay(mirror, sources, periods_s or {})
        self.machine, self.sink = mirror.machine, sink
        self.problem = ""
        self._writer = Writer(sink, self.replay.sources)
        self._ready, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"sampler of {self.machine.name}", daemon=True)

    def __enter__(self) -> TargetSampler:
        self._thread.start()
        self._ready.wait()
        if self.problem:
            self._thread.join()
            raise SensorError(f"the sampler does not start: {self.problem}")
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def summary(self) -> Summary:
        """What was done so far; after the end, in total."""
        status = self.replay.status
        elapsed = max(status.elapsed_s, 1e-9)
        return Summary(
            status.elapsed_s,
            status.cpu_s / elapsed,
            status.stretch,
            self._writer.gap_count,
            self._writer.lost + status.dropped,
            self.problem or self._writer.problem,
            tuple(_summary(source, elapsed) for source in self.replay.sources),
        )

    def _work(self) -> None:
        try:
            self._begin()
        except (SensorError, DeviceError) as error:
            self.problem = str(error)
            return
        finally:
            self._ready.set()
        try:
            while not self._stop.wait(WRITE_S):
                self.replay.feed(self.machine.samples())
                self._writer.write()
            self.replay.feed(self.machine.stop_sampling())
        except (SensorError, DeviceError) as error:  # What was fetched before is kept.
            self.problem = f"no more sensor readings: {error}"
        self._writer.write()
        self.sink.close()

    def _begin(self) -> None:
        self.sink.open()
        for source in self.replay.sources:
            kind = source.track.source
            self.sink.source(source.number, kind.name, kind.about, source.period_s, source.track.channels)
        self.machine.sample(self.replay.wanted())


def _summary(source: Replayed, elapsed_s: float) -> SourceSummary:
    cost = source.cost()
    names = [channel.name for channel in source.track.channels]
    return SourceSummary(
        source.track.source.name,
        source.period_s,
        cost.readings,
        cost.missed,
        cost.wall_s / max(cost.readings, 1),
        cost.max_s,
        cost.cpu_s / elapsed_s,
        {name: s for name, s in zip(names, cost.updates_s, strict=True) if s is not None},
    )

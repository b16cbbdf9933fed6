"""The sampler's process: `python -m handheld.sensors.child`, started by sampler.py.

    stdin   first line: what to sample (JSON); then `summary` lines; its end is the signal to stop
    stdout  a JSON line when it is ready or cannot be, and one for each `summary`

One thread a source, so that a slow or hanging one holds up no other; the first thread writes what
they have read, four times a second. It ends with its parent, however that ends: the pipe closes,
the kernel sends the death signal, and the parent's number is looked at besides (a forked
grandchild may hold the pipe open).
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import importlib
import io
import itertools
import json
import math
import os
import select
import signal
import statistics
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

from handheld.errors import HandheldError
from handheld.sensors.base import Sensor, Value, Where
from handheld.sensors.counters import Rising
from handheld.sensors.sink import Cost, Gap, Reading, Sink

WRITE_S = 0.25  # between two writes
RETRY_S, RETRY_MOST_S = 0.25, 4.0  # before a lost sensor is looked for again, doubling
SILENT_S = 2.0  # after which a reading that has not come back is a gap
KEPT = 200_000  # readings held in memory while the sink refuses them
_UPDATES = 256  # intervals between values that are kept to tell how often a channel changes
_NAP_S = 0.05  # a wait that need not be interrupted to end
_BUSY = 0.5  # a source is read at most for this share of the time
_PR_SET_PDEATHSIG = 1


class Worker(threading.Thread):
    """Reads one source until told to stop."""

    numbers = itertools.count(1)  # of gaps, over all workers

    def __init__(self, number: int, source: type[Sensor], where: Where, period_s: float | None
                 ) -> None:
        super().__init__(name=source.name, daemon=True)
        self.number, self.source, self.where = number, source, where
        self.sensor: Sensor | None = source.probe(where)
        self.channels = self.sensor.channels
        begun = time.monotonic()
        self.sensor.read()
        self.period_s = max(period_s or self.sensor.period_s, (time.monotonic() - begun) / _BUSY)
        self.readings: collections.deque[Reading] = collections.deque()
        self.gaps: collections.deque[Gap] = collections.deque()
        self.stop = threading.Event()
        self.since_ns: int | None = None  # when the reading now under way began
        self._count = self._missed = self._wall_ns = self._max_ns = self._cpu_ns = 0
        self._pack = struct.Struct(f"<{len(self.channels)}d").pack
        self._open: dict[int | None, Gap] = {}  # by channel; None is the whole source
        self._rising = [Rising(channel) if channel.counter else None for channel in self.channels]
        self._last: list[tuple[float, int] | None] = [None] * len(self.channels)
        self._changes: list[list[int]] = [[] for _ in self.channels]
        self._t_ns = 0

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
            due = self._wait(due + self.period_s)
        if self.sensor is not None:
            self.sensor.close()

    def _wait(self, due: float) -> float:
        """Sleeps until it is due; deadlines that are over already are counted, not made up for."""
        now = time.monotonic()
        if now > due:
            skipped = int((now - due) / self.period_s) + 1
            self._missed += skipped
            due += skipped * self.period_s
            if skipped * self.period_s > SILENT_S:
                self._gap(None, self._t_ns, "the sampler was not running (a suspended machine, or "
                          "a stopped process)")
        if due - now > _NAP_S:
            self.stop.wait(due - now)
        else:  # half the cost of waiting for an event
            time.sleep(due - now)
        return due

    def _read(self, sensor: Sensor) -> None:
        begun = self.since_ns = time.monotonic_ns()
        try:
            values = sensor.read()
            if len(values) != len(self.channels):
                raise HandheldError(f"it gives {len(values)} values for {len(self.channels)} "
                                    "channels")
        except Exception as error:  # a plug-in's too: this source is lost, the others go on
            self._lose(begun, str(error) or type(error).__name__)
            return
        finally:
            self.since_ns = None
        took = time.monotonic_ns() - begun
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
        """The value to keep: of a counter without its wraps, NaN for a missing one."""
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
        made = rising.add(t_ns * 1e-9, value)
        if rising.lost != lost:
            self._gap(position, self._t_ns, "the counter was set anew: what it counted in between "
                      "is not known")
            self._end_gap(position, t_ns)
        return made

    def _changed(self, position: int, t_ns: int, value: float) -> None:
        last, changes = self._last[position], self._changes[position]
        if last is None:
            self._last[position] = (value, 0)  # nobody knows since when it has been that
        elif last[0] != value:
            if last[1] and len(changes) < _UPDATES:
                changes.append(t_ns - last[1])
            self._last[position] = (value, t_ns)

    def _gap(self, channel: int | None, from_ns: int, reason: str) -> None:
        gap = self._open[channel] = Gap(next(self.numbers), self.number, channel, from_ns, None,
                                        reason)
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
        """Looks for the sensor again."""
        try:
            found = self.source.probe(self.where)
        except Exception:  # still not here, for whatever reason: the gap has the first one
            return False
        if [one.name for one in found.channels] != [one.name for one in self.channels]:
            found.close()  # another device in its place: its numbers are not this source's
            return False
        self.sensor = found
        return True

    # ── from the thread that writes ───────────────────────────────────────────────────────

    def silent(self) -> Gap | None:
        """A gap for a reading that has not come back, which the next reading closes."""
        since = self.since_ns
        if since is None or None in self._open or time.monotonic_ns() - since < SILENT_S * 1e9:
            return None
        self._gap(None, since, "it does not answer")
        return self._open.get(None)

    def cost(self) -> Cost:
        updates = tuple(statistics.median(c) * 1e-9 if len(c) > 2 else None
                        for c in map(list, self._changes))
        return Cost(self.number, self._count, self._missed, self._wall_ns * 1e-9,
                    self._max_ns * 1e-9, self._cpu_ns * 1e-9, updates)


class Writer:
    """Takes what the workers have read to the sink; keeps it while the sink refuses."""

    def __init__(self, sink: Sink, workers: list[Worker]) -> None:
        self.sink, self.workers = sink, workers
        self.problem = ""
        self.lost = self.gap_count = 0
        self._readings: list[Reading] = []
        self._gaps: dict[int, Gap] = {}
        self._seen: set[int] = set()

    def write(self) -> None:
        for worker in self.workers:
            worker.silent()
            self._readings += _drained(worker.readings)
            for gap in _drained(worker.gaps):
                self._gaps[gap.id] = gap
                self._seen.add(gap.id)
        self.gap_count = len(self._seen)
        try:
            self.sink.write(self._readings, self._gaps.values(),
                            [worker.cost() for worker in self.workers])
        except Exception as error:  # a full disk, say: it may get better
            self.problem = f"{self.sink.path} could not be written: {error}"
            self.lost += max(0, len(self._readings) - KEPT)
            del self._readings[:-KEPT]
            return
        self._readings.clear()
        self._gaps.clear()


def _drained(queue: collections.deque[Any]) -> list[Any]:
    return [queue.popleft() for _ in range(len(queue))]


def summary(writer: Writer, begun: float, cpu_s: float) -> dict[str, Any]:
    """What was read since `begun`, when this process had had `cpu_s`, and what that has taken."""
    elapsed = time.monotonic() - begun
    sources = []
    for worker in writer.workers:
        cost = worker.cost()
        names = [channel.name for channel in worker.channels]
        sources.append({
            "name": worker.source.name, "period_s": worker.period_s, "readings": cost.readings,
            "missed": cost.missed, "mean_s": cost.wall_s / max(cost.readings, 1),
            "max_s": cost.max_s, "cpu_share": cost.cpu_s / elapsed,
            "updates_s": {name: s for name, s in zip(names, cost.updates_s) if s is not None}})
    return {"elapsed_s": elapsed, "cpu_share": (time.process_time() - cpu_s) / elapsed,
            "gaps": writer.gap_count, "lost": writer.lost, "problem": writer.problem,
            "sources": sources}


def die_with(parent: int, stop: threading.Event) -> None:
    """Asks the kernel for a signal at the parent's death, and ends if that has happened already.

    The signal also comes when only the thread that started us ends: the parent's number tells.
    """
    def heard(*_: object) -> None:
        if os.getppid() != parent:
            stop.set()

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent: it will say
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGUSR1, heard)
    with contextlib.suppress(OSError, AttributeError):  # other systems have the pipe alone
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGUSR1)
    heard()


def load(name: str) -> Any:
    """`package.module:Class`"""
    module, _, attribute = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found


def prepare(job: dict[str, Any]) -> Writer:
    sys.path += [path for path in job["sys_path"] if path not in sys.path]
    where = Where(Path(job["root"]), job["pid"])
    sink: Sink = load(job["sink"])(job["path"])
    workers = [Worker(number, load(one["class"]), where, one["period_s"])
               for number, one in enumerate(job["sensors"])]
    sink.open()
    for worker in workers:
        sink.source(worker.number, worker.source.name, worker.source.about, worker.period_s,
                    worker.channels)
    return Writer(sink, workers)


def say(message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # a parent that is gone does not listen
        os.write(1, (json.dumps(message) + "\n").encode())


def main() -> None:
    stop = threading.Event()
    # unbuffered: what follows is waited for
    job = json.loads(io.FileIO(0, closefd=False).readline())
    die_with(job["parent"], stop)
    sys.setswitchinterval(5e-4)  # a reader need not wait 5 ms for the one that packs
    try:
        writer = prepare(job)
    except Exception as error:
        say({"error": str(error) or type(error).__name__})
        return
    begun, cpu_s = time.monotonic(), time.process_time()
    for worker in writer.workers:
        worker.start()
    say({"ready": [{"name": worker.source.name, "period_s": worker.period_s}
                   for worker in writer.workers]})
    while not stop.is_set() and os.getppid() == job["parent"]:
        if select.select([0], [], [], WRITE_S)[0]:
            line = os.read(0, 4096)
            if not line:
                break
            writer.write()
            say(summary(writer, begun, cpu_s))
        writer.write()
    for worker in writer.workers:
        worker.stop.set()
    for worker in writer.workers:
        worker.join(0.5)
    writer.write()
    say(summary(writer, begun, cpu_s))
    writer.sink.close()
    os._exit(0)  # a thread that hangs in a driver would keep the interpreter


if __name__ == "__main__":
    main()

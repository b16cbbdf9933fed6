"""The main program of the sampler's process: `python -m handheld.sensors.child`, started by sampler.py.

The first message says what to sample; the process answers that it is ready, or why not. Each later message asks for
a summary, and gets one. When no more messages can come, the process stops.

Each source is read by its own thread, so a slow or hanging source does not delay the others. The main thread writes
the readings four times per second. The process may use at most SHARE of the machine's processors; if it needs more,
sources are read less often than their periods say. The process ends with its parent, however the parent ends: the
pipe closes, the kernel sends a signal, and the parent's process id is checked too (a forked grandchild may hold the
pipe open). Everything that was read until then is written first.
"""

from __future__ import annotations

import collections
import importlib
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from handheld.child import Message, Parent
from handheld.sensors.base import Where
from handheld.sensors.sink import Cost, Gap, Reading, Sink
from handheld.sensors.worker import Worker

WRITE_S = 0.25  # time between two writes
SHARE = 0.01  # the share of all processors that sampling may use
MOST = 10.0  # the largest factor by which a period is stretched
LOOK_S = 1.0  # time between two checks of the processor time used
KEPT = 200_000  # readings kept in memory while the sink fails

S = TypeVar("S", bound="Source")


class Source(Protocol):
    """Where readings and gaps wait to be written: a `Worker`, or the replay of a target's source."""

    readings: collections.deque[Reading]
    gaps: collections.deque[Gap]

    def silent(self) -> Gap | None: ...

    def cost(self) -> Cost: ...


class Writer(Generic[S]):
    """Moves readings from the workers to the sink, and keeps them in memory while the sink fails."""

    def __init__(self, sink: Sink, workers: list[S]) -> None:
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
            self.sink.write(self._readings, self._gaps.values(), [worker.cost() for worker in self.workers])
        except Exception as error:  # The next write may succeed, for example when a full disk has space again.
            self.problem = f"{self.sink.path} could not be written: {error}"
            self.lost += max(0, len(self._readings) - KEPT)
            del self._readings[:-KEPT]
            return
        self._readings.clear()
        self._gaps.clear()


class Pace:
    """Stretches the periods of all sources so that sampling stays within SHARE."""

    def __init__(self, workers: list[Worker]) -> None:
        self.workers = workers
        self.share = (
            SHARE * len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else SHARE * (os.cpu_count() or 1)
        )
        self.stretch = 1.0
        self._set(sum(worker.takes_s / worker.period_s for worker in workers) / self.share)
        self._seen = time.monotonic(), time.process_time()
        self._awake_s = self._cpu_s = 0.0  # since the last check

    def _set(self, stretch: float) -> None:
        self.stretch = min(max(stretch, 1.0), MOST)
        for worker in self.workers:
            worker.stretch = self.stretch

    def keep(self) -> None:
        """Adjust the factor every LOOK_S; called at every write. Time in which the process was stopped or the machine
        slept is not counted."""
        now, cpu = time.monotonic(), time.process_time()
        if now - self._seen[0] < 2 * WRITE_S:
            self._awake_s += now - self._seen[0]
            self._cpu_s += cpu - self._seen[1]
        self._seen = now, cpu
        if self._awake_s >= LOOK_S:
            self._set(self.stretch * self._cpu_s / self._awake_s / self.share)
            self._awake_s = self._cpu_s = 0.0


def _drained(queue: collections.deque[Any]) -> list[Any]:
    return [queue.popleft() for _ in range(len(queue))]


def summary(writer: Writer[Worker], pace: Pace, begun: float, cpu_s: float) -> Message:
    """What was read since `begun` and what it cost. `cpu_s` is this process's processor time at `begun`."""
    elapsed = time.monotonic() - begun
    sources = []
    for worker in writer.workers:
        cost = worker.cost()
        names = [channel.name for channel in worker.channels]
        sources.append(
            {
                "name": worker.source.name,
                "period_s": worker.period_s,
                "readings": cost.readings,
                "missed": cost.missed,
                "mean_s": cost.wall_s / max(cost.readings, 1),
                "max_s": cost.max_s,
                "cpu_share": cost.cpu_s / elapsed,
                "updates_s": {name: s for name, s in zip(names, cost.updates_s, strict=True) if s is not None},
            }
        )
    return {
        "elapsed_s": elapsed,
        "cpu_share": (time.process_time() - cpu_s) / elapsed,
        "stretch": pace.stretch,
        "gaps": writer.gap_count,
        "lost": writer.lost,
        "problem": writer.problem,
        "sources": sources,
    }


def load(name: str) -> Any:
    """Import a class by a name of the form `package.module:Class`."""
    module, _, attribute = name.partition(":")
    value: Any = importlib.import_module(module)
    for part in attribute.split("."):
        value = getattr(value, part)
    return value


def prepare(job: Message) -> Writer[Worker]:
    where = Where(Path(job["root"]), job["pid"])
    sink: Sink = load(job["sink"])(job["path"])
    workers = [
        Worker(number, load(spec["class"]), where, spec["period_s"]) for number, spec in enumerate(job["sensors"])
    ]
    sink.open()
    for worker in workers:
        sink.source(worker.number, worker.source.name, worker.source.about, worker.period_s, worker.channels)
    return Writer(sink, workers)


def main() -> None:
    stop = threading.Event()
    parent = Parent(on_death=stop.set)
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    sys.setswitchinterval(5e-4)  # With the default of 5 ms a reader could wait too long for the thread that writes.
    job = parent.receive()
    if job is None:
        return
    try:
        writer = prepare(job)
    except Exception as error:
        parent.send({"error": str(error) or type(error).__name__})
        return
    begun, cpu_s = time.monotonic(), time.process_time()
    pace = Pace(writer.workers)
    for worker in writer.workers:
        worker.start()
    parent.send({"ready": [{"name": worker.source.name, "period_s": worker.period_s} for worker in writer.workers]})
    while not stop.is_set() and parent.alive:
        try:
            if parent.receive(WRITE_S) is None:
                break
            writer.write()
            parent.send(summary(writer, pace, begun, cpu_s))
        except TimeoutError:
            pass
        writer.write()
        pace.keep()
    alive = parent.alive  # If the parent is gone, a last reading would have nothing to measure.
    for worker in writer.workers:
        worker.once_more = alive
        worker.stop.set()
    for worker in writer.workers:
        worker.join(0.5)
    writer.write()
    parent.send(summary(writer, pace, begun, cpu_s))
    writer.sink.close()
    os._exit(0)  # A thread that hangs in a driver would keep the interpreter from ending.


if __name__ == "__main__":
    main()

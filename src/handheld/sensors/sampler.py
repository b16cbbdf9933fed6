"""Reads sensors from another process while something else runs.

    with Sampler(available(), "run.samples") as sampler:
        train()
    print(sampler.summary())
    t_s, watts = Samples("run.samples").series("nvidia-power", "gpu0 power")

Times are CLOCK_MONOTONIC (`time.monotonic()`), the same in every process of a machine.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from handheld.child import Child, Message, python_module
from handheld.errors import SensorError
from handheld.sensors.base import Sensor, Where
from handheld.sensors.sink import Sink, SqliteSink

_START_S, _ANSWER_S, _END_S = 60.0, 10.0, 10.0  # patience, in seconds


@dataclass(frozen=True)
class SourceSummary:
    """What one source did."""

    name: str
    period_s: float
    readings: int
    missed: int  # deadlines that passed without a reading
    mean_s: float  # a reading took
    max_s: float
    cpu_share: float  # of one core, by this source's thread
    updates_s: dict[str, float]  # by channel: the median time between two values


@dataclass(frozen=True)
class Summary:
    """What a sampler did and what that took."""

    elapsed_s: float
    cpu_share: float  # of one core, by the whole process once it has started
    stretch: float  # how much longer than their periods sources waited at the end
    gaps: int
    lost: int  # readings that could not be written
    problem: str  # empty, or what went wrong
    sources: tuple[SourceSummary, ...]


class Sampler:
    """Samples sensors into a sink from `__enter__` to `__exit__`.

    Each sensor is read at its own period, or at the one that `periods_s` gives for its name. A
    sensor that stops answering is a gap and is looked for again. The process ends with this one,
    and what it had read by then is in the sink.
    """

    def __init__(
        self,
        sensors: Iterable[Sensor | type[Sensor]],
        sink: Sink | str | Path,
        periods_s: Mapping[str, float] | None = None,
        where: Where | None = None,
    ) -> None:
        self.sink: Sink = SqliteSink(str(sink)) if isinstance(sink, (str, Path)) else sink
        self.where = where or Where()
        self.sources = [one if isinstance(one, type) else type(one) for one in sensors]
        self.periods_s = dict(periods_s or {})
        self._child: Child | None = None
        self._summary: Summary | None = None
        unknown = set(self.periods_s) - {one.name for one in self.sources}
        if unknown:
            raise SensorError(f"a period is given for {', '.join(sorted(unknown))}, which is not among the sensors")
        if any(period <= 0 for period in self.periods_s.values()):
            raise SensorError("a period is a number of seconds above 0")

    @property
    def pid(self) -> int | None:
        """The sampling process."""
        return None if self._child is None else self._child.pid

    def __enter__(self) -> Sampler:
        job = {
            "root": str(self.where.root.absolute()),
            "pid": self.where.pid,
            "sink": _name(type(self.sink)),
            "path": os.path.abspath(self.sink.path),
            "sensors": [{"class": _name(one), "period_s": self.periods_s.get(one.name)} for one in self.sources],
        }
        try:
            self._child = Child(python_module("handheld.sensors.child"))
        except OSError as error:
            raise SensorError(f"the sampler does not start: {sys.executable}: {error.strerror}") from None
        try:
            answer = _ask(self._child, job, _START_S)
            if "error" in answer:
                raise SensorError(f"the sampler does not start: {answer['error']}")
        except BaseException:  # Ctrl-C too: `with` ends only what it has begun
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def summary(self) -> Summary:
        """What has been read so far; after the end, all of it."""
        if self._child is not None:
            self._summary = _summary(_ask(self._child, {"do": "summary"}, _ANSWER_S))
        if self._summary is None:
            raise SensorError("the sampler was never started")
        return self._summary

    def _end(self) -> None:
        """Lets it write what it has; one that does not end is ended."""
        child, self._child = self._child, None
        if child is None:
            return
        child.end_of_messages()
        last: Message | None = None
        with contextlib.suppress(TimeoutError):
            while (answer := child.receive(_END_S)) is not None:
                last = answer
        child.close(patience=_END_S)
        told = last is not None and "sources" in last
        self._summary = _summary(last if last and told else _problem(child))


def _ask(child: Child, message: Message, timeout: float) -> Message:
    child.send(message)
    answer = None
    with contextlib.suppress(TimeoutError):
        answer = child.receive(timeout)
    return answer or _problem(child)


def _problem(child: Child) -> Message:
    return {"error": child.ending(patience=0.5).describe("the sampler's process")}


def _summary(answer: Message) -> Summary:
    if "error" in answer:
        return Summary(0.0, 0.0, 1.0, 0, 0, answer["error"], ())
    return Summary(**{**answer, "sources": tuple(SourceSummary(**one) for one in answer["sources"])})


def _name(found: type) -> str:
    """How another process finds a class."""
    if found.__module__ == "__main__" or "<locals>" in found.__qualname__:
        raise SensorError(
            f"{found.__qualname__} cannot be found by the sampler's process: put it in a module, at the top"
        )
    return f"{found.__module__}:{found.__qualname__}"

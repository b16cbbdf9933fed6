"""Reads sensors from a separate process while the program runs.

    with Sampler(available(), "run.samples") as sampler:
        train()
    print(sampler.summary())
    t_s, watts = Samples("run.samples").series("nvidia-power", "gpu0 power")

Times are by CLOCK_MONOTONIC (`time.monotonic()`), which is the same in every process of a machine.
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

_START_S, _ANSWER_S, _END_S = 60.0, 10.0, 10.0  # how long to wait for the sampler's process


@dataclass(frozen=True)
class SourceSummary:
    """What one source did."""

    name: str
    period_s: float
    readings: int
    missed: int  # deadlines that passed without a reading
    mean_s: float  # mean duration of a reading
    max_s: float
    cpu_share: float  # share of one core used by this source's thread
    updates_s: dict[str, float]  # per channel: the median time between two different values


@dataclass(frozen=True)
class Summary:
    """What a sampler did and what it cost."""

    elapsed_s: float
    cpu_share: float  # share of one core used by the whole process, without its start
    stretch: float  # the factor by which periods were stretched at the end
    gaps: int
    lost: int  # readings that could not be written
    problem: str  # empty, or what went wrong
    sources: tuple[SourceSummary, ...]


class Sampler:
    """Samples sensors into a sink from `__enter__` to `__exit__`.

    Each sensor is read at its own period, or at the period that `periods_s` gives for its name. If a sensor stops
    answering, a gap is recorded and the sensor is looked for again. If this process dies, the sampling process
    writes what it has read and ends too.
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
        self.sources = [sensor if isinstance(sensor, type) else type(sensor) for sensor in sensors]
        self.periods_s = dict(periods_s or {})
        self._child: Child | None = None
        self._summary: Summary | None = None
        unknown = set(self.periods_s) - {source.name for source in self.sources}
        if unknown:
            raise SensorError(f"a period is given for {', '.join(sorted(unknown))}, which is not among the sensors")
        if any(period <= 0 for period in self.periods_s.values()):
            raise SensorError("a period must be a number of seconds above 0")

    @property
    def pid(self) -> int | None:
        """The id of the sampling process, or None if it does not run."""
        return None if self._child is None else self._child.pid

    def __enter__(self) -> Sampler:
        job = {
            "root": str(self.where.root.absolute()),
            "pid": self.where.pid,
            "sink": _name(type(self.sink)),
            "path": os.path.abspath(self.sink.path),
            "sensors": [{"class": _name(type_), "period_s": self.periods_s.get(type_.name)} for type_ in self.sources],
        }
        try:
            self._child = Child(python_module("handheld.sensors.child"), share_path=True)
        except OSError as error:
            raise SensorError(f"the sampler does not start: {sys.executable}: {error.strerror}") from None
        try:
            answer = _ask(self._child, job, _START_S)
            if "error" in answer:
                raise SensorError(f"the sampler does not start: {answer['error']}")
        except BaseException:  # Ctrl-C included: `with` does not call __exit__ if __enter__ fails.
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def summary(self) -> Summary:
        """What was done so far; after the end, in total. Raises SensorError if the sampler was never started."""
        if self._child is not None:
            self._summary = _summary(_ask(self._child, {"do": "summary"}, _ANSWER_S))
        if self._summary is None:
            raise SensorError("the sampler was never started")
        return self._summary

    def _end(self) -> None:
        """Let the process write its last readings and end; kill it if it does not end in time."""
        child, self._child = self._child, None
        if child is None:
            return
        child.end_of_messages()
        last: Message | None = None
        with contextlib.suppress(TimeoutError):
            while (answer := child.receive(_END_S)) is not None:
                last = answer
        child.close(patience=_END_S)
        self._summary = _summary(last if last and "sources" in last else _problem(child))


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
    return Summary(**{**answer, "sources": tuple(SourceSummary(**source) for source in answer["sources"])})


def _name(type_: type) -> str:
    """The name by which another process can import a class."""
    if type_.__module__ == "__main__" or "<locals>" in type_.__qualname__:
        raise SensorError(
            f"the sampler's process cannot import {type_.__qualname__}. Try: define it at the top level of a module"
        )
    return f"{type_.__module__}:{type_.__qualname__}"

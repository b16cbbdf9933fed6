"""Reads sensors from another process while something else runs.

    with Sampler(available(), "run.samples") as sampler:
        train()
    print(sampler.summary())
    t_s, watts = Samples("run.samples").series("nvidia-power", "gpu0 power")

Times are CLOCK_MONOTONIC (`time.monotonic()`), the same in every process of a machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from handheld.errors import SensorError
from handheld.sensors.base import Sensor, Where
from handheld.sensors.sink import Sink, SqliteSink

_START_S, _ANSWER_S, _END_S, _TICK_S = 60.0, 10.0, 10.0, 0.25  # patience, in seconds


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
        self._process: subprocess.Popen[bytes] | None = None
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._said: IO[bytes] | None = None  # what it wrote to its standard error
        self._summary: Summary | None = None
        unknown = set(self.periods_s) - {one.name for one in self.sources}
        if unknown:
            raise SensorError(f"a period is given for {', '.join(sorted(unknown))}, which is not among the sensors")
        if any(period <= 0 for period in self.periods_s.values()):
            raise SensorError("a period is a number of seconds above 0")

    @property
    def pid(self) -> int | None:
        """The sampling process."""
        return None if self._process is None else self._process.pid

    def __enter__(self) -> Sampler:
        job = {
            "parent": os.getpid(),
            "root": str(self.where.root.absolute()),
            "pid": self.where.pid,
            "sys_path": sys.path,
            "sink": _name(type(self.sink)),
            "path": os.path.abspath(self.sink.path),
            "sensors": [{"class": _name(one), "period_s": self.periods_s.get(one.name)} for one in self.sources],
        }
        self._said = tempfile.TemporaryFile()
        try:
            self._process = subprocess.Popen(
                (sys.executable, "-W", "ignore", "-m", "handheld.sensors.child"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                bufsize=0,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        except OSError as error:
            raise SensorError(f"the sampler does not start: {sys.executable}: {error.strerror}") from None
        threading.Thread(target=_pump, args=(self._process.stdout, self._answers), daemon=True).start()
        try:
            answer = self._ask(json.dumps(job), _START_S)
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
        if self._process is not None:
            self._summary = _summary(self._ask("summary", _ANSWER_S))
        if self._summary is None:
            raise SensorError("the sampler was never started")
        return self._summary

    def _ask(self, line: str, timeout: float) -> dict[str, Any]:
        assert self._process is not None and self._process.stdin is not None
        answer = None
        with contextlib.suppress(OSError, queue.Empty):
            self._process.stdin.write(line.encode() + b"\n")
            answer = self._next(timeout)
        if answer is not None:
            return answer
        self._answers.put(None)  # for who asks next
        return {"error": self._how_it_ended(self._process)}

    def _next(self, timeout: float) -> dict[str, Any] | None:
        """What it says next, None at its end. Time in which this process slept does not count."""
        waited = 0.0
        while waited < timeout:
            begun = time.monotonic()
            with contextlib.suppress(queue.Empty):
                return self._answers.get(timeout=_TICK_S)
            waited += min(time.monotonic() - begun, 2 * _TICK_S)
        raise queue.Empty

    def _end(self) -> None:
        """Lets it write what it has; one that does not end is ended."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        last: dict[str, Any] | None = None
        with contextlib.suppress(queue.Empty):
            while (answer := self._next(_END_S)) is not None:
                last = answer
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        told = last is not None and "sources" in last
        self._summary = _summary(last if last and told else {"error": self._how_it_ended(process)})

    def _how_it_ended(self, process: subprocess.Popen[bytes]) -> str:
        assert self._said is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.5)
        code = process.returncode
        how = (
            "it does not answer"
            if code is None
            else f"it was ended by signal {-code}"
            if code < 0
            else f"it ended by itself (code {code})"
        )
        self._said.seek(0)
        last = (self._said.read().decode(errors="replace").strip().splitlines() or [""])[-1]
        return f"the sampler's process: {how}. {last}".strip()


def _summary(answer: dict[str, Any]) -> Summary:
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


def _pump(source: IO[bytes], answers: queue.Queue[dict[str, Any] | None]) -> None:
    with source:
        for line in source:
            with contextlib.suppress(ValueError):
                answers.put(json.loads(line))
    answers.put(None)

"""Measures how much of the cores other processes hold, from the operating system's counters."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

import psutil

from handheld.analyse.busy import Others

LEAST_S = 0.3  # Counters advance in steps of 10 ms, so a shorter time says little.
NAMED = 0.05  # A process is named if it held more than this share of the cores,
LARGE = 0.25  # and more than this share of what all other processes held.

_Process = tuple[int, float]  # the number of a process, and when it began


@dataclass(frozen=True)
class _Reading:
    at: float
    busy_s: float  # of all cores
    own_s: float  # of this process and its descendants
    each: dict[_Process, tuple[str, float]]  # name and seconds of every other process


class Load:
    """The load of other processes since this object was made, or since the last `lap`.

    Both are None if the system does not report it, or if too little time has passed.
    """

    def __init__(self) -> None:
        self._first = self._last = _read()

    def lap(self) -> Others | None:
        before, self._last = self._last, _read()
        return self._between(before, self._last)

    def so_far(self) -> Others | None:
        return self._between(self._first, _read())

    def _between(self, before: _Reading | None, now: _Reading | None) -> Others | None:
        if before is None or now is None or now.at - before.at < LEAST_S:
            return None
        seconds, count = now.at - before.at, os.cpu_count() or 1
        cores = ((now.busy_s - before.busy_s) - (now.own_s - before.own_s)) / seconds
        spent = {
            process: (total - before.each.get(process, (name, 0.0))[1], name)
            for process, (name, total) in now.each.items()
        }
        (number, _), (most, name) = max(spent.items(), key=lambda item: item[1], default=((0, 0.0), (0.0, "")))
        named = most / seconds > max(NAMED * count, LARGE * cores)
        return Others(
            cores=min(max(cores, 0.0), float(count)),
            count=count,
            seconds=seconds,
            top=f"{name}, process {number}" if named else "",
            top_cores=most / seconds if named else 0.0,
        )


def _read() -> _Reading | None:
    try:
        times = psutil.cpu_times()
    except (OSError, RuntimeError, ValueError):  # Android hides the counters from apps.
        return None
    at = time.monotonic()
    busy = sum(getattr(times, part, 0.0) for part in ("user", "nice", "system", "irq", "softirq"))
    own = {process.pid: seconds for process in _own() if (seconds := _seconds(process)) is not None}
    each = {}
    for process in psutil.process_iter():
        if process.pid not in own:
            try:
                used = process.cpu_times()
                each[process.pid, process.create_time()] = (process.name(), used.user + used.system)
            except (psutil.Error, OSError):  # It has ended, or the system hides it.
                continue
    return _Reading(at, busy, sum(own.values()), each)


def _own() -> Iterator[psutil.Process]:
    own = psutil.Process()
    yield own
    try:
        yield from own.children(recursive=True)
    except (psutil.Error, OSError):
        return


def _seconds(process: psutil.Process) -> float | None:
    """The processor time of a process and of its children that have ended."""
    try:
        times = process.cpu_times()
    except (psutil.Error, OSError):
        return None
    ended = getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
    return float(times.user + times.system + ended)

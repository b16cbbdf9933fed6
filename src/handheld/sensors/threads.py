"""The sensor of processor time used by threads that the measured process starts after the sensor was created.

If a process keeps all cores busy, an additional thread does not change the process's total: the other threads only get
less. The time of new threads is therefore counted separately.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from handheld.sensors.base import Channel, Sensor, SensorLost, Unavailable, Value, Where


class ProcessThreads(Sensor):
    name = "process-threads"
    about = "processor time of threads that the process starts"
    period_s = 0.05
    needs = "it lists the folder of the process's threads at every reading"

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._tick = 1.0 / os.sysconf("SC_CLK_TCK")
        self._old = set(os.listdir(folder))
        self._ended = 0.0  # processor time of threads that have ended
        self._last: dict[str, float] = {}
        self.channels = (Channel("started cpu time", "time", counter=True, covers=("process",)),)

    @classmethod
    def probe(cls, where: Where) -> ProcessThreads:
        folder = where.path(f"/proc/{where.pid}/task")
        try:
            return cls(str(folder))
        except FileNotFoundError:
            raise Unavailable(f"there is no {where.shown(folder)}") from None
        except OSError as error:
            raise Unavailable(f"{where.shown(folder)}: {error.strerror}") from None

    def read(self) -> Sequence[Value]:
        try:
            started = set(os.listdir(self._folder)) - self._old
        except OSError as error:
            raise SensorLost(f"{self._folder}: {error.strerror}") from None
        now = {thread: busy for thread in started if (busy := self._busy(thread)) is not None}
        self._ended += sum(busy for thread, busy in self._last.items() if thread not in now)
        self._last = now
        return [self._ended + sum(now.values())]

    def _busy(self, thread: str) -> float | None:
        """The thread's processor time in seconds, or None if it has just ended."""
        try:
            with open(f"{self._folder}/{thread}/stat", "rb", buffering=0) as file:
                words = file.read().rpartition(b")")[2].split()
            return (int(words[11]) + int(words[12])) * self._tick
        except (OSError, ValueError, IndexError):
            return None

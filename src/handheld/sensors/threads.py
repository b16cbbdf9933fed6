"""Processor time of threads that the process under study has started since it was looked at.

A process that keeps all cores busy with its own work shows nothing in its sum when one more thread
takes a share: the threads that work has do less. New threads apart show it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from handheld.sensors.base import Channel, Sensor, SensorLost, Unavailable, Value, Where


class ProcessThreads(Sensor):
    name = "process-threads"
    about = "processor time of threads that the process starts"
    period_s = 0.05

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._tick = 1.0 / os.sysconf("SC_CLK_TCK")
        self._old = set(os.listdir(folder))
        self._ended = 0.0  # what threads had that are gone
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
        """Seconds; None for one that has just ended."""
        try:
            with open(f"{self._folder}/{thread}/stat", "rb", buffering=0) as file:
                words = file.read().rpartition(b")")[2].split()
            return (int(words[11]) + int(words[12])) * self._tick
        except (OSError, ValueError, IndexError):
            return None

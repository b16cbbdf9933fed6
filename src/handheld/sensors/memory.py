"""Sensors of memory: of the measured process and of the whole system."""

from __future__ import annotations

import os
from collections.abc import Sequence

from handheld.sensors.base import Channel, Sensor, SensorLost, Unavailable, Value, Where
from handheld.sensors.files import File, opened

_HINT = "The process belongs to another user. Try: sudo"
_SYSTEM = {"MemAvailable": "available", "MemFree": "free", "Cached": "cached", "SwapFree": "swap free"}
_SHARES = {"Rss": "resident", "Pss": "proportional", "Private_Dirty": "private dirty", "Swap": "swapped"}


class ProcessUse(Sensor):
    """Resident memory and processor time of the process."""

    name = "process"
    about = "resident memory and processor time of the process"
    period_s = 0.01
    files = ("/proc/{pid}/statm", "/proc/{pid}/stat")

    def __init__(self, statm: File, stat: File, page_bytes: int) -> None:
        self._statm, self._stat = statm, stat
        self._page, self._tick = page_bytes, 1.0 / os.sysconf("SC_CLK_TCK")
        self.channels = (
            Channel("resident", "memory", covers=("process",)),
            Channel("shared", "memory", covers=("process",), part_of="resident"),
            Channel("cpu time", "time", counter=True, covers=("process",)),
        )

    @classmethod
    def probe(cls, where: Where) -> ProcessUse:
        statm, stat = (opened(where, f"/proc/{where.pid}/{name}", _HINT) for name in ("statm", "stat"))
        sensor = cls(statm, stat, where.page_bytes)
        try:
            sensor.read()
        except SensorLost as error:
            raise Unavailable(str(error)) from None
        return sensor

    def read(self) -> Sequence[Value]:
        try:
            _, resident, shared = (int(word) for word in self._statm.text().split()[:3])
            # The command's name may contain brackets, so the numbers start after the last bracket.
            words = self._stat.text().rpartition(")")[2].split()
            user, system = int(words[11]), int(words[12])
        except (OSError, ValueError, IndexError) as error:
            raise SensorLost(f"{self._statm.path.parent}: {error}") from None
        return [float(resident * self._page), float(shared * self._page), (user + system) * self._tick]


class _Lines(Sensor):
    """The base of sensors that read lines of the form `Name:  123 kB`."""

    def __init__(self, file: File, names: dict[str, str], covers: str) -> None:
        self._file = file
        sizes = self._lines()
        self._keys = [key for key in names if key in sizes]
        self.channels = tuple(Channel(names[key], "memory", covers=(covers,)) for key in self._keys)
        if not self.channels:
            raise Unavailable(f"{file.path} has none of {', '.join(names)}")

    def _lines(self) -> dict[str, float]:
        sizes = {}
        for line in self._file.text().splitlines():
            key, colon, rest = line.partition(":")
            words = rest.split()
            if colon and len(words) == 2 and words[1] == "kB" and words[0].isdigit():
                sizes[key] = int(words[0]) * 1024.0
        return sizes

    def read(self) -> Sequence[Value]:
        try:
            sizes = self._lines()
        except OSError as error:
            raise SensorLost(f"{self._file.path}: {error.strerror}") from None
        if not sizes:
            raise SensorLost(f"{self._file.path} is empty")
        return [sizes.get(key, f"{self._file.path} has no {key}") for key in self._keys]


class SystemMemory(_Lines):
    name = "memory"
    about = "memory of the system (/proc/meminfo)"
    period_s = 0.05
    files = ("/proc/meminfo",)

    @classmethod
    def probe(cls, where: Where) -> SystemMemory:
        return cls(opened(where, "/proc/meminfo", ""), _SYSTEM, "system")


class ProcessShares(_Lines):
    """Memory of the process by kind. A reading takes milliseconds and holds the process's memory lock, so it is read
    rarely."""

    name = "process-shares"
    about = "memory of the process by kind (smaps_rollup)"
    period_s = 5.0
    files = ("/proc/{pid}/smaps_rollup",)

    @classmethod
    def probe(cls, where: Where) -> ProcessShares:
        return cls(opened(where, f"/proc/{where.pid}/smaps_rollup", _HINT), _SHARES, "process")

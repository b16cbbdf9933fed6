"""The interface of a sensor.

    Where ──Sensor.probe──►  a Sensor, or Unavailable with the reason and what to do
              Sensor.read ──►  one value per channel, or SensorLost if the whole source is gone

A value is a number in the channel's unit. If a channel cannot be read, its value is a text with the reason,
never zero.
"""

from __future__ import annotations

import abc
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from handheld.errors import SensorLost, Unavailable

if TYPE_CHECKING:
    from handheld.sensors.mirror import Contents

__all__ = ["UNITS", "Channel", "Sensor", "SensorLost", "Unavailable", "Value", "Where", "distinct", "natural"]

#: Unit per quantity. All are SI units except °C and %.
UNITS = {
    "power": "W",
    "energy": "J",
    "utilisation": "%",
    "frequency": "Hz",
    "temperature": "°C",
    "memory": "B",
    "time": "s",
    "charge": "C",
}

#: A number in the channel's unit, or the reason why there is none.
Value = float | str


@dataclass(frozen=True)
class Channel:
    """One quantity that a sensor reads over time.

    A counter only rises (joules since a start, seconds that a core was busy); only its difference over a window
    is meaningful. `wraps_at` is the value at which it starts again from zero, or None.
    """

    name: str  # the label that the source gives it, if any: VDD_CPU_GPU_CV, package-0, cpu3
    quantity: str  # a key of UNITS
    counter: bool = False
    covers: tuple[str, ...] = ()  # all parts that it includes: system, cpu, gpu, memory, soc, …
    part_of: str = ""  # a channel of the same source that includes this one: never add the two
    wraps_at: float | None = None

    @property
    def unit(self) -> str:
        return UNITS[self.quantity]


@dataclass(frozen=True)
class Where:
    """Where sensors look: the root folder, and the process whose memory and time are measured.

    On a target, the root is a mirror of its files, and `contents` has what was last read there (mirror.py).
    """

    root: Path = Path("/")
    pid: int = field(default_factory=os.getpid)
    page_bytes: int = field(default_factory=lambda: os.sysconf("SC_PAGE_SIZE"))
    contents: Contents | None = None

    def path(self, path: str) -> Path:
        """An absolute path such as `/sys/class/thermal`, under the root."""
        return self.root / path.lstrip("/")

    def glob(self, pattern: str) -> list[Path]:
        """The matching paths under the root, sorted with numbers in numeric order (cpu2 before cpu10)."""
        return sorted(self.root.glob(pattern.lstrip("/")), key=lambda path: natural(str(path)))

    def shown(self, path: Path) -> str:
        """The path as the device has it, without the root. For messages."""
        try:
            return f"/{path.relative_to(self.root)}"
        except ValueError:
            return str(path)


class Sensor(abc.ABC):
    """A sensor that is present and can be read. A subclass implements `probe`, `read` and, if needed, `close`."""

    name: ClassVar[str]  # short and stable: people and run files use it
    about: ClassVar[str]  # a description in a few words
    period_s: float = 0.01  # the time between two readings, unless the user sets another

    #: The files that `probe` and `read` look at, with `*` and `?` for parts of names and `{pid}` for the process. By
    #: these, the sensor is found and read on a target. Empty if files are not enough; `needs` says what it needs.
    files: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[str] = "it does not say which files it reads (Sensor.files)"

    channels: tuple[Channel, ...] = ()

    @classmethod
    @abc.abstractmethod
    def probe(cls, where: Where) -> Sensor:
        """Return the sensor, ready to be read. Raises Unavailable if it is not present."""

    @abc.abstractmethod
    def read(self) -> Sequence[Value]:
        """Return one value per channel, in the order of `channels`.

        Raises SensorLost or OSError if the sensor is gone.
        """

    def close(self) -> None:  # noqa: B027  Most sensors hold nothing that must be released.
        """Release files and handles."""


def natural(text: str) -> list[tuple[int, int, str]]:
    """A sort key that compares the numbers in a text as numbers."""
    parts, digits = [], ""
    for char in text + "\0":
        if char.isdigit() and char.isascii():
            digits += char
            continue
        if digits:
            parts.append((0, int(digits), ""))
            digits = ""
        parts.append((1, 0, char))
    return parts


def distinct(names: Sequence[str]) -> list[str]:
    """The names, made unique: repeated names get a number (acpitz, acpitz 2)."""
    count: dict[str, int] = {}
    unique = []
    for name in names:
        count[name] = count.get(name, 0) + 1
        unique.append(name if count[name] == 1 else f"{name} {count[name]}")
    return unique

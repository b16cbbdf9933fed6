"""What a source of readings is.

    Where ──Sensor.probe──►  Sensor   or  Unavailable: why not, and what to do
              Sensor.read ──►  a value for every channel, or the reason there is none
                               or  SensorLost: the whole source is gone

A value is a number in the channel's unit, always. What cannot be read is a text that says why: it
never becomes a zero.
"""

from __future__ import annotations

import abc
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from handheld.errors import SensorLost, Unavailable

__all__ = ["UNITS", "Channel", "Sensor", "SensorLost", "Unavailable", "Value", "Where", "distinct", "natural"]

#: what a channel measures → its unit; SI, but for °C and %
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

#: a number in the channel's unit, or the reason there is none
Value = float | str


@dataclass(frozen=True)
class Channel:
    """One line of numbers.

    A counter only rises (joules since some start, seconds that a core was busy): its difference
    over a window is what counts. `wraps_at` is where it starts again from zero, if it does.
    """

    name: str  # the source's own label where it has one: VDD_CPU_GPU_CV, package-0, cpu3
    quantity: str  # a key of UNITS
    counter: bool = False
    covers: tuple[str, ...] = ()  # system, cpu, gpu, memory, soc, …: all that is in it
    part_of: str = ""  # a channel of the same source that has this one in it: never add the two
    wraps_at: float | None = None

    @property
    def unit(self) -> str:
        return UNITS[self.quantity]


@dataclass(frozen=True)
class Where:
    """Where to look: the root folder, and the process whose memory and time are of interest."""

    root: Path = Path("/")
    pid: int = field(default_factory=os.getpid)

    def path(self, path: str) -> Path:
        """`/sys/class/thermal` under the root."""
        return self.root / path.lstrip("/")

    def glob(self, pattern: str) -> list[Path]:
        """What matches under the root, numbers in order (cpu2 before cpu10)."""
        found = self.root.glob(pattern.lstrip("/"))
        return sorted(found, key=lambda path: natural(str(path)))

    def shown(self, path: Path) -> str:
        """A path as it is on the device, not in a test's folder."""
        try:
            return f"/{path.relative_to(self.root)}"
        except ValueError:
            return str(path)


class Sensor(abc.ABC):
    """A source that is here. A subclass is a source's whole code: `probe`, `read`, `close`."""

    name: ClassVar[str]  # short and stable: what people and run files call it
    about: ClassVar[str]  # what it is, in a few words
    period_s: float = 0.01  # how often it is worth reading

    channels: tuple[Channel, ...] = ()

    @classmethod
    @abc.abstractmethod
    def probe(cls, where: Where) -> Sensor:
        """The sensor, ready to be read; Unavailable if it is not here."""

    @abc.abstractmethod
    def read(self) -> Sequence[Value]:
        """A value for each channel, in their order. SensorLost or OSError: it is gone."""

    def close(self) -> None:  # noqa: B027  most have nothing to give back
        """Gives back what it holds."""


def natural(text: str) -> list[tuple[int, int, str]]:
    """A key that sorts the numbers in a text as numbers."""
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
    """Names as they are, those that come again with a number: acpitz, acpitz 2."""
    seen: dict[str, int] = {}
    made = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        made.append(name if seen[name] == 1 else f"{name} {seen[name]}")
    return made

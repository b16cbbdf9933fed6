"""Sensors and sinks that tests control through files under the root folder."""

from __future__ import annotations

import time
from pathlib import Path

from handheld.sensors import Channel, Sensor, SqliteSink, Unavailable, Where


class Steered(Sensor):
    """Reads the file `value`. If there is a file `delay`, the reading takes that many seconds."""

    name = "steered"
    about = "a number from a file"
    period_s = 0.01
    channels = (Channel("number", "power"), Channel("half", "power", part_of="number"))

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def probe(cls, where: Where) -> Steered:
        if not where.path("value").exists():
            raise Unavailable("there is no value")
        return cls(where.root)

    def read(self):
        delay = self.root / "delay"
        if delay.exists():
            time.sleep(float(delay.read_text()))
        text = (self.root / "value").read_text()
        return [float(text), "it is odd" if float(text) % 2 else float(text) / 2]


class Dear(Sensor):
    """Takes 3 ms of a core per reading."""

    name = "dear"
    about = "a number that is hard to come by"
    period_s = 0.01
    channels = (Channel("number", "power"),)

    @classmethod
    def probe(cls, where: Where) -> Dear:
        return cls()

    def read(self):
        end = time.thread_time() + 0.003
        while time.thread_time() < end:
            pass
        return [1.0]


class Broken(Sensor):
    name = "broken"
    about = "a plug-in with a mistake in it"

    @classmethod
    def probe(cls, where: Where) -> Broken:
        raise ZeroDivisionError("of the plug-in")

    def read(self):
        return []


class Refusing(SqliteSink):
    """A sink that is full while a file `full` exists next to it."""

    def write(self, readings, gaps, costs):
        if Path(self.path).with_name("full").exists():
            raise OSError("No space left on device")
        super().write(readings, gaps, costs)


class Lines:
    """The smallest sink: one line per reading."""

    def __init__(self, path: str) -> None:
        self.path = path

    def open(self) -> None:
        self.file = Path(self.path).open("w")  # noqa: SIM115  closed by close

    def source(self, number, name, about, period_s, channels) -> None:
        self.file.write(f"{number} is {name} {len(channels)}\n")

    def write(self, readings, gaps, costs) -> None:
        self.file.writelines(f"{one.source} {one.t_ns} {one.data.hex()}\n" for one in readings)
        self.file.flush()

    def close(self) -> None:
        self.file.close()

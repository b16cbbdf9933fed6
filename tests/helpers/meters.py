"""Sensors for tests: a meter whose joules follow from the work of the process."""

from __future__ import annotations

import time
from collections.abc import Sequence

from handheld.sensors.base import Channel, Sensor, Unavailable, Value, Where
from handheld.sensors.memory import ProcessUse

IDLE_W, CORE_W = 2.0, 10.0


class Meter(Sensor):
    """A model of a CPU's meter: 2 W, plus 10 W for each core that the process keeps busy."""

    name = "meter"
    about = "a model of a CPU's power"
    period_s = 0.01
    channels = (Channel("cpu energy", "energy", counter=True, covers=("cpu",)),)

    def __init__(self, process: ProcessUse) -> None:
        self._process, self._begun = process, time.monotonic()

    @classmethod
    def probe(cls, where: Where) -> Meter:
        return cls(ProcessUse.probe(where))

    def read(self) -> Sequence[Value]:
        busy = self._process.read()[2]
        assert isinstance(busy, float)
        return [IDLE_W * (time.monotonic() - self._begun) + CORE_W * busy]


class Broken(Sensor):
    """A sensor that is absent."""

    name = "broken"
    about = "nothing"

    @classmethod
    def probe(cls, where: Where) -> Broken:
        raise Unavailable("it is in the other room")

    def read(self) -> Sequence[Value]:
        return []

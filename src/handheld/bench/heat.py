"""Waits until the machine is as cool as at the start of the benchmark, or for a limited time."""

from __future__ import annotations

import time
from collections.abc import Callable

from handheld.bench.shapes import Measured
from handheld.errors import SensorLost
from handheld.sensors import Sensor, Where, available

WARMER = 5.0  # A machine is cool if it is at most this many °C above its start.
MOST_S, TICK_S = 30.0, 0.5
PAUSE_S = 1.0  # The pause if there is no temperature sensor.


class Heat:
    """The temperatures of the machine, now and at the start."""

    def __init__(
        self, cool_s: float | None = None, base: dict[str, float] | None = None, where: Where | None = None
    ) -> None:
        self.cool_s = cool_s
        self._sensors: list[Sensor] = []
        for sensor in available(where):
            if any(channel.quantity == "temperature" for channel in sensor.channels):
                self._sensors.append(sensor)
            else:
                sensor.close()
        self.base = base or self.read()

    def read(self) -> dict[str, float]:
        """°C by channel, for the channels that answer."""
        celsius: dict[str, float] = {}
        for sensor in self._sensors:
            try:
                values = sensor.read()
            except (SensorLost, OSError):
                continue
            celsius |= {
                f"{sensor.name}/{channel.name}": value
                for channel, value in zip(sensor.channels, values, strict=True)
                if channel.quantity == "temperature" and not isinstance(value, str)
            }
        return celsius

    def cool(self, tell: Callable[[str], None]) -> Measured:
        """Wait for `cool_s`; if it is None, until the sensors are cool, at most MOST_S, or PAUSE_S without sensors."""
        begun = time.monotonic()
        wait = self.cool_s if self.cool_s is not None else MOST_S if self.base else PAUSE_S
        by = "seconds" if self.cool_s is not None else "sensors" if self.base else "pause"
        while (left := begun + wait - time.monotonic()) > 0:
            above = self.above()
            if by == "sensors" and above <= WARMER:
                break
            tell("cooling" + (f", {above:+.0f} °C" if self.base else ""))
            time.sleep(min(TICK_S, left))
        return {"cooled_s": time.monotonic() - begun, "cooled_by": by, **self.facts()}

    def above(self) -> float:
        """How much warmer the warmest channel is than at the start; 0 without sensors."""
        now = self.read()
        return max((now[name] - self.base[name] for name in now if name in self.base), default=0.0)

    def facts(self) -> Measured:
        """The hottest channel, and how much warmer the machine is than at the start."""
        now = self.read()
        return {"celsius": max(now.values(), default=None), "warmer_by": self.above() if now else None}

    def close(self) -> None:
        for sensor in self._sensors:
            sensor.close()

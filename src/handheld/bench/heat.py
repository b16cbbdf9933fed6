"""Waits until a machine is as cool as at the start of the benchmark, or for a limited time.

The machine is the one that trains: this one, or that of a target.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Protocol

from handheld.backends.runner.observe import Observer, observed
from handheld.bench.shapes import Measured
from handheld.errors import DeviceError, SensorLost
from handheld.sensors import Sensor, Where, available
from handheld.sensors.base import Value
from handheld.sensors.mirror import Mirror
from handheld.targets.names import is_remote, parse

WARMER = 5.0  # A machine is cool if it is at most this many °C above its start.
MOST_S, TICK_S = 30.0, 0.5
PAUSE_S = 1.0  # The pause if there is no temperature sensor.


class Thermometers(Protocol):
    """The temperature sensors of a machine."""

    def read(self) -> dict[str, float]:
        """°C by channel, for the channels that answer."""

    def close(self) -> None: ...


class Heat:
    """The temperatures of machines, now and at the start. A machine is named by one of its devices."""

    def __init__(
        self,
        cool_s: float | None = None,
        base: dict[str, float] | None = None,
        where: Where | None = None,
        devices: Iterable[str] = ("opencl",),
    ) -> None:
        self.cool_s = cool_s
        self._machines: dict[str, Thermometers] = {}
        #: °C by channel at the start; those of a target begin with its name.
        self.base = dict(base or {})
        for machine in dict.fromkeys(_machine(device) for device in devices):
            self._machines[machine] = _There(machine) if machine else _Here(where)
            self.base = self._machines[machine].read() | self.base

    def cool(self, tell: Callable[[str], None], device: str = "opencl") -> Measured:
        """Wait for `cool_s`; if it is None, until the sensors are cool, at most MOST_S, or PAUSE_S without sensors."""
        begun, above = time.monotonic(), self.above(device)
        wait = self.cool_s if self.cool_s is not None else PAUSE_S if above is None else MOST_S
        by = "seconds" if self.cool_s is not None else "pause" if above is None else "sensors"
        while (left := begun + wait - time.monotonic()) > 0:
            if by == "sensors" and (above is None or above <= WARMER):
                break
            tell("cooling" + (f", {above:+.0f} °C" if above is not None else ""))
            time.sleep(min(TICK_S, left))
            above = self.above(device)
        return {"cooled_s": time.monotonic() - begun, "cooled_by": by, **self.facts(device)}

    def above(self, device: str = "opencl") -> float | None:
        """How much warmer the warmest channel is than at the start; None without sensors."""
        now = self._machines[_machine(device)].read()
        return max((now[name] - self.base[name] for name in now if name in self.base), default=None)

    def facts(self, device: str = "opencl") -> Measured:
        """The hottest channel, and how much warmer the machine is than at the start."""
        now = self._machines[_machine(device)].read()
        return {"celsius": max(now.values(), default=None), "warmer_by": self.above(device)}

    def close(self) -> None:
        for thermometers in self._machines.values():
            thermometers.close()


class _Here:
    """The temperature sensors of this machine."""

    def __init__(self, where: Where | None) -> None:
        self._sensors: list[Sensor] = []
        for sensor in available(where):
            if any(channel.quantity == "temperature" for channel in sensor.channels):
                self._sensors.append(sensor)
            else:
                sensor.close()

    def read(self) -> dict[str, float]:
        celsius: dict[str, float] = {}
        for sensor in self._sensors:
            try:
                celsius |= _celsius(sensor, sensor.read())
            except (SensorLost, OSError):
                continue
        return celsius

    def close(self) -> None:
        for sensor in self._sensors:
            sensor.close()


class _There:
    """The temperature sensors of a target. Its runner reads the files, and is started again if it was lost."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._machine: Observer | None = None

    def read(self) -> dict[str, float]:
        try:
            self._machine = self._machine or observed(self._target)
            with Mirror(self._machine) as mirror:
                found = [(source.sensor, source.first) for source in mirror.find() if source.sensor is not None]
        except DeviceError:  # The run that follows says what is wrong with the target.
            self.close()
            return {}
        celsius: dict[str, float] = {}
        for sensor, first in found:
            celsius |= {f"{self._target} {name}": value for name, value in _celsius(sensor, first).items()}
            sensor.close()
        return celsius

    def close(self) -> None:
        if self._machine is not None:
            self._machine.close()
        self._machine = None


def _celsius(sensor: Sensor, values: Iterable[Value]) -> dict[str, float]:
    return {
        f"{sensor.name}/{channel.name}": value
        for channel, value in zip(sensor.channels, values, strict=True)
        if channel.quantity == "temperature" and not isinstance(value, str)
    }


def _machine(device: str) -> str:
    """The target that a device belongs to; empty for this machine."""
    return parse(device).target if is_remote(device) else ""

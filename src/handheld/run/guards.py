"""Battery floor and thermal limit: stops or pauses training when a sensor passes its limit.

The sensors are those of the machine that computes: this one, or that of a target.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

import psutil

from handheld.backends.runner import connect, wire
from handheld.errors import DeviceError, TargetLost, Unavailable
from handheld.sensors.health import BATTERY_FILES, HEAT_FILES, Charge, Heat, charge_of, heat_of, is_temperature
from handheld.targets.names import is_remote, parse

#: Seconds between two readings of a sensor, and degrees below the limit before work continues.
PERIOD, COOLED = 5.0, 5.0
#: Seconds between two readings while the device cools, and between two tries of a reading that failed.
COOL_S, RETRY_S, TRIES = 0.2, 0.2, 3
#: A battery below the floor that is being charged may go on, until it has lost this many percent all the same.
FALLEN = 2.0

Reading = TypeVar("Reading", Charge, Heat)


class Gauges(Protocol):
    """What is read of a machine. Both methods raise Unavailable with the reason."""

    name: str

    def charge(self) -> Charge: ...

    def heat(self) -> Heat: ...


class HostGauges:
    """This machine, by psutil."""

    name = "this machine"

    def charge(self) -> Charge:
        read = getattr(psutil, "sensors_battery", None)
        reading = read() if read is not None else None
        if reading is None:
            raise Unavailable("the system shows none")
        return Charge(float(reading.percent), bool(reading.power_plugged))

    def heat(self) -> Heat:
        read = getattr(psutil, "sensors_temperatures", None)
        found = [
            Heat(float(sensor.current), f"{chip} {sensor.label}".strip())
            for chip, sensors in (read() if read is not None else {}).items()
            for sensor in sensors
            if is_temperature(sensor.current)
        ]
        if not found:
            raise Unavailable("the system shows none")
        return max(found, key=lambda heat: heat.celsius)


class TargetGauges:
    """The machine of a target, by its files. A free runner reads them, so the one that trains is not disturbed."""

    def __init__(self, device: str) -> None:
        self._target = parse(device)
        self.name = self._target.target

    def charge(self) -> Charge:
        with connect.borrowed(self._target) as link:
            self.name = link.target.name  # `adb` may be `adb:SERIAL`.
            return charge_of(wire.files(link, *BATTERY_FILES))

    def heat(self) -> Heat:
        with connect.borrowed(self._target) as link:
            self.name = link.target.name
            return heat_of(wire.files(link, *HEAT_FILES))


def gauges_of(device: str) -> Gauges:
    """The gauges of the machine that a device belongs to."""
    return TargetGauges(device) if is_remote(device) else HostGauges()


class Guards:
    """Watches the sensors of the limits that are set. A limit without its sensor is an error."""

    def __init__(self, battery_floor: float | None, thermal_limit: float | None, device: str) -> None:
        self.floor, self.limit = battery_floor, thermal_limit
        self.paused_seconds = 0.0
        self._next = 0.0
        self._fullest = 0.0  # the highest charge below the floor while the battery was being charged
        self._gauges = gauges_of(device)
        if battery_floor is not None:
            if not 0 <= battery_floor <= 100:
                raise DeviceError(f"a battery floor must be a percentage, not {battery_floor}")
            self._need(self._gauges.charge, f"a battery floor of {battery_floor:g}%", "battery")
        if thermal_limit is not None:
            self._need(self._gauges.heat, f"a thermal limit of {thermal_limit:g} °C", "temperature")

    def _need(self, read: Callable[[], Reading], limit: str, what: str) -> None:
        try:
            _tried(read)
        except Unavailable as error:
            name = self._gauges.name
            raise DeviceError(
                f"{limit} was requested, but {name} reports no {what}: {error}. Try: train without it"
            ) from None

    def check(self, interrupted: Callable[[], bool], notify: Callable[[str], None]) -> str:
        """Why training must stop, or "". Waits while the device is too hot. A sensor that is gone is a reason too."""
        if (self.floor is None and self.limit is None) or time.monotonic() < self._next:
            return ""
        what = "temperature"
        try:
            self._cool(interrupted, notify)
            what = "battery"
            reason = self._low()
        except Unavailable as error:
            reason = f"the {what} of {self._gauges.name} can no longer be read ({error})"
        self._next = time.monotonic() + PERIOD
        return reason

    def _low(self) -> str:
        if self.floor is None:
            return ""
        charge = _tried(self._gauges.charge)
        self._fullest = max(self._fullest, charge.percent) if charge.charging else 0.0
        falls = charge.charging and charge.percent <= self._fullest - FALLEN
        if charge.percent >= self.floor or (charge.charging and not falls):
            return ""
        level = f"the battery of {self._gauges.name} is at {charge.percent:g}%, below the floor of {self.floor:g}%"
        return f"{level}, and falls although it is being charged" if falls else level

    def _cool(self, interrupted: Callable[[], bool], notify: Callable[[str], None]) -> None:
        if self.limit is None:
            return
        now = _tried(self._gauges.heat)
        if now.celsius < self.limit:
            return
        notify(f"paused: {now.celsius:.0f} °C ({now.where}); the limit is {self.limit:g} °C")
        started = time.monotonic()
        try:
            while now.celsius > self.limit - COOLED and not interrupted():
                time.sleep(COOL_S)
                now = _tried(self._gauges.heat)
        finally:
            self.paused_seconds += time.monotonic() - started
            notify("")


def _tried(read: Callable[[], Reading]) -> Reading:
    """A reading. A sensor that fails once, or a runner that was killed, is asked again."""
    for _ in range(TRIES - 1):
        with contextlib.suppress(Unavailable, TargetLost):
            return read()
        time.sleep(RETRY_S)
    return read()

"""Battery floor and thermal limit: stops or pauses training when a sensor passes its limit."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil

from handheld.errors import DeviceError

#: Seconds between two readings of a sensor, and degrees below the limit before work continues.
PERIOD, COOLED = 5.0, 5.0


def battery() -> tuple[float, bool] | None:
    """Charge in percent and whether the battery is being charged, or None without a battery."""
    read = getattr(psutil, "sensors_battery", None)
    reading = read() if read is not None else None
    return None if reading is None else (float(reading.percent), bool(reading.power_plugged))


def temperature() -> float | None:
    """The hottest sensor in °C, or None if there is none."""
    read = getattr(psutil, "sensors_temperatures", None)
    groups = read() if read is not None else {}
    return max((float(s.current) for group in groups.values() for s in group), default=None)


class Guards:
    """Watches the sensors of the limits that are set. A limit without its sensor is an error."""

    def __init__(self, battery_floor: float | None, thermal_limit: float | None) -> None:
        self.floor, self.limit = battery_floor, thermal_limit
        self.paused_seconds = 0.0
        self._next = 0.0
        if battery_floor is not None:
            if not 0 <= battery_floor <= 100:
                raise DeviceError(f"a battery floor must be a percentage, not {battery_floor}")
            if battery() is None:
                raise DeviceError(
                    f"a battery floor of {battery_floor:g}% was requested, but this "
                    "system reports no battery. Try: train without it"
                )
        if thermal_limit is not None and temperature() is None:
            raise DeviceError(
                f"a thermal limit of {thermal_limit:g} °C was requested, but this "
                "system reports no temperature. Try: train without it"
            )

    def check(self, interrupted: Callable[[], bool], notify: Callable[[str], None]) -> str:
        """Why training must stop, or "". Waits while the device is too hot."""
        if (self.floor is None and self.limit is None) or time.monotonic() < self._next:
            return ""
        self._cool(interrupted, notify)
        self._next = time.monotonic() + PERIOD
        if self.floor is not None:
            state = battery()
            if state is not None and state[0] < self.floor and not state[1]:
                return f"the battery is at {state[0]:g}%, below the floor of {self.floor:g}%"
        return ""

    def _cool(self, interrupted: Callable[[], bool], notify: Callable[[str], None]) -> None:
        if self.limit is None:
            return
        now = temperature()
        if now is None or now < self.limit:
            return
        notify(f"paused: {now:.0f} °C; the limit is {self.limit:g} °C")
        started = time.monotonic()
        while now is not None and now > self.limit - COOLED and not interrupted():
            time.sleep(0.2)
            now = temperature()
        self.paused_seconds += time.monotonic() - started
        notify("")

"""Battery floor and thermal limit: what a device must report before a run may rely on it."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil

from handheld.errors import DeviceError

#: seconds between looks at a sensor, and degrees below the limit before work goes on
PERIOD, COOLED = 5.0, 5.0


def battery() -> tuple[float, bool] | None:
    """Charge in percent and whether it is being charged, or None where there is no battery."""
    read = getattr(psutil, "sensors_battery", None)
    found = read() if read is not None else None
    return None if found is None else (float(found.percent), bool(found.power_plugged))


def temperature() -> float | None:
    """The hottest sensor in °C, or None where none is reported."""
    read = getattr(psutil, "sensors_temperatures", None)
    groups = read() if read is not None else {}
    return max((float(s.current) for group in groups.values() for s in group), default=None)


class Guards:
    """Watches the sensors that were asked for; asking for one that is not there is an error."""

    def __init__(self, battery_floor: float | None, thermal_limit: float | None) -> None:
        self.floor, self.limit = battery_floor, thermal_limit
        self.paused_seconds = 0.0
        self._next = 0.0
        if battery_floor is not None:
            if not 0 <= battery_floor <= 100:
                raise DeviceError(f"a battery floor is a percentage, not {battery_floor}")
            if battery() is None:
                raise DeviceError(
                    f"a battery floor of {battery_floor:g}% was asked for, and this "
                    "system reports no battery. Train without it"
                )
        if thermal_limit is not None and temperature() is None:
            raise DeviceError(
                f"a thermal limit of {thermal_limit:g} °C was asked for, and this "
                "system reports no temperature. Train without it"
            )

    def check(self, interrupted: Callable[[], bool], notify: Callable[[str], None]) -> str:
        """Why to stop, or nothing; waits here while the device is too hot."""
        if (self.floor is None and self.limit is None) or time.monotonic() < self._next:
            return ""
        self._cool(interrupted, notify)
        self._next = time.monotonic() + PERIOD
        if self.floor is not None:
            found = battery()
            if found is not None and found[0] < self.floor and not found[1]:
                return f"the battery is at {found[0]:g}%, below the floor of {self.floor:g}%"
        return ""

    def _cool(self, interrupted: Callable[[], bool], notify: Callable[[str], None]) -> None:
        if self.limit is None:
            return
        now = temperature()
        if now is None or now < self.limit:
            return
        notify(f"paused: {now:.0f} °C, the limit is {self.limit:g} °C")
        started = time.monotonic()
        while now is not None and now > self.limit - COOLED and not interrupted():
            time.sleep(0.2)
            now = temperature()
        self.paused_seconds += time.monotonic() - started
        notify("")

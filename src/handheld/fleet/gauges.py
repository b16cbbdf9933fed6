"""The temperature and battery of a device while it works, and whether they are within its limits.

The sensors are those that `train --battery-floor` and `--thermal-limit` read (run/guards.py): of this machine, or of
the machine of a target.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from handheld.errors import DeviceError, Unavailable
from handheld.fleet.file import Device, Limits
from handheld.run.guards import COOLED, Gauges, gauges_of

PERIOD_S = 5.0  # Seconds between two readings.


@dataclass(frozen=True)
class Reading:
    """What the sensors say. None: not known, and the texts say why."""

    celsius: float | None = None
    percent: float | None = None
    charging: bool = False
    no_heat: str = ""
    no_charge: str = ""

    def too_hot(self, limits: Limits, again: bool = False) -> str:
        """Why the device must rest, or "". With `again`, it rests already and must become clearly cooler."""
        limit = limits.thermal_limit
        if limit is None or self.celsius is None or self.celsius < limit - (COOLED if again else 0.0):
            return ""
        return f"{self.celsius:.0f} °C; its thermal_limit is {limit:g} °C"

    def too_low(self, limits: Limits) -> str:
        """Why the device must stop, or "". A battery that is being charged may be low."""
        floor = limits.battery_floor
        if floor is None or self.percent is None or self.percent >= floor or self.charging:
            return ""
        return f"its battery is at {self.percent:.0f}%; its battery_floor is {floor:g}%. Try: charge it, then again"

    def unchecked(self, limits: Limits) -> dict[str, str]:
        """The limits that cannot be checked, and why."""
        missing = {"thermal_limit": self.no_heat, "battery_floor": self.no_charge}
        return {name: why for name, why in missing.items() if why and getattr(limits, name) is not None}


def read(gauges: Gauges) -> Reading:
    """One reading of all sensors. What cannot be read is not known."""
    celsius = percent = None
    charging, no_heat, no_charge = False, "", ""
    try:
        celsius = gauges.heat().celsius
    except (Unavailable, DeviceError) as error:
        no_heat = str(error)
    try:
        charge = gauges.charge()
        percent, charging = charge.percent, charge.charging
    except (Unavailable, DeviceError) as error:
        no_charge = str(error)
    return Reading(celsius, percent, charging, no_heat, no_charge)


class Watcher(threading.Thread):
    """Reads the sensors of a device again and again, in its own thread because a target may be slow to answer."""

    def __init__(self, device: Device) -> None:
        super().__init__(name=f"gauges of {device.name}", daemon=True)
        self._target = device.target
        self._end = threading.Event()
        self.first = threading.Event()  # set after the first reading
        self.now = Reading()
        self.hottest: float | None = None
        self.charges: list[float] = []  # the first and the last

    def run(self) -> None:
        gauges = gauges_of(self._target)
        while not self._end.is_set():
            self.now = read(gauges)
            if self.now.celsius is not None:
                self.hottest = max(self.hottest or self.now.celsius, self.now.celsius)
            if self.now.percent is not None:
                self.charges = [*self.charges[:1], self.now.percent]
            self.first.set()
            self._end.wait(PERIOD_S)

    def end(self) -> None:
        self._end.set()

"""The sensor of thermal zones: the temperatures by which the kernel decides on throttling."""

from __future__ import annotations

from collections.abc import Sequence

from handheld.sensors.base import Channel, Sensor, Unavailable, Value, Where, distinct
from handheld.sensors.files import File, absent, label, optional, unless_all_missing

_COLDEST = -200.0  # A Jetson reports −256 °C for a zone that is switched off.


class Thermal(Sensor):
    name = "thermal"
    about = "temperature of each thermal zone"
    period_s = 0.25
    files = ("/sys/class/thermal/thermal_zone*/type", "/sys/class/thermal/thermal_zone*/temp")

    def __init__(self, zones: list[tuple[str, File]]) -> None:
        self._files = [file for _, file in zones]
        self.channels = tuple(Channel(name, "temperature") for name in distinct([name for name, _ in zones]))

    @classmethod
    def probe(cls, where: Where) -> Thermal:
        folders = where.glob("/sys/class/thermal/thermal_zone*")
        if not folders:
            raise absent(where, "/sys/class/thermal", "there is no zone in /sys/class/thermal")
        zones = [
            (label(folder / "type", folder.name), file)
            for folder in folders
            if (file := optional(where, folder / "temp"))
        ]
        if not zones:
            raise Unavailable("no zone of /sys/class/thermal can be read. Try: adb shell, or sudo")
        return cls(zones)

    def read(self) -> Sequence[Value]:
        return unless_all_missing([_celsius(file.value(1e-3)) for file in self._files])


def _celsius(value: Value) -> Value:
    if isinstance(value, float) and value < _COLDEST:
        return "the zone is switched off"
    return value

"""The battery sensor: the power that a phone or laptop draws while it is not charging.

Power is `power_now`, or current times voltage. The sign of the current differs by vendor, so it is ignored: the
battery's power is the device's power only while `status` is Discharging. The kernel's unit of current is µA, but some
vendors report mA. A current that is too small for µA is rejected; its unit is not guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from handheld.sensors.base import Channel, Sensor, SensorLost, Value, Where
from handheld.sensors.files import absent, label, opened, optional

_HINT = "Some Android apps may not read it. Try: adb shell (as the shell user)"
_FILES = (
    *("type", "scope", "status", "power_now", "current_now", "voltage_now"),
    *("charge_counter", "energy_now", "capacity", "temp"),
)
_LEAST_UA = 20_000  # 20 mA at 4 V are 80 mW. A machine that runs this code draws more.


class Battery(Sensor):
    name = "battery"
    about = "battery power while discharging, charge and temperature"
    period_s = 0.25  # fuel gauges measure every 0.25 to 30 s
    files = tuple(f"/sys/class/power_supply/*/{name}" for name in _FILES)

    def __init__(self, where: Where, folder: Path) -> None:
        battery = folder.name
        self._status = opened(where, folder / "status", _HINT)
        self._power = optional(where, folder / "power_now")
        self._current = optional(where, folder / "current_now")
        self._voltage = optional(where, folder / "voltage_now")
        if self._power is None and (self._current is None or self._voltage is None):
            opened(where, folder / "current_now", _HINT)
            opened(where, folder / "voltage_now", _HINT)
        others = (
            ("charge_counter", "charge", "charge", 3.6e-3),
            ("energy_now", "energy left", "energy", 3.6e-3),
            ("capacity", "level", "utilisation", 1.0),
            ("temp", "temperature", "temperature", 0.1),
        )
        candidates = [
            (optional(where, folder / file), Channel(f"{battery} {name}", quantity), scale)
            for file, name, quantity, scale in others
        ]
        self._others = [(file, channel, scale) for file, channel, scale in candidates if file]
        self.channels = (
            Channel(f"{battery} power", "power", covers=("system",)),
            *(channel for _, channel, _ in self._others),
        )

    @classmethod
    def probe(cls, where: Where) -> Battery:
        folders = [
            folder
            for folder in where.glob("/sys/class/power_supply/*")
            if label(folder / "type") == "Battery" and label(folder / "scope") != "Device"
        ]  # The scope Device is the battery of a mouse or another accessory.
        if not folders:
            raise absent(where, "/sys/class/power_supply", "there is no battery in /sys/class/power_supply", _HINT)
        named = [folder for folder in folders if folder.name == "battery"]  # Android's name for the main battery
        return cls(where, (named or folders)[0])

    def read(self) -> Sequence[Value]:
        try:
            status = self._status.text()
        except OSError as error:
            raise SensorLost(f"{self._status.path}: {error.strerror}") from None
        power: Value = (
            self._watts()
            if status == "Discharging"
            else (
                f"the battery's status is {status or 'empty'}: its power is the power of the device only while it is "
                "discharging. Try: unplug the charger"
            )
        )
        return [power, *(file.value(scale) for file, _, scale in self._others)]

    def _watts(self) -> Value:
        if self._power is not None:
            value = self._power.value(1e-6)
            return value if isinstance(value, str) else abs(value)
        assert self._current is not None and self._voltage is not None
        current, voltage = self._current.value(), self._voltage.value(1e-6)
        if isinstance(current, str) or isinstance(voltage, str):
            return current if isinstance(current, str) else voltage
        if abs(current) < _LEAST_UA:
            return (
                f"{self._current.path} is {current:.0f}, which is too small for µA: this device "
                "uses another unit, or reports no current"
            )
        return abs(current) * 1e-6 * voltage

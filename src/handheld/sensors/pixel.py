"""The sensor of Google Pixel's power meters (ODPM): energy per rail since the phone started.

    t=349894
    CH0(T=349894)[S10M_VDD_TPU], 5578756      channel (time in ms) [rail], µWs

The kernel refreshes them every 20 ms to 2.6 s. The set of measured rails can be changed, so rails are identified by
name. `enabled_rails` says what each rail supplies: CH3[S2M_VDD_CPUCL2]:CPU.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from handheld.sensors.base import Channel, Sensor, SensorLost, Unavailable, Value, Where
from handheld.sensors.files import File, absent, label, opened

_HINT = "Only root and the power service may read it. Try: adb root (a debug build), or a rooted phone"
_LINE = re.compile(r"^CH\d+\(T=\d+\)\[([^\]]+)\],\s*(\d+)\s*$", re.MULTILINE)
_RAIL = re.compile(r"^CH\d+\[([^\]]+)\]:(.+)$", re.MULTILINE)
_COVERS = (
    ("cpu", "CPU"),
    ("gpu", "GPU|G3D"),
    ("memory", "DDR|MEM|MIF|VDD2|VDDQ"),
    ("display", "DISP"),
    ("modem", "MODEM|RFFE|CELLULAR"),
    ("wifi", "WLAN|WIFI"),
    ("tpu", "TPU|TENSOR"),
    ("soc", "INT|SOC"),
)


class PixelRails(Sensor):
    name = "pixel-rails"
    about = "Pixel energy by rail (ODPM)"
    period_s = 0.02
    files = ("/sys/bus/iio/devices/iio:device*/energy_value", "/sys/bus/iio/devices/iio:device*/enabled_rails")

    def __init__(self, files: list[File], subsystems: dict[str, str]) -> None:
        self._files = files
        self._rails = list(self._energies())
        self.channels = tuple(
            Channel(rail, "energy", counter=True, covers=_covered(rail, subsystems.get(rail, "")))
            for rail in self._rails
        )

    @classmethod
    def probe(cls, where: Where) -> PixelRails:
        folders = [path for path in where.glob("/sys/bus/iio/devices/iio:device*") if (path / "energy_value").exists()]
        if not folders:
            raise absent(
                where,
                "/sys/bus/iio/devices",
                "there is no energy_value under /sys/bus/iio/devices: not a Pixel 6 or later",
                _HINT,
            )
        files = [opened(where, folder / "energy_value", _HINT) for folder in folders]
        names = "\n".join(label(folder / "enabled_rails") for folder in folders)
        sensor = cls(files, {rail: kind.strip() for rail, kind in _RAIL.findall(names)})
        if not sensor.channels:
            raise Unavailable(f"{where.shown(files[0].path)} names no rail")
        return sensor

    def _energies(self) -> dict[str, float]:
        return {rail: int(energy) * 1e-6 for file in self._files for rail, energy in _LINE.findall(file.text())}

    def read(self) -> Sequence[Value]:
        try:
            energies = self._energies()
        except OSError as error:
            raise SensorLost(f"{self._files[0].path}: {error.strerror}") from None
        if not energies:
            raise SensorLost(f"{self._files[0].path} names no rail")
        return [energies.get(rail, f"{rail} is not measured any more") for rail in self._rails]


def _covered(rail: str, subsystem: str) -> tuple[str, ...]:
    for text in (subsystem.upper(), rail.upper()):
        for part, pattern in _COVERS:
            if re.search(pattern, text):
                return (part,)
    return ("other",)

"""Qualcomm's Adreno GPUs through the kgsl driver, and the clock of the memory beside them.

Files are opened by their names: on many phones an app may read one and yet not list the folder.
"""

from __future__ import annotations

from collections.abc import Sequence

from handheld.sensors.base import Channel, Sensor, SensorLost, Unavailable, Value, Where
from handheld.sensors.files import File, leading, opened, optional, quoted

_GPU = "/sys/class/kgsl/kgsl-3d0"
_HINT = "Android keeps it from apps. Try: adb shell (as the shell user), or a device with root"


class Adreno(Sensor):
    name = "adreno"
    about = "Adreno GPU load, clock and temperature (kgsl)"
    period_s = 0.25  # busy time is of the last window, which is a second or longer

    def __init__(self, busy: File, clock: File | None, heat: File | None) -> None:
        self._busy = busy
        self._others = [
            (file, Channel(name, quantity, covers=("gpu",)), scale)
            for file, name, quantity, scale in (
                (clock, "gpu clock", "frequency", 1.0),
                (heat, "gpu temperature", "temperature", 1e-3),
            )
            if file
        ]
        self.channels = (
            Channel("gpu load", "utilisation", covers=("gpu",)),
            *(channel for _, channel, _ in self._others),
        )

    @classmethod
    def probe(cls, where: Where) -> Adreno:
        busy = optional(where, f"{_GPU}/gpu_busy_percentage") or optional(where, f"{_GPU}/gpubusy")
        if busy is None:
            known = optional(where, f"{_GPU}/gpu_model")  # an app may read this one alone
            if known is None and not where.path(_GPU).exists():
                raise Unavailable(f"there is no {_GPU}: not an Adreno, or not Qualcomm's driver")
            busy = opened(where, f"{_GPU}/gpubusy", _HINT)
        clock = optional(where, f"{_GPU}/devfreq/cur_freq") or optional(where, f"{_GPU}/gpuclk")
        return cls(busy, clock, optional(where, f"{_GPU}/temp"))

    def read(self) -> Sequence[Value]:
        try:
            text = self._busy.text()
        except OSError as error:
            raise SensorLost(f"{self._busy.path}: {error.strerror}") from None
        return [self._share(text), *(file.value(scale) for file, _, scale in self._others)]

    def _share(self, text: str) -> Value:
        """`37 %`, or `busy total` in microseconds of the last window: `0 0` while it is off."""
        try:
            if self._busy.path.name == "gpu_busy_percentage":
                return leading(text)
            busy, total = (int(word) for word in text.split())
        except ValueError:
            return f"{self._busy.path} holds {quoted(text)}"
        return 100.0 * busy / total if total else 0.0


class QualcommMemory(Sensor):
    name = "qualcomm-memory"
    about = "Qualcomm DRAM clock"
    period_s = 0.05
    channels = (Channel("ddr clock", "frequency", covers=("memory",)),)

    def __init__(self, clock: File) -> None:
        self._clock = clock

    @classmethod
    def probe(cls, where: Where) -> QualcommMemory:
        return cls(opened(where, "/sys/devices/system/cpu/bus_dcvs/DDR/cur_freq", _HINT))

    def read(self) -> Sequence[Value]:
        return [self._clock.number(1e3)]

"""Sensors of Qualcomm phones: the Adreno GPU (kgsl driver) and the DRAM clock.

Files are opened by name. On many phones an app may read a file but may not list its folder.
"""

from __future__ import annotations

from collections.abc import Sequence

from handheld.sensors.base import Channel, Sensor, SensorLost, Unavailable, Value, Where
from handheld.sensors.files import File, leading, opened, optional, quoted

_GPU = "/sys/class/kgsl/kgsl-3d0"
_DDR = "/sys/devices/system/cpu/bus_dcvs/DDR/cur_freq"
_HINT = "Android apps may not read it. Try: adb shell (as the shell user), or a device with root"


class Adreno(Sensor):
    name = "adreno"
    about = "Adreno GPU load, clock and temperature (kgsl)"
    period_s = 0.25  # The driver averages the load over a window of a second or longer.
    files = (
        f"{_GPU}/gpu_busy_percentage",
        f"{_GPU}/gpubusy",
        f"{_GPU}/gpu_model",
        f"{_GPU}/devfreq/cur_freq",
        f"{_GPU}/gpuclk",
        f"{_GPU}/temp",
    )

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
            model = optional(where, f"{_GPU}/gpu_model")  # On some phones an app may read only this file.
            if model is None and not where.path(_GPU).exists():
                raise Unavailable(f"there is no {_GPU}: not an Adreno GPU, or not Qualcomm's driver")
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
        """The load in percent. The text is `37 %`, or `busy total` in microseconds of the last window
        (`0 0` while the GPU is off)."""
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
    files = (_DDR,)
    channels = (Channel("ddr clock", "frequency", covers=("memory",)),)

    def __init__(self, clock: File) -> None:
        self._clock = clock

    @classmethod
    def probe(cls, where: Where) -> QualcommMemory:
        return cls(opened(where, _DDR, _HINT))

    def read(self) -> Sequence[Value]:
        return [self._clock.number(1e3)]

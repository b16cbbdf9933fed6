"""Sensors of Arm's Mali GPUs. Each of three vendors has its own files.

Exynos    /sys/kernel/gpu/gpu_busy (`37 %`), gpu_clock; memory: /sys/class/devfreq/*devfreq_mif
Pixel     /sys/devices/platform/*.mali/utilization, cur_freq
MediaTek  /sys/kernel/ged/hal/gpu_utilization (`37 12 51`: the first number is the load in percent)
"""

from __future__ import annotations

from collections.abc import Sequence

from handheld.sensors.base import Channel, Sensor, SensorLost, Value, Where
from handheld.sensors.files import File, absent, leading, opened, optional, quoted

_HINT = "Android apps may not read it. Try: adb shell (as the shell user), or a device with root"


class _Mali(Sensor):
    """The base of these sensors: a load, and clocks where the device has them."""

    period_s = 0.05

    def __init__(self, load: File, clocks: list[tuple[str, str, File | None]]) -> None:
        self._load = load
        self._clocks = [file for _, _, file in clocks if file]
        self.channels = (
            Channel("gpu load", "utilisation", covers=("gpu",)),
            *(Channel(f"{name} clock", "frequency", covers=(covers,)) for name, covers, file in clocks if file),
        )

    def read(self) -> Sequence[Value]:
        try:
            text = self._load.text()
        except OSError as error:
            raise SensorLost(f"{self._load.path}: {error.strerror}") from None
        try:
            load: Value = leading(text)
        except ValueError:
            load = f"{self._load.path} holds {quoted(text)}"
        return [load, *(_hertz(file) for file in self._clocks)]


class MaliExynos(_Mali):
    name = "mali-exynos"
    about = "Mali GPU of Samsung Exynos: load, clock, memory clock"
    files = ("/sys/kernel/gpu/gpu_busy", "/sys/kernel/gpu/gpu_clock", "/sys/class/devfreq/*devfreq_mif/cur_freq")

    @classmethod
    def probe(cls, where: Where) -> MaliExynos:
        load = opened(where, "/sys/kernel/gpu/gpu_busy", _HINT)
        memory = [optional(where, path / "cur_freq") for path in where.glob("/sys/class/devfreq/*devfreq_mif")]
        return cls(
            load,
            [
                ("gpu", "gpu", optional(where, "/sys/kernel/gpu/gpu_clock")),
                ("memory", "memory", next(filter(None, memory), None)),
            ],
        )


class MaliPixel(_Mali):
    name = "mali-pixel"
    about = "Mali GPU of Google Pixel: load, clock"
    files = ("/sys/devices/platform/*.mali/utilization", "/sys/devices/platform/*.mali/cur_freq")

    @classmethod
    def probe(cls, where: Where) -> MaliPixel:
        for path in where.glob("/sys/devices/platform/*.mali"):
            if (path / "utilization").exists():
                return cls(
                    opened(where, path / "utilization", _HINT), [("gpu", "gpu", optional(where, path / "cur_freq"))]
                )
        raise absent(where, "/sys/devices/platform", "there is no /sys/devices/platform/*.mali/utilization", _HINT)


class MaliMediatek(_Mali):
    name = "mali-mediatek"
    about = "Mali GPU of MediaTek: load, clock"
    files = ("/sys/kernel/ged/hal/gpu_utilization", "/sys/kernel/ged/hal/current_freqency")

    @classmethod
    def probe(cls, where: Where) -> MaliMediatek:
        # The kernel misspells the name. The file holds the frequency step and its clock in kHz.
        clock = optional(where, "/sys/kernel/ged/hal/current_freqency")
        return cls(opened(where, "/sys/kernel/ged/hal/gpu_utilization", _HINT), [("gpu", "gpu", clock)])


def _hertz(file: File) -> Value:
    """A clock in Hz. The drivers use MHz, kHz or Hz; for real clocks of GPUs and memories the size of the number shows
    which."""
    try:
        text = file.text()
        number = float(text.split()[-1])
    except OSError as error:
        return f"{file.path}: {error.strerror}"
    except (ValueError, IndexError):
        return f"{file.path} holds {quoted(text)}"
    return number * (1e6 if number < 1e4 else 1e3 if number < 1e7 else 1.0)

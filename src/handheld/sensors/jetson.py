"""Sensors of NVIDIA Jetson boards: power per rail (INA3221), GPU load, memory controller.

The same power chip has two drivers:

    ina3221x   TX2, Nano, Xavier (NVIDIA's driver)    rail_name_N, in_powerN_input
    ina3221    Orin (the kernel's driver)             inN_label, inN_input × currN_input

With ina3221, in4 to in6 are shunt voltages and in7 is a sum, so only 1 to 3 are read. Rails are identified by their
label, never by their position. A shared rail (VDD_CPU_GPU_CV) covers all its parts; it counts as neither CPU nor GPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from handheld.sensors.base import Channel, Sensor, Unavailable, Value, Where, distinct
from handheld.sensors.files import File, label, opened, optional, unless_all_missing

_IIO = "/sys/bus/i2c/drivers/ina3221x/*-00*/iio?device*"
_HWMON = "/sys/bus/i2c/drivers/ina3221/*-00*/hwmon/hwmon*"
_GPUS = (
    "/sys/devices/*.g*",
    "/sys/devices/platform/gpu.0",
    "/sys/devices/gpu.0",
    "/sys/devices/platform/*.gpu",
    "/sys/class/devfreq/*/device",
)
_ACTIVITY = ("/sys/kernel/actmon_avg_activity/mc_all", "/sys/kernel/debug/cactmon/mc_all")
_EMC = "/sys/kernel/debug/bpmp/debug/clk/emc/rate"
_HINT = "Try: sudo, or add your user to the group that owns it"
_PARTS = (
    ("gpu", "GPU"),
    ("cpu", "CPU"),
    ("cv", "CV"),
    ("soc", "SOC"),
    ("memory", "DDR|VDDQ|VDDRQ|DRAM|MEM"),
    ("wifi", "WIFI"),
)


def covered(rail: str) -> tuple[str, ...]:
    """The parts that a rail supplies, from its name."""
    words = re.split(r"[_\s]+", rail.upper())
    if words[-1] == "IN":  # VDD_IN and POM_5V_IN are the input of the module.
        return ("system",)
    return tuple(part for part, pattern in _PARTS if any(re.fullmatch(pattern, word) for word in words)) or ("other",)


class JetsonPower(Sensor):
    name = "jetson-power"
    about = "Jetson power by rail (INA3221)"
    period_s = 0.01
    files = (
        f"{_IIO}/rail_name_?",
        f"{_IIO}/in_power?_input",
        f"{_HWMON}/in?_label",
        f"{_HWMON}/in?_input",
        f"{_HWMON}/curr?_input",
    )

    def __init__(self, rails: list[tuple[str, Callable[[], Value]]]) -> None:
        self._reads = [read for _, read in rails]
        names = distinct([name for name, _ in rails])
        total = next((name for name in names if covered(name) == ("system",)), "")
        self.channels = tuple(
            Channel(name, "power", covers=covered(name), part_of="" if name == total else total) for name in names
        )

    @classmethod
    def probe(cls, where: Where) -> JetsonPower:
        rails = [*_rails_iio(where), *_rails_hwmon(where)]
        if not rails:
            raise Unavailable(
                "there is no rail under /sys/bus/i2c/drivers/ina3221x or /sys/bus/i2c/drivers/ina3221: not a Jetson"
            )
        return cls(rails)

    def read(self) -> Sequence[Value]:
        return unless_all_missing([read() for read in self._reads])


def _rails_iio(where: Where) -> list[tuple[str, Callable[[], Value]]]:
    """Rails of TX2, Nano and Xavier. The folder is `0-0040/iio:device0`, in older releases `0-0040/iio_device`."""
    rails: dict[tuple[str, int], tuple[str, Callable[[], Value]]] = {}
    for folder in where.glob(_IIO):
        for n in range(3):
            name = label(folder / f"rail_name_{n}")
            if name and name != "NC" and (folder.parent.name, n) not in rails:
                file = opened(where, folder / f"in_power{n}_input", _HINT)
                rails[folder.parent.name, n] = name, partial(file.value, 1e-3)
    return list(rails.values())


def _rails_hwmon(where: Where) -> list[tuple[str, Callable[[], Value]]]:
    """Rails of Orin. A channel that is switched off gives an I/O error and is left out."""
    rails = []
    for folder in where.glob(_HWMON):
        for n in (1, 2, 3):
            name = label(folder / f"in{n}_label")
            volts = optional(where, folder / f"in{n}_input")
            amperes = optional(where, folder / f"curr{n}_input")
            if name and name != "NC" and volts and amperes:
                rails.append((name, _product(volts, amperes)))
    return rails


def _product(volts: File, amperes: File) -> Callable[[], Value]:
    def read() -> Value:
        u, i = volts.value(1e-3), amperes.value(1e-3)
        return u if isinstance(u, str) else i if isinstance(i, str) else u * i

    return read


class JetsonGpu(Sensor):
    """The load and clock of the GPU. The file holds the load in tenths of a percent."""

    name = "jetson-gpu"
    about = "Jetson GPU load and clock"
    period_s = 0.02
    files = (
        *(f"{folder}/{name}" for folder in _GPUS for name in ("load", "devfreq/*/cur_freq")),
        "/sys/class/devfreq/*/cur_freq",
    )

    def __init__(self, load: File, clock: File | None) -> None:
        self._load, self._clock = load, clock
        self.channels = (
            Channel("gpu load", "utilisation", covers=("gpu",)),
            *([Channel("gpu clock", "frequency", covers=("gpu",))] if clock else []),
        )

    @classmethod
    def probe(cls, where: Where) -> JetsonGpu:
        devices = [path for pattern in _GPUS for path in where.glob(pattern)]
        for device in devices:
            if (device / "load").is_file():
                clocks: list[Path] = [device.parent / "cur_freq"]
                clocks += sorted(device.glob("devfreq/*/cur_freq"))
                clock = next((file for path in clocks if (file := optional(where, path))), None)
                return cls(opened(where, device / "load", _HINT), clock)
        raise Unavailable(
            "there is no GPU load file under /sys/devices/*.gp10b, "
            "/sys/devices/platform/gpu.0 or /sys/class/devfreq: not a Jetson"
        )

    def read(self) -> Sequence[Value]:
        return unless_all_missing([self._load.value(0.1), *([self._clock.value()] if self._clock else [])])


class JetsonMemory(Sensor):
    """The activity of the memory controller, divided by its clock.

    Sources disagree on what the activity counts. Compare it first with a copy that saturates memory.
    """

    name = "jetson-memory"
    about = "Jetson memory controller activity (compare with a saturating copy)"
    period_s = 0.02
    files = (*_ACTIVITY, _EMC)
    channels = (
        Channel("emc activity", "utilisation", covers=("memory",)),
        Channel("emc clock", "frequency", covers=("memory",)),
    )

    def __init__(self, activity: File, clock: File) -> None:
        self._activity, self._clock = activity, clock

    @classmethod
    def probe(cls, where: Where) -> JetsonMemory:
        hint = "Only root may read it. Try: sudo"
        problem = None
        for path in _ACTIVITY:
            try:
                return cls(opened(where, path, hint), opened(where, _EMC, hint))
            except Unavailable as error:
                denied = problem is not None and "permission" in str(problem)
                problem = problem if denied else error
        if problem is not None and "permission" in str(problem):
            raise problem
        raise Unavailable(f"there is no {_ACTIVITY[0]} and no {_ACTIVITY[1]}: not a Jetson, or not root")

    def read(self) -> Sequence[Value]:
        activity, clock = self._activity.value(1e3), self._clock.value()
        if isinstance(activity, str) or isinstance(clock, str):
            return unless_all_missing([activity, clock])
        return ["the memory controller's clock is 0" if not clock else 100 * activity / clock, clock]

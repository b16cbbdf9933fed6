"""NVIDIA Jetson: power by rail (INA3221), GPU load, memory controller.

Two layouts of the same chip. TX2, Nano and Xavier have NVIDIA's driver, ina3221x: rail_name_N,
in_powerN_input. Orin has the kernel's, ina3221: inN_label, inN_input × currN_input; there in4 to
in6 are shunt voltages and in7 is a sum, so only 1 to 3 are read. Rails go by their label, never by
their place. A joint rail (VDD_CPU_GPU_CV) covers all that is in it and is neither CPU nor GPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from handheld.sensors.base import Channel, Sensor, Unavailable, Value, Where, distinct
from handheld.sensors.files import File, label, opened, optional, unless_all_missing

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
    """What is on a rail, by its name."""
    words = re.split(r"[_\s]+", rail.upper())
    if words[-1] == "IN":  # VDD_IN, POM_5V_IN: the module's input
        return ("system",)
    return tuple(part for part, pattern in _PARTS if any(re.fullmatch(pattern, word) for word in words)) or ("other",)


class JetsonPower(Sensor):
    name = "jetson-power"
    about = "Jetson power by rail (INA3221)"
    period_s = 0.01

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
    """TX2, Nano, Xavier: `0-0040/iio:device0`, in older releases `0-0040/iio_device`."""
    found: dict[tuple[str, int], tuple[str, Callable[[], Value]]] = {}
    for folder in where.glob("/sys/bus/i2c/drivers/ina3221x/*-00*/iio?device*"):
        for n in range(3):
            name = label(folder / f"rail_name_{n}")
            if name and name != "NC" and (folder.parent.name, n) not in found:
                file = opened(where, folder / f"in_power{n}_input", _HINT)
                found[folder.parent.name, n] = name, partial(file.value, 1e-3)
    return list(found.values())


def _rails_hwmon(where: Where) -> list[tuple[str, Callable[[], Value]]]:
    """Orin: a channel that is switched off answers with an I/O error, and is left out."""
    found = []
    for folder in where.glob("/sys/bus/i2c/drivers/ina3221/*-00*/hwmon/hwmon*"):
        for n in (1, 2, 3):
            name = label(folder / f"in{n}_label")
            volts = optional(where, folder / f"in{n}_input")
            amperes = optional(where, folder / f"curr{n}_input")
            if name and name != "NC" and volts and amperes:
                found.append((name, _product(volts, amperes)))
    return found


def _product(volts: File, amperes: File) -> Callable[[], Value]:
    def read() -> Value:
        u, i = volts.value(1e-3), amperes.value(1e-3)
        return u if isinstance(u, str) else i if isinstance(i, str) else u * i

    return read


class JetsonGpu(Sensor):
    """The GPU's load in tenths of a percent, and its clock."""

    name = "jetson-gpu"
    about = "Jetson GPU load and clock"
    period_s = 0.02

    def __init__(self, load: File, clock: File | None) -> None:
        self._load, self._clock = load, clock
        self.channels = (
            Channel("gpu load", "utilisation", covers=("gpu",)),
            *([Channel("gpu clock", "frequency", covers=("gpu",))] if clock else []),
        )

    @classmethod
    def probe(cls, where: Where) -> JetsonGpu:
        devices = [
            path
            for pattern in (
                "/sys/devices/*.g*",
                "/sys/devices/platform/gpu.0",
                "/sys/devices/gpu.0",
                "/sys/devices/platform/*.gpu",
                "/sys/class/devfreq/*/device",
            )
            for path in where.glob(pattern)
        ]
        for device in devices:
            if (device / "load").is_file():
                clocks: list[Path] = [device.parent / "cur_freq"]
                clocks += sorted(device.glob("devfreq/*/cur_freq"))
                clock = next((file for path in clocks if (file := optional(where, path))), None)
                return cls(opened(where, device / "load", _HINT), clock)
        raise Unavailable(
            "there is no load of a GPU under /sys/devices/*.gp10b, "
            "/sys/devices/platform/gpu.0 or /sys/class/devfreq: not a Jetson"
        )

    def read(self) -> Sequence[Value]:
        return unless_all_missing([self._load.value(0.1), *([self._clock.value()] if self._clock else [])])


class JetsonMemory(Sensor):
    """The memory controller's activity over its clock.

    What the activity counts is disputed: compare it with a copy that saturates memory first.
    """

    name = "jetson-memory"
    about = "Jetson memory controller activity (compare with a saturating copy)"
    period_s = 0.02
    channels = (
        Channel("emc activity", "utilisation", covers=("memory",)),
        Channel("emc clock", "frequency", covers=("memory",)),
    )

    def __init__(self, activity: File, clock: File) -> None:
        self._activity, self._clock = activity, clock

    @classmethod
    def probe(cls, where: Where) -> JetsonMemory:
        paths = ("/sys/kernel/actmon_avg_activity/mc_all", "/sys/kernel/debug/cactmon/mc_all")
        hint = "Only root may. Try: sudo"
        problem = None
        for path in paths:
            try:
                return cls(opened(where, path, hint), opened(where, "/sys/kernel/debug/bpmp/debug/clk/emc/rate", hint))
            except Unavailable as error:
                denied = problem is not None and "permission" in str(problem)
                problem = problem if denied else error
        if problem is not None and "permission" in str(problem):
            raise problem
        raise Unavailable(f"there is no {paths[0]} and no {paths[1]}: not a Jetson, or not root")

    def read(self) -> Sequence[Value]:
        activity, clock = self._activity.value(1e3), self._clock.value()
        if isinstance(activity, str) or isinstance(clock, str):
            return unless_all_missing([activity, clock])
        return ["the memory controller's clock is 0" if not clock else 100 * activity / clock, clock]

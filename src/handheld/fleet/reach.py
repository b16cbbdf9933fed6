"""Which devices of a fleet answer, and which devices this machine and its cables have now."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from handheld import cache
from handheld.backends.present import present_devices
from handheld.bench.task import call
from handheld.errors import DeviceError
from handheld.fleet.file import Device
from handheld.targets import adb

SILENCE_S = 60.0
LIST_S = 3.0  # adb may have to start its server.
_HEAD = """\
# The devices of a fleet. Commands take them with --on fleet:all, fleet:GROUP or fleet:DEVICE (docs/fleet.md).

[limits]                # for all devices; a device may have its own, see below
# battery_floor = 30    # percent; a device below it stops
# thermal_limit = 45    # degrees C; a hotter device rests
timeout = "2h"          # for each device

"""
_TAIL = """\
# More devices:
#
# [devices.pi]
# target = "ssh:pi@raspberry"
# groups = ["boards"]
# limits = { thermal_limit = 80 }
# slot = "desk"          # devices with the same slot take turns
"""


@dataclass(frozen=True)
class Reach:
    """Whether a device answers: the name of its processor, or why not."""

    processor: str
    problem: str


def reach(devices: Sequence[Device]) -> list[Reach]:
    """Ask all devices at the same time, each in its own process."""
    if not devices:
        return []
    with ThreadPoolExecutor(len(devices)) as pool:
        return list(pool.map(_reach, devices))


def _reach(device: Device) -> Reach:
    task = {"do": "describe", "devices": [device.target]}
    answer = call(task, silence_s=SILENCE_S, tell=lambda stage: None)
    if answer.status != "done":
        return Reach("", answer.reason or answer.status)
    return Reach(str(next(iter(answer.facts["devices"].values())).get("name", "")), "")


def found() -> list[Device]:
    """The devices that are here now: of OpenCL, phones that adb lists, and PyTorch's CPU."""
    pairs: list[tuple[str, str, tuple[str, ...]]] = []
    with contextlib.suppress(DeviceError):
        pairs += [(cache.slug(one.caps.name), one.name, ("local",)) for one in present_devices()]
    if shutil.which("adb") is not None:
        with contextlib.suppress(DeviceError):
            for phone in adb.phones(LIST_S):
                if phone.state == "device":
                    pairs.append((cache.slug(phone.model) or "phone", f"adb:{phone.serial}", ("phones",)))
    if importlib.util.find_spec("torch") is not None:
        pairs.append(("reference", "reference:cpu", ("local",)))
    devices: dict[str, Device] = {}
    for name, target, groups in pairs:
        free = name or "device"
        while free in devices:
            stem, _, number = free.rpartition("--")
            free = f"{stem}--{int(number) + 1}" if stem and number.isdigit() else f"{free}--2"
        devices[free] = Device(free, target, groups)
    return list(devices.values())


def example(devices: Sequence[Device]) -> str:
    """A fleet file with these devices."""
    tables = []
    for device in devices:
        groups = ", ".join(f'"{group}"' for group in device.groups)
        line = f"groups = [{groups}]\n" if groups else ""
        tables.append(f'[devices.{device.name}]\ntarget = "{device.target}"\n{line}')
    return _HEAD + "\n".join((*tables, _TAIL))

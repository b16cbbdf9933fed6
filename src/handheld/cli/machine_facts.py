"""The machine that `handheld doctor` examines, this one or that of a target: its system, memory, storage and state."""

from __future__ import annotations

import contextlib
import platform
import re
import shutil
from pathlib import Path
from typing import TypedDict

import psutil

from handheld import cache
from handheld.backends.base import available_memory
from handheld.backends.runner import connect, wire
from handheld.backends.runner.observe import properties
from handheld.cli import output
from handheld.errors import Unavailable
from handheld.run.guards import Gauges, gauges_of
from handheld.targets.names import is_remote, parse
from handheld.targets.shell import ShellTarget


class MachineFacts(TypedDict):
    """One machine. None stands for what it does not report."""

    target: str  # "" for this machine
    model: str  # what a phone says about itself
    system: str
    memory_bytes: int | None
    memory_available_bytes: int | None
    storage_free_bytes: int | None
    storage_folder: str
    battery_percent: float | None
    battery_charging: bool | None
    temperature_celsius: float | None


def this_system() -> str:
    return f"{platform.system()} {platform.release()} {platform.machine()}"


def examine(on: str | None) -> MachineFacts:
    """The machine of a target, if the device is on one, else this machine."""
    return _of_target(on) if on is not None and is_remote(on) else _here()


def _here() -> MachineFacts:
    folder = cache.folder()
    there = next((path for path in (folder, *folder.parents) if path.is_dir()), Path("/"))
    memory = psutil.virtual_memory().total, available_memory()
    return _facts("", "", this_system(), memory, (shutil.disk_usage(there).free, str(folder)), gauges_of("opencl"))


def _of_target(on: str) -> MachineFacts:
    with connect.borrowed(parse(on)) as link:
        target, system = link.target, connect.system(link)
        meminfo = b"".join(file.content for file in wire.files(link, "/proc/meminfo") if file.readable).decode()
    phone = properties(target)
    named = " ".join(phone[key] for key in ("manufacturer", "model") if key in phone)
    inside = [phone.get("soc", ""), f"Android {phone['android']}" if "android" in phone else ""]
    model = f"{named} ({', '.join(filter(None, inside))})" if any(inside) else named
    words = " ".join(str(system[key]) for key in ("system", "release", "machine"))
    storage = (target.facts().free_bytes, target.facts().folder) if isinstance(target, ShellTarget) else (None, "")
    memory = _kib(meminfo, "MemTotal"), _kib(meminfo, "MemAvailable")
    shown = f"{words}, {output.count(int(system['cores']), 'core')}"
    return _facts(target.name, model.strip(), shown, memory, storage, gauges_of(on))


def _facts(
    target: str,
    model: str,
    system: str,
    memory: tuple[int | None, int | None],
    storage: tuple[int | None, str],
    gauges: Gauges,
) -> MachineFacts:
    percent = charging = celsius = None
    with contextlib.suppress(Unavailable):  # The rows of sensors say why.
        charge = gauges.charge()
        percent, charging = charge.percent, charge.charging
    with contextlib.suppress(Unavailable):
        celsius = gauges.heat().celsius
    return {
        "target": target,
        "model": model,
        "system": system,
        "memory_bytes": memory[0],
        "memory_available_bytes": memory[1],
        "storage_free_bytes": storage[0],
        "storage_folder": storage[1],
        "battery_percent": percent,
        "battery_charging": charging,
        "temperature_celsius": celsius,
    }


def _kib(meminfo: str, name: str) -> int | None:
    found = re.search(rf"^{name}:\s+(\d+) kB", meminfo, re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def rows(facts: MachineFacts) -> list[tuple[str, str]]:
    """The machine in the header of the report, without what tells that it is this one."""
    free, total = facts["memory_available_bytes"], facts["memory_bytes"]
    charge, celsius = facts["battery_percent"], facts["temperature_celsius"]
    storage = facts["storage_free_bytes"]
    words = {True: "charging", False: "not charging", None: ""}[facts["battery_charging"]]
    told = "not reported"
    return [
        ("memory", told if free is None or total is None else f"{output.size(free)} free of {output.size(total)}"),
        ("storage", told if storage is None else f"{output.size(storage)} free for {facts['storage_folder']}"),
        ("battery", told if charge is None else f"{charge:.0f}%, {words}"),
        ("temperature", told if celsius is None else f"{celsius:.0f} °C"),
    ]

"""Whether a machine may go on working: the charge of its battery and its temperature, from its files.

    Machine.files(BATTERY_FILES) ──►  charge_of: percent, and whether it is being charged
    Machine.files(HEAT_FILES)    ──►  heat_of: the hottest of all sensors whose number can be a temperature

Zones of phones report thousandths of a degree, whole degrees, or something else. A number that no working chip has is
left out. What cannot be read at all raises Unavailable with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from handheld.errors import Unavailable
from handheld.sensors.mirror import Found

_SUPPLIES, _ZONES = "/sys/class/power_supply", "/sys/class/thermal"
_SUPPLY_FILES = (
    *("type", "scope", "present", "online", "status", "capacity"),
    *("energy_now", "energy_full", "charge_now", "charge_full"),
)
#: Android's main battery is named too: on some phones it can be read although the folder cannot be listed.
BATTERY_FILES = tuple(f"{_SUPPLIES}/{supply}/{name}" for supply in ("*", "battery") for name in _SUPPLY_FILES)
HEAT_FILES = (
    *(f"{_ZONES}/thermal_zone*/{name}" for name in ("type", "temp")),
    *(f"/sys/class/hwmon/hwmon*/{name}" for name in ("name", "temp*_input")),
    "/sys/class/kgsl/kgsl-3d0/temp",
)
#: Degrees that a working chip can have. Zones that are switched off report 0 or −256, and inputs of a chip to which
#: nothing is connected 127 or 128.
_COLDEST, _HOTTEST = 1.0, 127.0
#: Zones that hold something else: Qualcomm's are the charge, voltage and current of the battery, and the PMIC of a
#: Jetson always reports 100 °C.
_NO_TEMPERATURE = re.compile(r"socd?|(vbat|ibat|bcl).*|.*-lvl\d|PMIC-Die", re.IGNORECASE)
_QUANTITIES = ("energy", "charge")  # in which a battery tells what it holds now, and when it is full


@dataclass(frozen=True)
class Charge:
    """How full the batteries of a machine are in percent, and whether they are being charged."""

    percent: float
    charging: bool


@dataclass(frozen=True)
class Heat:
    """The temperature of the hottest sensor, and its name."""

    celsius: float
    where: str


def charge_of(files: Iterable[Found]) -> Charge:
    """The charge of all batteries together. Raises Unavailable."""
    contents = _Contents(files)
    supplies = contents.folders(_SUPPLIES)
    batteries = {name: supply for name, supply in supplies.items() if _is_battery(supply)}
    if "battery" in batteries:  # Android's name for all cells together
        batteries = {"battery": batteries["battery"]}
    told = [supply for supply in batteries.values() if _percent(supply) is not None]
    if not told:
        what = "no battery tells its level" if batteries else "there is no battery"
        raise contents.unavailable(_SUPPLIES, f"{what} in {_SUPPLIES}")
    sizes = _sizes(told)
    percent = sum((_percent(supply) or 0.0) * size for supply, size in zip(told, sizes, strict=True)) / sum(sizes)
    states = {supply.get("status", "") for supply in batteries.values()}
    return Charge(percent, _is_charging(states, supplies.values()))


def heat_of(files: Iterable[Found]) -> Heat:
    """The hottest sensor. Raises Unavailable."""
    contents = _Contents(files)
    found = [
        Heat(celsius, name)
        for path, text in contents.texts.items()
        if (name := _sensor(contents, path)) and (celsius := degrees(text)) is not None
    ]
    if not found:
        raise contents.unavailable(_ZONES, f"no zone of {_ZONES} and no chip of /sys/class/hwmon tells a temperature")
    return max(found, key=lambda heat: heat.celsius)


def degrees(text: str) -> float | None:
    """The temperature in a file that holds degrees or thousandths of them; None if it can be neither."""
    try:
        number = int(text)
    except ValueError:
        return None
    celsius = number / 1000 if number >= 1000 else float(number)
    return celsius if is_temperature(celsius) else None


def is_temperature(celsius: float) -> bool:
    """Whether a working chip can have this temperature."""
    return _COLDEST <= celsius < _HOTTEST


def _sensor(contents: _Contents, path: str) -> str:
    """The name of the sensor whose temperature this file holds; empty if it holds none."""
    folder, _, file = path.rpartition("/")
    if folder.startswith(f"{_ZONES}/") and file == "temp":
        kind = contents.texts.get(f"{folder}/type", "") or folder.rpartition("/")[2]
        return "" if _NO_TEMPERATURE.fullmatch(kind) else kind
    if folder.startswith("/sys/class/hwmon/") and file.endswith("_input"):
        chip = contents.texts.get(f"{folder}/name", "") or folder.rpartition("/")[2]
        return f"{chip} {file.removesuffix('_input')}"
    return "gpu" if folder.startswith("/sys/class/kgsl/") else ""


def _is_battery(supply: Mapping[str, str]) -> bool:
    """The scope Device is the battery of a mouse or another accessory."""
    return supply.get("type") == "Battery" and supply.get("scope") != "Device" and supply.get("present") != "0"


def _percent(supply: Mapping[str, str]) -> float | None:
    percent = _number(supply, "capacity")
    for quantity in _QUANTITIES:
        left, full = _number(supply, f"{quantity}_now"), _number(supply, f"{quantity}_full")
        if percent is None and left is not None and full:
            percent = 100 * left / full
    return None if percent is None else min(percent, 100.0)


def _sizes(batteries: Sequence[Mapping[str, str]]) -> list[float]:
    """How much each battery holds when it is full, in one unit. If they do not tell, they count as equal."""
    for quantity in _QUANTITIES:
        sizes = [size for battery in batteries if (size := _number(battery, f"{quantity}_full"))]
        if len(sizes) == len(batteries):
            return sizes
    return [1.0] * len(batteries)


def _number(supply: Mapping[str, str], name: str) -> float | None:
    text = supply.get(name, "")
    return float(text) if text.isdigit() else None


def _is_charging(states: set[str], supplies: Iterable[Mapping[str, str]]) -> bool:
    """One battery that discharges counts: of two, only one works at a time. `Not charging` is full or too warm, with
    the charger plugged in."""
    if "Discharging" in states:
        return False
    if states & {"Charging", "Full", "Not charging"}:
        return True
    return any(supply.get("online") == "1" for supply in supplies if supply.get("type") != "Battery")


class _Contents:
    """Files by their paths, and the reasons why others cannot be read."""

    def __init__(self, files: Iterable[Found]) -> None:
        self.texts: dict[str, str] = {}
        self.reasons: dict[str, str] = {}
        for file in files:
            text = file.content.decode("utf-8", "replace").strip()
            (self.texts if file.readable else self.reasons)[file.path] = text

    def folders(self, parent: str) -> dict[str, dict[str, str]]:
        """The folders in a folder: their names, and the texts of their files by name."""
        found: dict[str, dict[str, str]] = {}
        for path, text in self.texts.items():
            if path.startswith(f"{parent}/"):
                folder, _, file = path[len(parent) + 1 :].partition("/")
                found.setdefault(folder, {})[file] = text
        return found

    def unavailable(self, folder: str, otherwise: str) -> Unavailable:
        """The reason why nothing was found in a folder: a file that cannot be read, or that there is none."""
        for path, reason in self.reasons.items():
            if path.startswith(folder):
                return Unavailable(f"{path} cannot be read: {reason.partition(' ')[2] or reason}")
        return Unavailable(otherwise)

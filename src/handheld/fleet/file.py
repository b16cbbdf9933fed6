"""The fleet file: the names, targets, groups and limits of devices (docs/fleet.md).

    fleet = read(find_file(None))
    for device in fleet.chosen("fleet:boards"):
        print(device.name, device.target, device.limits)

Every mistake is a FleetError with the line and a remedy.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from handheld.backends.table import BACKENDS
from handheld.bench.eager import KIND as PYTORCH
from handheld.device import backend_of, canonical
from handheld.errors import DeviceError, FleetError
from handheld.fleet.lines import line_of
from handheld.names import suggestion
from handheld.targets.names import KINDS as TARGETS
from handheld.targets.names import parse

if sys.version_info >= (3, 11):
    import tomllib
else:  # The same library before it became part of Python.
    import tomli as tomllib

FILE, VARIABLE = "fleet.toml", "HANDHELD_FLEET"
ALL, PREFIX = "all", "fleet"
RESERVED = (ALL, PREFIX)  # `fleet:all`, and the folder of a fleet's own files beside those of its devices
FORMS = "opencl[:NAME], adb[:SERIAL], ssh:user@host, runner[:NAME], reference:cpu or pytorch:cpu"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|m|h)?")
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Limits:
    """What a device must keep to. None: no limit. `own` has those that the device itself states."""

    battery_floor: float | None = None  # percent
    thermal_limit: float | None = None  # °C
    timeout: float | None = None  # seconds
    own: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Device:
    """A device of a fleet. Devices with the same `slot` are the same hardware and take turns."""

    name: str
    target: str
    groups: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)
    slot: str = ""


@dataclass(frozen=True)
class Fleet:
    """The content of a fleet file."""

    path: Path
    devices: Mapping[str, Device]

    @property
    def groups(self) -> dict[str, list[str]]:
        """The names of the devices of each group."""
        found: dict[str, list[str]] = {}
        for device in self.devices.values():
            for group in device.groups:
                found.setdefault(group, []).append(device.name)
        return found

    def chosen(self, on: str) -> list[Device]:
        """The devices that `fleet`, `fleet:all`, `fleet:GROUP` or `fleet:DEVICE` means."""
        name = on.partition(":")[2]
        if name in ("", ALL):
            return list(self.devices.values())
        if name in self.devices:
            return [self.devices[name]]
        groups = self.groups
        if name not in groups:
            known = [ALL, *groups, *self.devices]
            hint = suggestion(name, known, f"--on fleet:{ALL}")
            raise FleetError(
                f"{self.path} has no group or device {name!r}; it has {', '.join(known)}. {hint}"
                if name
                else f"{on!r} names no group. Try: --on fleet:{ALL}"
            )
        return [self.devices[each] for each in groups[name]]


def is_fleet(on: object) -> bool:
    """Whether the value of --on means a fleet."""
    return isinstance(on, str) and any(word.strip().partition(":")[0] == PREFIX for word in on.split(","))


def find_file(given: Path | None) -> Path:
    """The fleet file: the one that was given, that of HANDHELD_FLEET, or ./fleet.toml. Raises FleetError."""
    named = os.environ.get(VARIABLE)
    path, why = (given, "--fleet") if given else (Path(named), VARIABLE) if named else (Path(FILE), "")
    if path.is_file():
        return path
    if why:
        what = "is a folder" if path.is_dir() else "does not exist"
        raise FleetError(f"the fleet file {path} of {why} {what}. Try: handheld fleet init --out {path}")
    raise FleetError(
        f"there is no fleet file: no {FILE} in {Path.cwd()}, no --fleet FILE, and {VARIABLE} is not set. "
        "Try: handheld fleet init"
    )


def read(path: Path) -> Fleet:
    """Read and check a fleet file. Raises FleetError."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise FleetError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise FleetError(f"{path} is no text: byte {error.start} is not UTF-8. Try: save it as UTF-8") from None
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _syntax(path, text, str(error)) from None
    return Fleet(path, {device.name: device for device in _Checked(path, text, data).devices()})


def _syntax(path: Path, text: str, message: str) -> FleetError:
    match = re.search(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)", message)
    line = int(match[1]) if match and match[1] else max(len(text.splitlines()), 1)
    said = message.replace(match[0], "") if match else message
    return FleetError(
        f'{path}:{line}: this is not TOML: {said}. Try: texts in quotes, as in target = "adb", and each table once'
    )


class _Checked:
    """The data of a file, and its text, to find lines in."""

    def __init__(self, path: Path, text: str, data: Mapping[str, Any]) -> None:
        self._path, self._text, self._data = path, text, data

    def _wrong(self, where: Collection[str], what: str) -> FleetError:
        return FleetError(f"{self._path}:{line_of(self._text, *where)}: {what}")

    def _only(self, where: tuple[str, ...], data: Mapping[str, Any], known: Collection[str], of: str) -> None:
        for key in data:
            if key not in known:
                hint = suggestion(key, known, f"one of: {', '.join(known)}")
                raise self._wrong((*where, key), f"unknown key {key!r} of {of}. {hint}")

    def _table(self, where: tuple[str, ...], value: object, example: str) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            raise self._wrong(where, f"{'.'.join(where)} must be a table, not {_kind(value)}. Try: {example}")
        return value

    def devices(self) -> Iterator[Device]:
        self._only((), self._data, ("devices", "limits"), "the file")
        example = '[devices.phone] and, below it, target = "adb"'
        tables = self._table(("devices",), self._data.get("devices", {}), example)
        if not tables:
            raise self._wrong(("devices",), f"there is no device. Try: {example}")
        limits = self._limits(("limits",), self._data.get("limits", {}), "[limits]", Limits())
        limits = replace(limits, own=frozenset())
        targets: dict[str, str] = {}
        names = {name.lower(): name for name in reversed(list(tables))}
        for name, value in tables.items():
            where = ("devices", name)
            if names[name.lower()] != name:
                raise self._wrong(where, f"{name!r} and {names[name.lower()]!r} differ only in case. Try: another name")
            device = self._device(where, name, self._table(where, value, example), limits)
            self._check_groups(where, device, tables)
            same = targets.setdefault(canonical(device.target), name)
            if same != name:
                raise self._wrong(
                    (*where, "target"),
                    f"{name} has the same target as {same}: {device.target}. Try: remove one of them",
                )
            yield device

    def _device(self, where: tuple[str, ...], name: str, data: Mapping[str, Any], limits: Limits) -> Device:
        if not _NAME.fullmatch(name) or name in RESERVED:
            why = "is a reserved name" if name in RESERVED else "cannot be a name of a device"
            raise self._wrong(where, f"{name!r} {why}. Try: letters, digits, dots and dashes, such as pixel-8")
        self._only(where, data, ("target", "groups", "limits", "slot"), f"device {name!r}")
        for key in ("target", "slot"):
            if key in data and (not isinstance(data[key], str) or not data[key].strip()):
                value = _kind(data[key]) if data[key] != "" else "empty"
                example = "adb" if key == "target" else "gpu"
                raise self._wrong((*where, key), f'{key} of {name} is {value}. Try: {key} = "{example}"')
        if "target" not in data:
            raise self._wrong(where, f'{name} has no target. Try: target = "adb:SERIAL" or "ssh:user@host"')
        target = data["target"].strip()
        self._check_target((*where, "target"), target)
        own = self._limits((*where, "limits"), data.get("limits", {}), f"device {name!r}", limits)
        groups = self._groups((*where, "groups"), name, data.get("groups", ()))
        return Device(name, target, groups, own, data.get("slot", name))

    def _check_target(self, where: tuple[str, ...], target: str) -> None:
        if "," in target:
            raise self._wrong(where, f"a device has one target, not {target!r}. Try: a device for each of them")
        kind = backend_of(canonical(target))
        if kind not in (*BACKENDS, PYTORCH):
            hint = suggestion(kind, (*BACKENDS, PYTORCH), FORMS)
            raise self._wrong(where, f"unknown target {target!r}; there are {FORMS}. {hint}")
        if kind in ("reference", PYTORCH) and not re.fullmatch(
            r"(cpu|cuda(:\d+)?(:tf32)?)?", canonical(target).partition(":")[2]
        ):
            raise self._wrong(where, f"unknown target {target!r}. Try: {kind}:cpu or {kind}:cuda")
        if kind in TARGETS:
            try:
                parse(target)
            except DeviceError as error:
                raise self._wrong(where, f"the target {error}") from None

    def _groups(self, where: tuple[str, ...], name: str, value: object) -> tuple[str, ...]:
        if value == ():
            return ()
        if not isinstance(value, list):
            raise self._wrong(where, f'groups of {name} must be a list, not {_kind(value)}. Try: groups = ["boards"]')
        if not value:
            raise self._wrong(where, f'groups of {name} is empty. Try: groups = ["boards"], or remove the line')
        for group in value:
            if not isinstance(group, str):
                raise self._wrong(where, f'a group of {name} is {_kind(group)}. Try: groups = ["boards"]')
            if not _NAME.fullmatch(group) or group in RESERVED:
                what = "is empty" if not group.strip() else f"is {group!r}, which cannot be a name of a group"
                raise self._wrong(where, f"a group of {name} {what}. Try: letters, digits, dots and dashes")
        return tuple(dict.fromkeys(value))

    def _check_groups(self, where: tuple[str, ...], device: Device, names: Collection[str]) -> None:
        both = next((group for group in device.groups if group in names), None)
        if both is not None:
            raise self._wrong((*where, "groups"), f"{both!r} is the name of a device and of a group. Try: another name")

    def _limits(self, where: tuple[str, ...], value: object, of: str, default: Limits) -> Limits:
        data = self._table(where, value, "limits = { thermal_limit = 80 }" if len(where) > 1 else "[limits]")
        self._only(where, data, tuple(_LIMITS), f"the limits of {of}" if len(where) > 1 else of)
        found: dict[str, float] = {}
        for key, given in data.items():
            read_value, example = _LIMITS[key]
            number = read_value(given)
            if number is None:
                shown = f"{given!r}" if isinstance(given, int | float | str) else _kind(given)
                raise self._wrong((*where, key), f"{key} of {of} is {shown}. Try: {key} = {example}")
            found[key] = number
        return replace(default, own=frozenset(found), **found)


def _within(low: float, high: float) -> Callable[[object], float | None]:
    def number(value: object) -> float | None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return float(value) if low <= value <= high else None

    return number


def _seconds(value: object) -> float | None:
    """Seconds from `2h`, `90 min`, `30s` or a number."""
    text = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
    match = _TIME.fullmatch(text.strip().lower()) if isinstance(text, str) else None
    seconds = float(match[1]) * _SECONDS[match[2] or ""] if match else 0.0
    return seconds if 0 < seconds < 1e8 else None


#: limit -> what reads its value (None: wrong), and an example
_LIMITS: dict[str, tuple[Callable[[object], float | None], str]] = {
    "battery_floor": (_within(0, 100), "30 (percent)"),
    "thermal_limit": (_within(20, 125), "45 (°C)"),
    "timeout": (_seconds, '"2h" (or "90min", or a number of seconds)'),
}


def _kind(value: object) -> str:
    names = {bool: "true or false", str: "a text", int: "a number", float: "a number", list: "a list", dict: "a table"}
    return names.get(type(value), "a date")

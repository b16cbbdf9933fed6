"""The folder of a fleet: a results folder per device, and what is known about all of them.

    fleet.json         the command, and for each device its target, state, reason, time, heat and battery
    index.html         the page
    DEVICE/            what the command wrote for this device
    fleet/DEVICE.json  the document that the command printed; fleet/DEVICE.log: its messages
    fleet/lock         the process that writes here

The same command continues: devices that are done are not started again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypedDict

import handheld
from handheld.bench.folder import locked
from handheld.cache import write_json
from handheld.errors import ResultsError
from handheld.fleet.file import PREFIX, Device
from handheld.fleet.run import DONE, STOPPED, WAITING, WORKING, Member

FORMAT = 1
SUMMARY, PAGE = "fleet.json", "index.html"
OWN = PREFIX  # the folder of the fleet's own files, beside those of devices
#: Commands that extend a folder: more workloads may be asked for later.
EXTENDING = ("bench", "study liu2019")


class DeviceRecord(TypedDict, total=False):
    """What is known about a device. Figures that are not known are null."""

    target: str
    groups: list[str]
    state: str
    reason: str
    seconds: float
    hottest_celsius: float | None
    battery_percent: list[float]  # at the start and at the end
    notes: list[str]
    ended: str


class Summary(TypedDict, total=False):
    """The content of fleet.json."""

    format: int
    handheld: str
    created: str
    what: str  # the command: bench, study liu2019, ...
    command: list[str]  # its words, without --on and --out
    devices: dict[str, DeviceRecord]
    published: bool


def is_fleet_folder(folder: Path) -> bool:
    return (folder / SUMMARY).is_file()


def open_fleet(folder: Path) -> Summary:
    """Read fleet.json. Raises ResultsError."""
    path = folder / SUMMARY
    if not path.is_file():
        raise ResultsError(f"{folder} is not the folder of a fleet: it has no {SUMMARY}")
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
        written, devices = data["format"], data["devices"]
        ok = isinstance(devices, dict) and all(isinstance(row, dict) and "state" in row for row in devices.values())
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ResultsError(f"{path} is damaged: {error!r}. Try: another --out") from None
    if written != FORMAT or not ok:
        raise ResultsError(
            f"{path} has a format that this version does not read: it was written by Handheld {data.get('handheld')}. "
            "Try: that version of Handheld, or another --out"
        )
    for name in devices:
        if name != Path(name).name or name in ("", ".", "..", OWN):
            raise ResultsError(f"{path} is damaged: {name!r} is no name of a device")
    summary: Summary = data
    return summary


class FleetFolder:
    """A folder that only this process writes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            (folder / OWN).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ResultsError(f"--out {folder} cannot be created: {error.strerror}. Try: another --out") from None
        self._lock = locked(folder / OWN)  # It is held until this process ends.
        self.summary: Summary = {}

    def begin(self, what: str, command: Sequence[str], devices: Sequence[Device], again: bool) -> list[Device]:
        """Write down what is asked for. Returns the devices that have something to do; with `again`, all of them."""
        old = open_fleet(self.folder) if is_fleet_folder(self.folder) else None
        if old is None and any(path.name != OWN for path in self.folder.iterdir()):
            raise ResultsError(f"{self.folder} is not the folder of a fleet, but holds other files. Try: another --out")
        same = old is not None and old.get("what") == what and old.get("command") == list(command)
        if old is not None:
            self._check(old, what, same)
        known = dict(old["devices"]) if old else {}
        for device in devices:
            before = known.get(device.name, {})
            if before and before.get("target") != device.target:
                raise ResultsError(
                    f"{device.name} was {before.get('target')} when {self.folder} was begun, and is {device.target} "
                    "now. Try: another --out, or another name"
                )
            if not before or not same or again or before["state"] != DONE:
                base: DeviceRecord = {"seconds": 0.0, **before}
                known[device.name] = {
                    **base,
                    "target": device.target,
                    "groups": list(device.groups),
                    "state": WAITING,
                    "reason": "",
                }
        self.summary = {
            "format": FORMAT,
            "handheld": handheld.__version__,
            "created": old["created"] if old else now(),
            "what": what,
            "command": list(command),
            "devices": known,
        }
        self._before = {name: row.get("seconds", 0.0) for name, row in known.items()}
        self.write()
        return [device for device in devices if known[device.name]["state"] == WAITING]

    def _check(self, old: Summary, what: str, same: bool) -> None:
        if old.get("published"):
            raise ResultsError(f"{self.folder} was published or merged and cannot be continued. Try: another --out")
        if old.get("what") != what or (not same and what not in EXTENDING):
            words = " ".join(["handheld", *old.get("command", [])])
            raise ResultsError(f"{self.folder} holds the results of another command: {words}. Try: another --out")

    def update(self, members: Sequence[Member]) -> None:
        """Write down how far the devices are."""
        for member in members:
            row = self.summary["devices"][member.job.device.name]
            if member.state == DONE != row["state"]:
                row["ended"] = now()
            row["state"], row["reason"], row["notes"] = member.state, member.reason, member.notes
            row["seconds"] = self._before[member.job.device.name] + member.worked_s
            row["hottest_celsius"] = member.watcher.hottest
            row["battery_percent"] = member.watcher.charges
        self.write()

    def write(self) -> None:
        write_json(self.folder / SUMMARY, self.summary)


def state_of(row: DeviceRecord) -> tuple[str, str]:
    """The state of a device whose fleet does not work any more, and the reason."""
    if row["state"] in (WAITING, WORKING, "stopping", "cooling"):
        return STOPPED, row.get("reason") or "the fleet ended before it. Try: the same command, which continues"
    return row["state"], row.get("reason", "")


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")

"""Tuning records: the variant of a kernel that was measured as the fastest, per signature.

A record is a JSON file for one device and driver. A record for another device or driver is ignored with a
message, because its times do not apply. A record also states the version of each kernel family
(kernels/versions.py). Entries of a family that has changed since are ignored with a message; the others are used.

Records ship in plan/tuned/. `handheld tune` writes records into the user's cache folder; they override the
shipped ones.

A shipped record of one CPU is also used for other CPUs with the same driver and vector width. They have the same
variants, and the record is much better than a guess. A node without an entry, or whose choice its family no
longer offers, uses the default of its family.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from handheld import cache
from handheld.device import DeviceCaps
from handheld.errors import PlanError
from handheld.kernels.base import Choice
from handheld.kernels.versions import current
from handheld.plan.lowering import family
from handheld.units import count

VERSION = 3

#: Records of version 2 have a hash of the source text of all kernels instead of versions per family. The kernels
#: with these hashes (kind of device -> hash) make the same launches as version 1 of every family.
VERSION_1_HASHES: Mapping[str, str] = MappingProxyType({"cpu": "0e9eb7bd7bdcd3c6", "gpu": "a16d816cb820c643"})
SHIPPED = Path(__file__).parent / "tuned"


@dataclass
class Entry:
    """The measurements for one signature. `choice` is None if the default of the family is the fastest."""

    choice: Choice | None = None
    default_ms: float | None = None
    best_ms: float | None = None
    #: The number of candidates, and whether all of them were tried.
    candidates: int = 0
    done: bool = False
    #: The times so far, until all candidates were tried. An interrupted tuner continues from here.
    timed: list[tuple[Choice, float]] = field(default_factory=list)
    #: (choice, why): choices that failed. They are not tried again. None is the default of the family.
    failed: list[tuple[Choice | None, str]] = field(default_factory=list)

    def to_json(self) -> dict[str, object]:
        rows: dict[str, object] = {
            "choice": self.choice and dict(self.choice),
            "default_ms": self.default_ms,
            "best_ms": self.best_ms,
            "candidates": self.candidates,
            "done": self.done,
        }
        if self.timed:
            rows["timed"] = [[dict(choice), ms] for choice, ms in self.timed]
        if self.failed:
            rows["failed"] = [[choice and dict(choice), why] for choice, why in self.failed]
        return rows

    @staticmethod
    def from_json(data: dict[str, Any]) -> Entry:
        return Entry(
            None if data["choice"] is None else _choice(data["choice"]),
            _ms(data["default_ms"]),
            _ms(data["best_ms"]),
            int(data["candidates"]),
            bool(data["done"]),
            [(_choice(choice), float(ms)) for choice, ms in data.get("timed", ())],
            [(None if choice is None else _choice(choice), str(why)) for choice, why in data.get("failed", ())],
        )


def _choice(data: object) -> Choice:
    if not isinstance(data, dict) or not all(type(v) is int for v in data.values()):
        raise ValueError(f"{data!r} is not a choice")
    return data


def _ms(value: object) -> float | None:
    if value is None:
        return None
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is not a time")
    return float(value)


@dataclass
class TuningRecord:
    """One file. Devices and drivers are compared by name."""

    device: str
    driver: str
    #: The version of each kernel family that was measured; empty if unknown.
    families: dict[str, int]
    kind: str = ""
    vector_width: int = 0
    date: str = ""
    entries: dict[str, Entry] = field(default_factory=dict)

    @staticmethod
    def of(caps: DeviceCaps) -> TuningRecord:
        return TuningRecord(caps.name, caps.driver, current(caps.kind), caps.kind, caps.vector_width)

    def path(self) -> Path:
        """Returns the path of the record in the user's cache."""
        return self._path(self.device, self.driver, str(self.vector_width))

    def earlier_path(self) -> Path:
        """Returns the path of a record of version 2 with the same kernels."""
        return self._path(self.device, self.driver, VERSION_1_HASHES.get(self.kind, ""), str(self.vector_width))

    def _path(self, *known: str) -> Path:
        key = hashlib.sha256("\n".join(known).encode())
        name = f"{cache.slug(self.device)}-{key.hexdigest()[:12]}.json"
        return cache.folder() / "tuning" / name

    def drop_stale(self) -> str:
        """Removes entries of families whose kernels have changed. Returns a text that names them, or ""."""
        now = current(self.kind)
        stale: set[str] = set()
        for key in list(self.entries):
            name = family(key.partition(" ")[0])
            if self.families.get(name) != now.get(name):
                del self.entries[key]
                stale.add(name)
        was = {
            name: f"version {self.families.get(name)}" if self.families else "a record of version 2" for name in stale
        }
        reasons = [f"its entries of {name} ({was[name]}, now version {now.get(name)})" for name in sorted(stale)]
        self.families = now
        return " and ".join(reasons)

    def mismatch(self, caps: DeviceCaps) -> str:
        """Returns why the record does not apply to this device, or "" if it does."""
        if self.device != caps.name and not self.like(caps):
            return f"it is for {self.device}, but this is {caps.name}"
        if self.vector_width != caps.vector_width:
            return f"it is for vectors of {count(self.vector_width, 'float')}, not {caps.vector_width}"
        if self.driver != caps.driver:
            return f"it is for the driver {self.driver}, but this is {caps.driver}"
        return ""

    def like(self, caps: DeviceCaps) -> bool:
        """Whether the record is from a CPU that runs the same kernels."""
        return self.kind == caps.kind == "cpu" and self.driver == caps.driver and self.vector_width == caps.vector_width

    def write(self, path: Path) -> None:
        cache.write_json(
            path,
            {
                "handheld": "tuning",
                "version": VERSION,
                "device": self.device,
                "driver": self.driver,
                "families": self.families,
                "kind": self.kind,
                "vector_width": self.vector_width,
                "date": self.date,
                "entries": {key: entry.to_json() for key, entry in sorted(self.entries.items())},
            },
        )

    @staticmethod
    def read(path: Path) -> TuningRecord:
        """Reads a record. Raises PlanError if the file is not a record."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data["handheld"] != "tuning":
                raise ValueError
            if data["version"] not in (2, VERSION):
                raise PlanError(
                    f"{path} is a tuning record of version {data['version']!r:.20}, "
                    f"but this version of Handheld reads {VERSION}. Try: tune again"
                )
            return TuningRecord(
                str(data["device"]),
                str(data["driver"]),
                _families(data),
                str(data["kind"]),
                int(data["vector_width"]),
                str(data["date"]),
                {str(key): Entry.from_json(row) for key, row in data["entries"].items()},
            )
        except OSError as error:
            raise PlanError(f"{path} cannot be read: {error.strerror}") from None
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
            raise PlanError(f"{path} is not a tuning record, or it is damaged. Try: delete it and tune again") from None


def _families(data: dict[str, Any]) -> dict[str, int]:
    """Returns the versions of the families in a record. For a record of version 2 its hash decides."""
    if data["version"] == 2:
        known = data["kernels"] == VERSION_1_HASHES.get(data["kind"])
        return dict.fromkeys(current(data["kind"]), 1) if known else {}
    return {str(name): int(version) for name, version in data["families"].items()}


@dataclass(frozen=True)
class Tuning:
    """The merged records for a device."""

    entries: Mapping[str, Entry] = field(default_factory=lambda: MappingProxyType({}))
    #: The files that are used, and a message for each that is not.
    used: tuple[Path, ...] = ()
    ignored: tuple[str, ...] = ()

    @property
    def choices(self) -> dict[str, Choice]:
        return {key: e.choice for key, e in self.entries.items() if e.choice is not None}


def load_tuning(caps: DeviceCaps, tuning: bool | str | Path = True) -> Tuning:
    """Loads the tuning of a device.

    `tuning` True: the shipped records, then the user's; a path: only this file; False: none.
    """
    if tuning is False or not caps.takes_launches:
        return Tuning()
    entries: dict[str, Entry] = {}
    used, ignored = [], []
    for path in _files(caps) if tuning is True else [Path(tuning)]:
        try:
            record = TuningRecord.read(path)
        except PlanError as error:
            if tuning is not True:
                raise
            ignored.append(f"{error}. It is ignored")
            continue
        named = tuning is not True or (record.device, record.vector_width) == (caps.name, caps.vector_width)
        reason = record.mismatch(caps)
        if reason:
            if named:
                ignored.append(f"the tuning record {path.name} is ignored: {reason}. Try: handheld tune MODEL")
            continue
        stale = record.drop_stale()
        if stale and named:
            ignored.append(
                f"the tuning record {path.name}: {stale} are ignored, because the kernels have changed since. "
                "Try: handheld tune MODEL"
            )
        if record.entries or not stale:
            entries.update(record.entries)
            used.append(path)
    return Tuning(entries, tuple(used), tuple(ignored))


def _files(caps: DeviceCaps) -> list[Path]:
    """Returns the records that may be for this device. Later ones override earlier ones.

    The order: shipped records of other devices, shipped records of this device, the user's records under names of
    earlier versions, and the record that `handheld tune` writes now.
    """
    pattern = f"{cache.slug(caps.name)}-*.json"
    shipped = sorted(SHIPPED.glob("*.json"), key=lambda path: (path.match(pattern), path.name))
    own = TuningRecord.of(caps).path()
    return [*shipped, *sorted(own.parent.glob(pattern), key=lambda path: (path == own, path.name))]

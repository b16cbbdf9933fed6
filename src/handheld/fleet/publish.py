"""Copies results into a folder to share, and joins such folders: figures, device descriptions and a page.

The copy has only fields that are listed here, and no run files. Free texts lose names of users, hosts and files, and
serial numbers. A device keeps its name in the fleet file, and of its target only the kind (`ssh`, `adb`).
"""

from __future__ import annotations

import dataclasses
import getpass
import platform
import re
import socket
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import handheld
from handheld import cache
from handheld.bench.folder import Writer, open_results
from handheld.bench.shapes import Info, Row
from handheld.device import DeviceCaps, backend_of
from handheld.errors import ResultsError
from handheld.fleet.figures import Part, parts
from handheld.fleet.folder import FORMAT, PAGE, SUMMARY, DeviceRecord, Summary, is_fleet_folder, now, open_fleet
from handheld.fleet.page import fleet_page
from handheld.fleet.run import DONE
from handheld.report.document import write_document
from handheld.targets.names import is_remote

#: Numbers and fixed words of a row. `run` names a file, and `others_top` a process of the user.
FIGURES = (
    *("began", "parameters", "prepare_s", "planned_bytes", "available_bytes", "held_bytes", "cooled_s", "cooled_by"),
    *("celsius", "warmer_by", "arithmetic", "steps", "step_ms", "timed_by", "step_p5_ms", "step_p95_ms", "samples_s"),
    *("loss", "finite", "peak_bytes", "allocated_bytes", "resident_bytes", "device_busy", "gflops", "others_cores"),
    *("first_step_s", "findings", "joules_sample", "rail", "watts", "energy", "error", "wall_s", "status", "processor"),
)
TEXTS = ("reason", "fit", "data")
MACHINE = ("system", "machine", "cores", "core_kinds", "memory_bytes")
CAPS = tuple(field.name for field in dataclasses.fields(DeviceCaps))
_SYSTEM = r"(?!/(?:sys|proc|dev)/)"  # Paths that every machine has tell nothing.
_PATH = re.compile(_SYSTEM + r"(?<![\w.…])(?:~|[A-Za-z]:)?(?:[/\\][^\s/\\:;,'\"()]+)+[/\\]([^\s/\\:;,'\"()]+)")
_HOSTS = (
    (re.compile(r"\b(ssh|adb):[^\s,;'\"()]+"), r"\1"),
    (re.compile(r"[\w.+-]+@[\w.:\[\]-]+"), "USER@HOST"),
    (re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b"), "HOST"),
)


def publish(folders: Sequence[Path], out: Path) -> Path:
    """Write a folder with the results of fleets and of plain benchmarks. Returns its page. Raises ResultsError."""
    found = [part for folder in folders for part in _opened(folder)]
    if not any(part.rows for part in found):
        raise ResultsError(
            f"{' and '.join(map(str, folders))} has no result of a benchmark. Try: handheld bench --on fleet --out "
            "FOLDER"
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ResultsError(f"{out} exists already. Try: another --out")
    for folder in folders:
        if out.resolve().is_relative_to(folder.resolve()):
            raise ResultsError(f"{out} is inside {folder}. Try: another --out")
    commands = {tuple(_command(folder)) for folder in folders}
    summary: Summary = {
        "format": FORMAT,
        "handheld": handheld.__version__,
        "created": now(),
        "what": "bench",
        "command": list(commands.pop()) if len(commands) == 1 else [],
        "devices": {},
        "published": True,
    }
    names: set[str] = set()
    for part in found:
        name = _free(part.name, names)
        names.add(name)
        summary["devices"][name] = _write(part, name, out)
    cache.write_json(out / SUMMARY, summary)
    page = out / PAGE
    write_document(fleet_page(summary, parts(out)), page)
    return page


def _free(name: str, taken: set[str]) -> str:
    numbers = (f"{name}-{n}" for n in range(2, 1_000_000))
    return next(each for each in (name, *([] if name not in taken else numbers)) if each not in taken)


def _opened(folder: Path) -> list[Part]:
    return parts(folder) if is_fleet_folder(folder) else plain_parts(folder)


def plain_parts(folder: Path) -> list[Part]:
    """The devices of an ordinary results folder."""
    results = open_results(folder)
    found: list[Part] = []
    for device, caps in results.info["devices"].items():
        kind = backend_of(device)
        word = str(caps.get("name") or device) if kind not in ("pytorch", "reference") else device
        name = _free(cache.slug(word) or "device", {part.name for part in found})
        rows = [row for row in results.rows if row["device"] == device]
        seconds = sum(row.get("wall_s") or 0.0 for row in rows)
        record: DeviceRecord = {"target": device, "state": DONE, "reason": "", "seconds": seconds}
        found.append(Part(name, record, caps, rows, results=results))
    return found


def _command(folder: Path) -> list[str]:
    if not is_fleet_folder(folder):
        return []
    return [_PATH.sub(r"\1", _base(word)) for word in open_fleet(folder).get("command", [])]


def _base(word: str) -> str:
    """A workload without its folder: `../mine/net.py:make` becomes `net.py:make`."""
    option, equals, value = word.rpartition("=")
    return f"{option}{equals}{value.replace(chr(92), '/').rpartition('/')[2]}"


def _write(part: Part, name: str, out: Path) -> DeviceRecord:
    """Write the results of a device. Returns what the summary says about it."""
    target = str(part.record.get("target", ""))
    clean = cleaner(target)
    info: dict[str, Any] = dict(part.results.info) if part.results else {}
    caps = {key: part.caps[key] for key in CAPS if key in part.caps}
    machine = {} if is_remote(target) else info.get("machine") or {}  # A fleet's host says nothing about a phone.
    rows = [_row(row, name, clean) for row in part.rows]
    writer = Writer(out / name)
    try:
        writer.describe(
            cast(
                Info,
                {
                    "handheld": str(info.get("handheld", handheld.__version__)),
                    "created": str(info.get("created", now())),
                    "settings": {k: v for k, v in info.get("settings", {}).items() if not isinstance(v, str)},
                    "devices": {name: caps},
                    "machine": {key: machine[key] for key in MACHINE if key in machine},
                    "versions": info.get("versions", {}),
                    "base_celsius": None,
                    "notes": [],
                    "files": {},
                    "cases": [{k: row[k] for k in ("workload", "size", "device", "batch")} for row in rows],
                    "merged": [],  # It cannot be continued.
                },
            )
        )
        for row in rows:
            writer.append(row)
    finally:
        writer.close()
    (out / name / "lock").unlink(missing_ok=True)
    (out / name / "runs").rmdir()
    record: DeviceRecord = {
        "target": backend_of(target),
        "state": part.state,
        "reason": clean(part.reason),
        "seconds": part.record.get("seconds", 0.0),
        "hottest_celsius": part.record.get("hottest_celsius"),
        "battery_percent": part.record.get("battery_percent") or [],
        "notes": [clean(note) for note in part.record.get("notes", [])],
    }
    return record


def _row(row: Row, name: str, clean: Callable[[str], str]) -> Row:
    given = cast(dict[str, Any], row)
    workload = _base(row["workload"])
    batch = row["batch"]
    return cast(
        Row,
        {
            "key": f"{workload}/{row['size']}/{batch or 'own'}/{name}",
            "workload": workload,
            "size": row["size"],
            "device": name,
            "batch": batch,
            **{key: given[key] for key in FIGURES if key in given},
            **{key: clean(str(given[key])) for key in TEXTS if given.get(key) is not None},
            "run": None,
        },
    )


def cleaner(target: str) -> Callable[[str], str]:
    """A function that takes names of people, machines and files out of a text about this target."""
    private = sorted(_private(target), key=len, reverse=True)
    words = re.compile("|".join(rf"(?<!\w){re.escape(word)}(?!\w)" for word in private), re.IGNORECASE)
    home = str(Path.home())

    def clean(text: str) -> str:
        text = text.replace(home, "~") if len(home) > 1 else text
        text = _PATH.sub(r"\1", text)
        for pattern, by in _HOSTS:
            text = pattern.sub(by, text)
        return words.sub("…", text)

    return clean


def _private(target: str) -> Iterable[str]:
    """Words that name this machine, its user, or the machine of the target."""
    yield from filter(None, (socket.gethostname(), platform.node(), getpass.getuser()))
    if is_remote(target):
        where = target.partition(":")[2].partition("/")[0]
        login = where.rpartition(":")[0] if re.search(r":\d+$", where) else where
        yield from filter(None, (where, login, *login.rpartition("@")[::2]))

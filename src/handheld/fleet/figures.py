"""What each device of a fleet measured, from the results that its command left: pure functions of a folder."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from handheld.analyse.run import open_run
from handheld.bench.folder import INFO, Results, open_results
from handheld.bench.row import measured
from handheld.bench.shapes import Caps, Row
from handheld.errors import ResultsError, RunFileError
from handheld.fleet.folder import OWN, DeviceRecord, open_fleet, state_of
from handheld.fleet.run import read_document

RUN = "profile.run"
LOST = "device lost"


@dataclass
class Part:
    """A device, and what it measured. `caps` is its description, if the command asked for it."""

    name: str
    record: DeviceRecord
    caps: Caps = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    facts: dict[str, str | float | None] = field(default_factory=dict)  # figures of other commands
    pages: list[str] = field(default_factory=list)
    results: Results | None = None

    @property
    def state(self) -> str:
        return state_of(self.record)[0]

    @property
    def reason(self) -> str:
        return state_of(self.record)[1]


def parts(folder: Path) -> list[Part]:
    """The devices of a fleet's folder. Results that cannot be read become the reason of their device."""
    summary = open_fleet(folder)
    return [_part(folder, summary.get("what", "bench"), name, record) for name, record in summary["devices"].items()]


def _part(folder: Path, what: str, name: str, record: DeviceRecord) -> Part:
    own = folder / name
    part = Part(name, record, pages=sorted(f"{name}/{path.name}" for path in own.glob("*.html")))
    try:
        if (own / INFO).is_file():
            part.results = open_results(own)
            part.rows = part.results.rows
            part.caps = next(iter(part.results.info.get("devices", {}).values()), {})
        elif what == "profile" and (own / RUN).is_file():
            _profiled(part, own / RUN)
    except (ResultsError, RunFileError) as error:
        part.record = {**record, "state": "failed", "reason": str(error)}
    document = read_document(folder / OWN / f"{name}.json")
    if "error" not in document:
        _facts(part, what, document)
    return part


def _profiled(part: Part, path: Path) -> None:
    """A profile as a row of a benchmark."""
    with open_run(path) as run:
        settings, caps = run.meta.get("settings") or {}, run.meta.get("caps") or {}
        batch, target = int(settings.get("batch") or 1), part.record.get("target", "")
        row: dict[str, Any] = {
            "key": f"{settings.get('what')}/{settings.get('size') or 'own'}/{batch}/{part.name}",
            "workload": str(settings.get("what") or "not known"),
            "size": str(settings.get("size") or "own"),
            "device": target,
            "batch": batch,
            "status": "trained" if run.complete else "failed",
            "reason": "" if run.complete else "the run was cut off",
            "processor": str(caps.get("name", "not known")),
            "began": str(run.meta.get("created", "")),
            **measured(run, batch, target),
        }
    part.rows, part.caps = [row], caps  # type: ignore[list-item]


def _facts(part: Part, what: str, document: dict[str, Any]) -> None:
    if what == "tune" and document:
        part.facts = {
            "shapes": float(len(document.get("signatures", []))),
            "default ms": document.get("default_ms"),
            "tuned ms": document.get("best_ms"),
        }
    elif what == "doctor" and document:
        part.facts = {name: float(n) for name, n in document.get("counts", {}).items()}
        part.caps = part.caps or document.get("caps") or {}
    elif what == "study das2022":
        part.caps = part.caps or document.get("caps") or {}


# ── whether a command came to a good end ──────────────────────────────────────────────────────


def judge(what: str, folder: Path) -> Callable[[dict[str, Any], int], str]:
    """A function of the document and the exit code of a device's command: "" or why its end is not good."""
    if what in ("bench", "study liu2019"):
        return functools.partial(_benched, folder)
    return _doctored if what == "doctor" else _coded


def lost_rows(folder: Path) -> list[Row]:
    """The runs of a results folder that ended because the device was lost."""
    try:
        rows = open_results(folder).rows
    except ResultsError:
        return []
    return [row for row in rows if row["status"] == LOST or row.get("error") == "TargetLost"]


def _benched(folder: Path, document: dict[str, Any], code: int) -> str:
    if lost := lost_rows(folder):
        what = "1 run was" if len(lost) == 1 else f"{len(lost)} runs were"
        return f"{what} lost: {lost[0]['reason']}. The same command repeats them"
    if not code:
        return ""
    rows = open_results(folder).rows
    first = f": {rows[0]['status']}: {rows[0]['reason']}" if rows else ""
    return f"none of {len(rows)} runs trained{first}"


def _doctored(document: dict[str, Any], code: int) -> str:
    counts = document.get("counts", {})
    bad = {state: counts[state] for state in ("failed", "crashed") if counts.get(state)}
    if not bad:
        return _coded(document, code)
    return f"of {document.get('cases')} op cases, " + " and ".join(f"{n} {state}" for state, n in bad.items())


def _coded(document: dict[str, Any], code: int) -> str:
    return f"the command ended with code {code}" if code else ""

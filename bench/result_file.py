"""Results as data: one JSON file per benchmark, one row per figure.

`--json FILE` of a benchmark writes such a file. Where FILE exists, rows of the same `what` and `device` are
replaced and the others stay, so that `--json results/peers.json` brings a new run into the page docs/results.md,
which scripts/make_results.py writes from the files in results/.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DEVICES = ROOT / "results" / "devices.json"

Value = float | int | str | None


@dataclass(frozen=True)
class Row:
    """One figure. `details` are further columns of its table; `figures` holds everything else that was measured."""

    what: str
    device: str
    value: Value
    unit: str = ""
    #: value divided by the value of `against`, where two things are compared
    ratio: float | None = None
    against: str = ""
    date: str = ""
    commit: str = ""
    command: str = ""
    notes: str = ""
    #: such as "ratio <= 1.2", about ratio, value or a name in `details`; the page lists figures that miss it
    goal: str = ""
    details: dict[str, Value] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, str]:
        return self.what, self.device, self.against

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached; None without a goal or without the figure that it names."""
        figure = self.judged
        if not isinstance(figure, float | int):
            return None
        _, sense, limit = self.goal.rsplit(" ", 2)
        return figure <= float(limit) if sense == "<=" else figure >= float(limit)

    @property
    def judged(self) -> Value:
        """The figure that the goal is about."""
        name = self.goal.rsplit(" ", 2)[0] if self.goal else ""
        return {"": None, **self.details, "ratio": self.ratio, "value": self.value}.get(name)


@dataclass(frozen=True)
class ResultFile:
    title: str
    rows: tuple[Row, ...]
    #: sections of the page are sorted by this
    order: int = 100
    #: what the columns mean, one paragraph per entry
    about: tuple[str, ...] = ()
    #: a sentence for the top of the page; {ratio:WHAT|DEVICE} and {value:WHAT|DEVICE} are looked up in the rows
    summary: str = ""

    def find(self, what: str, device: str) -> Row:
        for row in self.rows:
            if (row.what, row.device) == (what, device):
                return row
        raise KeyError(f"{self.title}: no row {what!r} on {device!r}")


def read(path: Path) -> ResultFile:
    data = json.loads(path.read_text(encoding="utf-8"))
    known = {f.name for f in fields(Row)}
    for row in data["rows"]:
        if unknown := set(row) - known:
            raise ValueError(f"{path}: a row has unknown fields {sorted(unknown)}. Known: {sorted(known)}")
    rows = tuple(Row(**row) for row in data.pop("rows"))
    return ResultFile(rows=rows, about=tuple(data.pop("about", ())), **data)


def write(path: Path, content: ResultFile) -> None:
    """Writes the file. Empty fields are left out."""
    data = asdict(content)
    data["rows"] = [{k: v for k, v in row.items() if v not in (None, "", {}) or k == "value"} for row in data["rows"]]
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def save(path: str | Path, title: str, rows: Sequence[Row]) -> None:
    """Writes the rows of a run that ended now; rows of an existing file that were not measured again stay."""
    date, commit, command = datetime.now(timezone.utc).date().isoformat(), commit_of(ROOT), command_line()
    new = {
        row.key: replace(row, date=row.date or date, commit=row.commit or commit, command=row.command or command)
        for row in rows
    }
    path = Path(path)
    old = read(path) if path.is_file() else ResultFile(title, ())
    kept = tuple(replace(new.pop(row.key), goal=row.goal) if row.key in new else row for row in old.rows)
    write(path, replace(old, rows=kept + tuple(new.values())))


def commit_of(folder: Path) -> str:
    """The short commit, with a + if src or bench has uncommitted changes; empty without git."""

    def ask(*words: str) -> str:
        try:
            done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=True)
        except (OSError, subprocess.SubprocessError):
            return ""
        return done.stdout.strip()

    commit = ask("rev-parse", "--short=7", "HEAD")
    changed = commit and ask("status", "--porcelain", "--untracked-files=no", "--", "src", "bench")
    return f"{commit}+" if changed else commit


def command_line() -> str:
    """The command of this process, without --json and its file."""
    words = list(sys.argv[1:])
    if "--json" in words:
        at = words.index("--json")
        del words[at : at + 2]
    words = [w for w in words if not w.startswith("--json=")]
    return " ".join(["python", f"bench/{Path(sys.argv[0]).name}", *words])


def device_id(name: str, driver: str) -> str:
    """The short name that results/devices.json has for a device, or the device's own name."""
    for device in json.loads(DEVICES.read_text(encoding="utf-8")) if DEVICES.is_file() else ():
        if device.get("name") == name and device.get("driver", "") in driver:
            return str(device["id"])
    return name

"""What files and processes tell about the progress of a command, and what they still hold after a kill."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import psutil
from fault_watch import Bed, Kill, used_s

from handheld.analyse.run import open_run
from handheld.errors import HandheldError
from handheld.package import load_state

BUSY_S = 0.15  # Runners that have computed for this long are in the middle of something.

Row = dict[str, Any]


class Versions:
    """Counts how often a file is replaced from now on."""

    def __init__(self, path: Path) -> None:
        self.path, self.count = path, 0
        self.last = self._mark()

    def _mark(self) -> tuple[int, int] | None:
        with contextlib.suppress(OSError):
            found = self.path.stat()
            return found.st_ino, found.st_mtime_ns
        return None

    def seen(self) -> int:
        now = self._mark()
        self.count, self.last = self.count + (now != self.last), now
        return self.count


class Work:
    """Whether the runners have computed for a while since this was asked first."""

    def __init__(self, bed: Bed) -> None:
        self.bed, self.before = bed, dict[int, float]()
        self.asked = False

    def begun(self) -> bool:
        now = {process.pid: used_s(process) for process in self.bed.runners()}
        if not self.asked:
            self.before, self.asked = now, True
        return sum(spent - self.before.get(number, 0.0) for number, spent in now.items()) > BUSY_S


def command_line(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


# ── checkpoints and run files ─────────────────────────────────────────────────────────────────


def saved_step(path: Path) -> int:
    """The step of a checkpoint; 0 if there is none."""
    return int(load_state(path)[1]["history"]["steps"]) if path.exists() else 0


def same_training(one: Path, other: Path) -> bool:
    """Whether two checkpoints have the same bits in the whole state, and the same losses of all epochs."""
    (want, facts), (got, others) = load_state(one), load_state(other)
    losses, more = ([epoch["loss"] for epoch in f["history"]["epochs"]] for f in (facts, others))
    return set(want) == set(got) and losses == more and all(want[n].tobytes() == got[n].tobytes() for n in want)


def check_run(kill: Kill, path: Path) -> None:
    """A run file must open and be understood."""
    try:
        with open_run(path) as run:
            run.summary()
    except HandheldError as error:
        kill.faults.append(f"{path.name} does not open: {error}")


# ── results folders ───────────────────────────────────────────────────────────────────────────


def lines_of(folder: Path) -> list[str]:
    """The complete rows of a results folder, as they are written."""
    with contextlib.suppress(OSError):
        return (folder / "results.jsonl").read_text().split("\n")[:-1]
    return []


def rows_of(folder: Path) -> list[Row]:
    return [json.loads(line) for line in lines_of(folder)]


def trained(rows: list[Row]) -> dict[str, float]:
    """The runs that were measured, with their losses."""
    return {row["key"]: row["loss"] for row in rows if row["status"] == "trained"}

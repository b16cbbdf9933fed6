"""The run files of a folder."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from handheld.analyse.run import ENOUGH, Run, open_run
from handheld.errors import RunFileError
from handheld.report.run_payload import title
from handheld.store.alive import alive
from handheld.store.record import Record

DEPTH = 3  # how many folders deep run files are looked for: results folders have theirs in runs/
_BESIDE = ("-wal", "-shm", "-journal")  # files that SQLite keeps beside a database


@dataclass(frozen=True, slots=True)
class Listed(Record):
    """What the list says about a run. `name` is its path in the folder; `begun` is in seconds since 1970."""

    name: str
    what: str
    device: str
    batch: int | None
    step_ms: float | None
    steps: int
    joules: float | None
    peak_bytes: int | None
    begun: float | None
    status: str


@dataclass(frozen=True)
class Content:
    """What a folder holds: its runs, the files named .run that cannot be read with the reason, the number of files
    named .run that were not read yet, and the number of other files."""

    runs: tuple[Listed, ...]
    unread: tuple[tuple[str, str], ...]
    waiting: int
    others: int


class RunFolder:
    """A folder whose run files are shown. A file is read again only if it has changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._root = path.resolve()
        self._known: dict[str, tuple[tuple[object, ...], Listed | str]] = {}
        self._lock = threading.Lock()

    def content(self, seconds: float = math.inf) -> Content:
        """What the folder holds. New files are read for so many seconds; the next call continues."""
        runs, unread, waiting, others = [], [], 0, 0
        until = time.monotonic() + seconds
        for file in self._files():
            if file.suffix != ".run":
                others += not file.name.endswith(tuple(f".run{ending}" for ending in _BESIDE))
                continue
            name = file.relative_to(self._root).as_posix()
            listed = self._listed(name, file, time.monotonic() < until)
            if listed is None:
                waiting += 1
            elif isinstance(listed, str):
                unread.append((name, listed))
            else:
                runs.append(listed)
        return Content(tuple(runs), tuple(unread), waiting, others)

    def count(self) -> int:
        """The number of files named .run."""
        return sum(file.suffix == ".run" for file in self._files())

    def find(self, name: str) -> Path | None:
        """The run file of this name, or None. Only files that the list could show are found: nothing outside the
        folder, whatever the name says."""
        return next(
            (f for f in self._files() if f.suffix == ".run" and f.relative_to(self._root).as_posix() == name), None
        )

    def _files(self) -> Iterator[Path]:
        """All files of the folder. Hidden ones and links that lead out of the folder are left out."""
        for where, folders, files in os.walk(self._root):
            depth = len(Path(where).relative_to(self._root).parts)
            folders[:] = sorted(name for name in folders if not name.startswith(".")) if depth < DEPTH else []
            for name in sorted(files):
                file = Path(where) / name
                if not name.startswith(".") and file.resolve().is_relative_to(self._root):
                    yield file

    def _listed(self, name: str, file: Path, may_read: bool) -> Listed | str | None:
        """The row of a file, or why it cannot be read. None if it would have to be read first and may not."""
        state = _state(file)
        with self._lock:
            known = self._known.get(name)
        # A run that goes on may end without a change of its file.
        if known is not None and known[0] == state and not _running(known[1]):
            return known[1]
        if not may_read:
            return known[1] if known is not None else None
        try:
            with open_run(file) as run:
                listed: Listed | str = _row(name, run)
        except RunFileError as error:
            listed = str(error)
        with self._lock:
            self._known[name] = (state, listed)
        return listed


def _running(listed: Listed | str) -> bool:
    return isinstance(listed, Listed) and listed.status == "running"


def _state(file: Path) -> tuple[object, ...]:
    """Changes when the file or its journal does."""
    state: list[object] = []
    for path in (file, file.with_name(f"{file.name}-wal")):
        try:
            known = path.stat()
            state += [known.st_mtime_ns, known.st_size]
        except OSError:
            state.append(None)
    return tuple(state)


def _row(name: str, run: Run) -> Listed:
    rail = next((row for row in run.energy() if row.joules_step is not None and not row.part_of), None)
    begun = run.meta.get("begun_unix_ns")
    times = run.variance().times  # The recorded steps, which take longer to read, are not needed if there are others.
    return Listed(
        name=name,
        what=title(run),
        device=_device(run),
        batch=next((step.batch for step in run.steps()), None),
        step_ms=times.median if times is not None and times.n >= ENOUGH else run.step_ms()[0],
        steps=sum(step.graph == run.graph for step in run.steps()),
        joules=rail.joules_step if rail else None,
        peak_bytes=run.memory_summary().peak_bytes,
        begun=begun * 1e-9 if begun else None,
        status=status(run),
    )


def _device(run: Run) -> str:
    """Two phones of one model have devices of one name, so the target is named too."""
    name = str((run.meta.get("caps") or {}).get("name") or run.meta.get("device") or "not known")
    target = run.meta.get("target")
    return f"{name} of {target}" if target else name


def status(run: Run) -> str:
    """`complete`, `running`, `killed`, or what the file says."""
    said = str(run.meta.get("status", "unknown"))
    if said != "running":
        return said
    going = alive(run.meta.get("process"))
    return "running" if going else "unknown" if going is None else "killed"

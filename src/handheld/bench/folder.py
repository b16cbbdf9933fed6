"""The results folder.

    bench.json          what it is: format and version, devices, machine, settings, all cases
    results.jsonl   a row a run, in one line of JSON; of two with one key the later one counts
    runs/           the run files that rows name
    steps/          captured steps that are still to be run; nothing after the end
    lock            whose process writes here

A run is done when its line is there, with its end: a line is written at once and synced, and what
follows the last line's end was cut off by a kill and does not count.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from handheld.bench.shapes import Info, Row
from handheld.device import canonical
from handheld.errors import HandheldError, ResultsError

try:
    import fcntl
except ImportError:  # no Unix: nothing can be locked there, and bench says so
    fcntl = None  # type: ignore[assignment]

FORMAT = 1
INFO, ROWS, RUNS, STEPS, LOCK = "bench.json", "results.jsonl", "runs", "steps", "lock"


class Results:
    """A folder as it was when it was opened."""

    def __init__(self, folder: Path, info: Info, lines: list[Row], notes: list[str]) -> None:
        self.folder, self.info, self.lines, self.notes = folder, info, lines, notes

    @property
    def rows(self) -> list[Row]:
        """One a key, the latest; in the order they were run."""
        return list({row["key"]: row for row in self.lines}.values())

    def run_path(self, row: Row) -> Path | None:
        """Its run file; None if it has none."""
        name = row.get("run")
        return self.folder / name if name else None


def open_results(folder: str | Path) -> Results:
    """Reads a results folder; ResultsError if it is none, damaged, or of another format."""
    folder = Path(folder)
    info = _info(folder)
    lines, _, notes = _read(folder / ROWS)
    return Results(folder, info, lines, [*info.get("notes", []), *notes])


def _info(folder: Path) -> Info:
    path = folder / INFO
    if not path.is_file():
        raise ResultsError(
            f"{folder} is no results folder: there is no {INFO} in it. Try: handheld bench --out {folder}"
        )
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
        written = info["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ResultsError(
            f"{path} is damaged: {error!r}. Try: another --out; its run files in {folder / RUNS} still open"
        ) from None
    if written != FORMAT:
        raise ResultsError(
            f"{folder} has format {written!r}, of Handheld {info.get('handheld')}; "
            f"this one reads and writes format {FORMAT}. Try: another --out, or "
            "that version of Handheld"
        )
    return _info_today(info)


def _info_today(info: dict[str, Any]) -> Info:
    """With the names that devices have today, for a folder that was written before they were renamed."""
    devices = info.get("devices", {})
    renamed = {canonical(name): caps | {"kind": canonical(caps.get("kind", ""))} for name, caps in devices.items()}
    cases = [case | {"device": canonical(case["device"])} for case in info.get("cases", [])]
    return cast(Info, {**info, "devices": renamed, "cases": cases})


def _read(path: Path) -> tuple[list[Row], int, list[str]]:
    """The rows, how many bytes of the file they are, and what there is to say."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return [], 0, []
    except OSError as error:
        raise ResultsError(f"{path} cannot be read: {error.strerror}") from error
    end = data.rfind(b"\n") + 1
    notes = [f"the last line of {path.name} was cut off and does not count"] if data[end:] else []
    rows = []
    for number, line in enumerate(data[:end].splitlines(), 1):
        try:
            row = json.loads(line)
            row["key"], row["status"]
        except (ValueError, KeyError, TypeError):
            raise ResultsError(
                f"{path} is damaged in line {number}. Try: delete that line; its run is then done again"
            ) from None
        device = str(row.get("device", ""))
        if canonical(device) != device:  # a key ends in the device
            row |= {"device": canonical(device), "key": row["key"].removesuffix(device) + canonical(device)}
        rows.append(row)
    return rows, end, notes


class Writer:
    """A folder that this process writes, and no other."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        new = not self.folder.exists()
        try:
            (self.folder / RUNS).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ResultsError(f"{self.folder} cannot be made: {error.strerror}") from error
        self._lock = _locked(self.folder)
        self._made = new

    def open(self) -> Results | None:
        """What is there already; a line that was cut off is dropped. None: it is new."""
        if not (self.folder / INFO).exists():
            others = {path.name for path in self.folder.iterdir()} - {RUNS, LOCK, f"{INFO}.new"}
            if others or any((self.folder / RUNS).iterdir()):
                raise ResultsError(f"{self.folder} is no results folder, and holds other files. Try: another --out")
            return None
        results = open_results(self.folder)
        path = self.folder / ROWS
        _, end, notes = _read(path)
        if notes:
            with path.open("r+b") as file:
                file.truncate(end)
                os.fsync(file.fileno())
        shutil.rmtree(self.folder / STEPS, ignore_errors=True)  # of a model that may have changed
        return results

    def describe(self, info: Info) -> None:
        """Writes bench.json, whole or not at all."""
        text = json.dumps({"format": FORMAT, **info}, indent=1, allow_nan=False) + "\n"
        new = self.folder / f"{INFO}.new"
        try:
            new.write_text(text, encoding="utf-8")
            _sync(new)
            os.replace(new, self.folder / INFO)
            _sync(self.folder)
        except OSError as error:
            raise ResultsError(f"{self.folder / INFO} could not be written: {error.strerror}") from error

    def append(self, row: Row) -> None:
        """A row that is done: its run file first, then its line, both synced."""
        run = row.get("run")
        if run:
            _sync(self.folder / run)
        line = json.dumps(_finite(row), ensure_ascii=False, allow_nan=False).encode() + b"\n"
        path = self.folder / ROWS
        new = not path.exists()
        try:
            file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                before = os.fstat(file).st_size
                if os.write(file, line) != len(line):
                    os.ftruncate(file, before)  # half a line would spoil the next one
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(file)
            finally:
                os.close(file)
            if new:
                _sync(self.folder)
        except OSError as error:
            raise ResultsError(
                f"{path} could not be written: {error.strerror}. Rows before this "
                "one are kept; make room and run the same command"
            ) from error

    def run_file(self, name: str) -> str:
        """The place of a run file, free: what a kill left there is gone."""
        for ending in ("", "-wal", "-shm", "-journal"):
            (self.folder / RUNS / f"{name}.run{ending}").unlink(missing_ok=True)
        return f"{RUNS}/{name}.run"

    def step_file(self, name: str) -> Path:
        (self.folder / STEPS).mkdir(exist_ok=True)
        return self.folder / STEPS / f"{name}.step"

    def forget_steps(self) -> None:
        shutil.rmtree(self.folder / STEPS, ignore_errors=True)

    def close(self) -> None:
        if self._lock is not None:
            os.ftruncate(self._lock, 0)
            os.close(self._lock)
            self._lock = None
        if self._made and not (self.folder / INFO).exists():  # nothing came of it
            (self.folder / LOCK).unlink(missing_ok=True)
            for made in (self.folder / RUNS, self.folder):
                with contextlib.suppress(OSError):
                    made.rmdir()


def _locked(folder: Path) -> int | None:
    """The lock, held as long as this process lives: no kill leaves one behind."""
    if fcntl is None:
        raise HandheldError("bench needs file locks, which this system does not have")
    file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        owner = os.read(file, 32).decode(errors="replace").strip()
        os.close(file)
        raise ResultsError(
            f"{folder} is being written by process {owner or '(unknown)'}. Try: wait for it, or another --out"
        ) from None
    os.ftruncate(file, 0)
    os.write(file, f"{os.getpid()}\n".encode())
    return file


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _finite(data: object) -> object:
    """NaN and infinities are no JSON: they become null."""
    if isinstance(data, dict):
        return {str(key): _finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def statuses(rows: Iterable[Row]) -> dict[str, int]:
    """How many rows have each status, the most frequent first."""
    found: dict[str, int] = {}
    for row in rows:
        found[row["status"]] = found.get(row["status"], 0) + 1
    return dict(sorted(found.items(), key=lambda item: -item[1]))

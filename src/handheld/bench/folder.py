"""The results folder: reading and writing it.

    bench.json      format and version, devices, machine, settings, all cases
    results.jsonl   one line of JSON per run; of two lines with the same key, the later one counts
    runs/           the run files that the rows name
    steps/          captured steps that still have to run; removed at the end
    lock            the process that writes here

A run is done when its whole line is in the file. Each line is written at once and synced. An incomplete
last line was cut off by a kill and does not count.
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
except ImportError:  # Only Unix has fcntl. Without it no folder can be locked, and bench refuses to run.
    fcntl = None  # type: ignore[assignment]

FORMAT = 1
INFO, ROWS, RUNS, STEPS, LOCK = "bench.json", "results.jsonl", "runs", "steps", "lock"


class Results:
    """The content of a folder at the time when it was opened."""

    def __init__(self, folder: Path, info: Info, lines: list[Row], notes: list[str]) -> None:
        self.folder, self.info, self.lines, self.notes = folder, info, lines, notes

    @property
    def rows(self) -> list[Row]:
        """The latest row of each key, in the order of the runs."""
        return list({row["key"]: row for row in self.lines}.values())

    def run_path(self, row: Row) -> Path | None:
        """The run file of a row, or None."""
        name = row.get("run")
        return self.folder / name if name else None


def open_results(folder: str | Path) -> Results:
    """Read a results folder. Raises ResultsError if it is not one, is damaged, or has another format."""
    folder = Path(folder)
    info = _info(folder)
    lines, _, notes = _read(folder / ROWS)
    return Results(folder, info, lines, [*info.get("notes", []), *notes])


def _info(folder: Path) -> Info:
    path = folder / INFO
    if folder.is_file():
        raise ResultsError(f"{folder} is a file. Try: the folder that handheld bench --out FOLDER wrote")
    if not path.is_file():
        why = f"it has no {INFO}" if folder.is_dir() else "there is no such folder"
        raise ResultsError(f"{folder} is not a results folder: {why}. Try: handheld bench --out {folder}")
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
        written = info["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ResultsError(
            f"{path} is damaged: {error!r}. Try: another --out; its run files in {folder / RUNS} still open"
        ) from None
    if written != FORMAT:
        raise ResultsError(
            f"{folder} has format {written!r}, written by Handheld {info.get('handheld')}; "
            f"this version reads and writes format {FORMAT}. Try: another --out, or "
            "that version of Handheld"
        )
    return _info_today(info)


def _info_today(info: dict[str, Any]) -> Info:
    """The same with today's device names, for a folder that was written before devices were renamed."""
    devices = info.get("devices", {})
    renamed = {canonical(name): caps | {"kind": canonical(caps.get("kind", ""))} for name, caps in devices.items()}
    cases = [case | {"device": canonical(case["device"])} for case in info.get("cases", [])]
    return cast(Info, {**info, "devices": renamed, "cases": cases})


def _read(path: Path) -> tuple[list[Row], int, list[str]]:
    """The rows, how many bytes of the file they take, and notes for the user."""
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
                f"{path} is damaged in line {number}. Try: delete that line; its run will then be repeated"
            ) from None
        device = str(row.get("device", ""))
        if canonical(device) != device:  # The key ends with the device, so it must change too.
            row |= {"device": canonical(device), "key": row["key"].removesuffix(device) + canonical(device)}
        rows.append(row)
    return rows, end, notes


class Writer:
    """A results folder that only this process writes."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        new = not self.folder.exists()
        try:
            (self.folder / RUNS).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ResultsError(f"{self.folder} cannot be created: {error.strerror}") from error
        self._lock = locked(self.folder)
        self._made = new

    def open(self) -> Results | None:
        """The rows that exist already, or None for a new folder. An incomplete last line is removed."""
        if not (self.folder / INFO).exists():
            others = {path.name for path in self.folder.iterdir()} - {RUNS, LOCK, f"{INFO}.new"}
            if others or any((self.folder / RUNS).iterdir()):
                raise ResultsError(f"{self.folder} is not a results folder, but holds other files. Try: another --out")
            return None
        results = open_results(self.folder)
        path = self.folder / ROWS
        _, end, notes = _read(path)
        if notes:
            with path.open("r+b") as file:
                file.truncate(end)
                os.fsync(file.fileno())
        shutil.rmtree(self.folder / STEPS, ignore_errors=True)  # The model may have changed since.
        return results

    def describe(self, info: Info) -> None:
        """Write bench.json, completely or not at all."""
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
        """Write the row of a finished run: sync its run file first, then its line."""
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
                    os.ftruncate(file, before)  # An incomplete line would damage the next one.
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(file)
            finally:
                os.close(file)
            if new:
                _sync(self.folder)
        except OSError as error:
            raise ResultsError(
                f"{path} could not be written: {error.strerror}. Rows before this "
                "one are kept. Try: free some space and run the same command"
            ) from error

    def run_file(self, name: str) -> str:
        """A path for a run file. A file that a killed process left there is removed."""
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
        if self._made and not (self.folder / INFO).exists():  # Nothing was measured, so the new folder is removed.
            (self.folder / LOCK).unlink(missing_ok=True)
            for created in (self.folder / RUNS, self.folder):
                with contextlib.suppress(OSError):
                    created.rmdir()


def locked(folder: Path) -> int | None:
    """A lock that is held while this process lives, so a kill does not leave one behind."""
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
    """The data with null for NaN and infinities, which JSON does not have."""
    if isinstance(data, dict):
        return {str(key): _finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def statuses(rows: Iterable[Row]) -> dict[str, int]:
    """How many rows have each status, the most frequent first."""
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["status"]] = counts.get(row["status"], 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))

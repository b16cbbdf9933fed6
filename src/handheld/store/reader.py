"""Reads a run file and returns its rows as records. The folder analyse/ interprets them."""

from __future__ import annotations

import json
import os
import sqlite3
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from handheld.device import canonical
from handheld.errors import RunFileError
from handheld.store.commands import Commands, from_bytes
from handheld.store.rows import Row, coding
from handheld.store.writer import APPLICATION, VERSION

_HEADER = b"SQLite format 3\0"


R = TypeVar("R", bound=Row)


@dataclass(frozen=True)
class Readings:
    """Readings of one source: the time of each in ns, and one column of values per channel."""

    t_ns: np.ndarray
    values: np.ndarray


class RunFile:
    """A run file, open for reading. Another process may still be writing to it."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if self.path.is_dir():
            files = sorted((*self.path.glob("*.run"), *self.path.glob("runs/*.run")))
            some = f"one of its run files, such as {files[0]}" if files else "a run file (FILE.run)"
            raise RunFileError(f"{self.path} is a folder, not a run file. Try: {some}")
        if not self.path.is_file():
            raise RunFileError(f"there is no run file {self.path}. Try: handheld profile MODEL --out {self.path}")
        with self.path.open("rb") as file:
            if file.read(len(_HEADER)) != _HEADER:
                raise RunFileError(f"{self.path} is not a run file of Handheld")
        try:
            self.db, application, version = self._open()
        except sqlite3.Error as error:
            raise self._damaged(error) from None
        if application != APPLICATION:
            raise RunFileError(f"{self.path} is an SQLite database, but not a run file of Handheld")
        if version > VERSION:
            raise RunFileError(
                f"{self.path} was written by a newer Handheld (version {version}; "
                f"this one reads up to {VERSION}). Try: install that version here"
            )
        self.meta = _today({k: json.loads(v) for k, v in self.rows("SELECT key, value FROM meta")})

    def _open(self) -> tuple[sqlite3.Connection, int, int]:
        """The database, its application id and its version."""
        # Not opened read-only, so that SQLite can apply the journal of a killed process.
        db = sqlite3.connect(self.path, timeout=10.0)
        try:
            return db, _pragma(db, "application_id"), _pragma(db, "user_version")
        except sqlite3.OperationalError:
            if os.access(self.path.parent, os.W_OK):
                raise
            # The folder is read-only, so nobody writes to the file either.
            db.close()
            db = sqlite3.connect(f"{self.path.absolute().as_uri()}?immutable=1", uri=True)
            return db, _pragma(db, "application_id"), _pragma(db, "user_version")

    def _damaged(self, why: object) -> RunFileError:
        return RunFileError(
            f"{self.path} is damaged: {why}. Try: copy it again, and the file "
            f"{self.path.name}-wal with it if there is one"
        )

    def rows(self, query: str, *args: object) -> list[tuple[Any, ...]]:
        try:
            return self.db.execute(query, args).fetchall()
        except sqlite3.Error as error:
            raise self._damaged(error) from None

    def table(self, kind: type[R], where: str = "", *args: object) -> list[R]:
        """The rows of a table as records; `where` is the rest of the query. Columns that an older version did not
        write get the default of the record's field."""
        present = {column[1] for column in self.rows(f"PRAGMA table_info({kind.table})")}
        missing = [field.name for field in fields(kind) if field.name not in present and _needed(field)]
        if missing:
            raise self._damaged(f"its table {kind.table} has no column {missing[0]}")
        columns = [field for field in fields(kind) if field.name in present]
        names, codings = [field.name for field in columns], [coding(field) for field in columns]
        records = []
        for row in self.rows(f"SELECT {', '.join(names)} FROM {kind.table} {where}", *args):
            try:
                values = (v if coded is None else coded.read(v) for v, coded in zip(row, codings, strict=True))
                records.append(kind(**dict(zip(names, values, strict=True))))
            except (ValueError, TypeError) as error:
                raise self._damaged(f"a row of its table {kind.table} cannot be read: {error}") from None
        return records

    def readings(self, source: int, channels: int) -> Readings:
        """All readings of a source that has `channels` channels. Incomplete rows are left out."""
        rows = self.rows("SELECT t_ns, data FROM reading WHERE source=? ORDER BY t_ns", source)
        complete = [(t_ns, data) for t_ns, data in rows if len(data) == 8 * channels]
        values = np.frombuffer(b"".join(data for _, data in complete), "<f8").reshape(len(complete), channels)
        return Readings(np.array([t_ns for t_ns, _ in complete], np.int64), values)

    def commands(self, step: int) -> Commands | None:
        """The commands of a step, or None if it was not recorded."""
        rows = self.rows("SELECT count, data FROM command WHERE step=?", step)
        if not rows:
            return None
        count, data = rows[0]
        commands = from_bytes(count, data)
        if commands is None:
            raise self._damaged(f"the commands of step {step} are {len(data)} bytes long")
        return commands

    def close(self) -> None:
        self.db.close()


def _today(meta: dict[str, Any]) -> dict[str, Any]:
    """The meta data with current device names. Older files also use `torch:cpu` for plain PyTorch under `watch`; its
    name is now `pytorch:cpu`."""
    settings, caps = meta.get("settings"), meta.get("caps")
    watched = isinstance(settings, dict) and bool(settings.get("watch"))

    def name(old: str) -> str:
        return f"py{old}" if watched and old.partition(":")[0] == "torch" else canonical(old)

    if isinstance(meta.get("device"), str):
        meta["device"] = name(meta["device"])
    if isinstance(caps, dict) and isinstance(caps.get("kind"), str):
        meta["caps"] = {**caps, "kind": name(caps["kind"])}
    return meta


def _needed(field: Field[Any]) -> bool:
    """Whether every version of the file has this column."""
    return field.default is MISSING and field.default_factory is MISSING


def _pragma(db: sqlite3.Connection, name: str) -> int:
    return int(db.execute(f"PRAGMA {name}").fetchone()[0])

"""Writes a run file during the run.

A separate thread commits the rows every quarter of a second. A process that is killed loses about that much, and the
file can still be opened. If the disk is full, this is reported once; rows that cannot be written are kept in memory
until they can be written or the run ends.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable
from importlib import resources
from pathlib import Path

from handheld.errors import RunFileError
from handheld.sensors.sink import SCHEMA as SENSOR_SCHEMA
from handheld.store.rows import NoteRow, Row
from handheld.units import count

APPLICATION = 0x4848726E  # "HHrn"
VERSION = 1
COMMIT_S = 0.25
MOST_ROWS = 100_000  # rows kept in memory while writing fails


class RunWriter:
    """A new run file. Any thread may `put` rows; `close` commits the rest. Notes get their time from `clock`."""

    def __init__(self, path: str | Path, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self.path = Path(path)
        self.clock = clock
        self.problem = ""
        self.lost = 0
        self._rows: list[tuple[str, tuple[object, ...]]] = []
        self._lock, self._commit_lock = threading.Lock(), threading.Lock()
        self._stop = threading.Event()
        if self.path.exists():
            raise RunFileError(f"{self.path} exists. Try: another name, or delete it")
        try:
            _make(self.path)
            self._db = sqlite3.connect(self.path, isolation_level=None, timeout=10.0, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
        except (sqlite3.Error, OSError) as error:
            reason = error if self.path.parent.is_dir() else f"there is no folder {self.path.parent}"
            raise RunFileError(f"{self.path} cannot be created: {reason}. Try: a path in another folder") from None
        self._thread = threading.Thread(target=self._work, name="run file", daemon=True)
        self._thread.start()

    def add(self, row: Row) -> None:
        """Write a record into its table."""
        self.put(row.table, *row.values())

    def put(self, table: str, *row: object) -> None:
        """Write one row: the values of a table's columns, in order."""
        with self._lock:
            self._rows.append((table, row))

    def put_all(self, table: str, rows: Iterable[tuple[object, ...]]) -> None:
        with self._lock:
            self._rows.extend((table, row) for row in rows)

    def meta(self, **values: object) -> None:
        for key, value in values.items():
            self.put("meta", key, json.dumps(value))

    def note(self, kind: str, text: str) -> None:
        self.add(NoteRow(self.clock(), kind, text))

    def commit(self) -> None:
        with self._commit_lock:
            with self._lock:
                rows, self._rows = self._rows, []
            if not rows:
                return
            try:
                self._db.execute("BEGIN IMMEDIATE")
                for (table, width), group in itertools.groupby(rows, lambda row: (row[0], len(row[1]))):
                    places = ", ".join("?" * width)
                    self._db.executemany(f"REPLACE INTO {table} VALUES ({places})", [row for _, row in group])
                self._db.execute("COMMIT")
                self.problem = ""
            except sqlite3.Error as error:
                with contextlib.suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
                self.problem = f"{self.path} could not be written: {error}"
                with self._lock:
                    self._rows = rows + self._rows
                    self.lost += max(len(self._rows) - MOST_ROWS, 0)
                    del self._rows[:-MOST_ROWS]

    def _work(self) -> None:
        while not self._stop.wait(COMMIT_S):
            self.commit()

    def close(self) -> None:
        """Commit the rest and close the file. Raises RunFileError if rows could not be written."""
        self._stop.set()
        self._thread.join()
        self.commit()
        with contextlib.suppress(sqlite3.Error):
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            if not self.problem:
                self._db.execute("PRAGMA journal_mode=DELETE")  # Leaves a single file, unless someone is reading it.
        self._db.close()
        if self.problem:
            raise RunFileError(
                f"{self.problem}. {count(len(self._rows) + self.lost, 'row')} lost; "
                "rows committed before can still be read"
            )


def _make(path: Path) -> None:
    """Create a file with empty tables. It is renamed when complete, so a killed process leaves no incomplete file under
    this name."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with contextlib.closing(sqlite3.connect(partial, isolation_level=None)) as db:
            db.execute("BEGIN")
            for statement in statements():
                db.execute(statement)
            db.execute(f"PRAGMA application_id={APPLICATION}")
            db.execute(f"PRAGMA user_version={VERSION}")
            db.execute("COMMIT")
        partial.rename(path)
    finally:
        partial.unlink(missing_ok=True)


def statements() -> list[str]:
    """The SQL statements of the schema, one by one."""
    text = resources.files("handheld.store").joinpath("schema.sql").read_text()
    lines = [line.partition("--")[0] for line in text.splitlines()]
    return [s for s in (part.strip() for part in ("\n".join(lines) + SENSOR_SCHEMA).split(";")) if s]

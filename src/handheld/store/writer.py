"""Writes a run file as things happen.

Rows are kept in memory for a quarter of a second, then committed by a thread of their own: a
process that is killed loses about that much, and the file opens. A disk that fills is said
once; what cannot be written is kept until it can, or the run ends.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterable
from importlib import resources
from pathlib import Path

from handheld.errors import RunFileError
from handheld.sensors.sink import SCHEMA as SENSOR_SCHEMA
from handheld.store.rows import NoteRow, Row

APPLICATION = 0x4848726E  # "HHrn"
VERSION = 1
COMMIT_S = 0.25
MOST_ROWS = 100_000  # kept in memory while the disk refuses them


class RunWriter:
    """A new run file. `put` rows from any thread; `close` commits what is left."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
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
            why = error if self.path.parent.is_dir() else f"there is no folder {self.path.parent}"
            raise RunFileError(f"{self.path} cannot be made: {why}") from None
        self._thread = threading.Thread(target=self._work, name="run file", daemon=True)
        self._thread.start()

    def add(self, row: Row) -> None:
        """Writes a record into its table."""
        self.put(row.table, *row.values())

    def put(self, table: str, *row: object) -> None:
        """Writes the columns of a table in their order."""
        with self._lock:
            self._rows.append((table, row))

    def put_all(self, table: str, rows: Iterable[tuple[object, ...]]) -> None:
        with self._lock:
            self._rows.extend((table, row) for row in rows)

    def meta(self, **values: object) -> None:
        for key, value in values.items():
            self.put("meta", key, json.dumps(value))

    def note(self, kind: str, text: str) -> None:
        self.add(NoteRow(time.monotonic_ns(), kind, text))

    def commit(self) -> None:
        with self._commit_lock:
            with self._lock:
                rows, self._rows = self._rows, []
            if not rows:
                return
            try:
                self._db.execute("BEGIN IMMEDIATE")
                for (table, width), group in itertools.groupby(rows, lambda one: (one[0], len(one[1]))):
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
        """Commits what is left; RunFileError if that cannot be done."""
        self._stop.set()
        self._thread.join()
        self.commit()
        with contextlib.suppress(sqlite3.Error):
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            if not self.problem:
                self._db.execute("PRAGMA journal_mode=DELETE")  # one plain file, if no one reads it
        self._db.close()
        if self.problem:
            raise RunFileError(
                f"{self.problem}. {len(self._rows) + self.lost} rows are lost; what was committed before opens"
            )


def _make(path: Path) -> None:
    """A file with empty tables, which is there whole or not at all: a process that is killed just
    then leaves nothing under this name."""
    made = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with contextlib.closing(sqlite3.connect(made, isolation_level=None)) as db:
            db.execute("BEGIN")
            for statement in statements():
                db.execute(statement)
            db.execute(f"PRAGMA application_id={APPLICATION}")
            db.execute(f"PRAGMA user_version={VERSION}")
            db.execute("COMMIT")
        made.rename(path)
    finally:
        made.unlink(missing_ok=True)


def statements() -> list[str]:
    """The schema, statement by statement."""
    text = resources.files("handheld.store").joinpath("schema.sql").read_text()
    lines = [line.partition("--")[0] for line in text.splitlines()]
    return [s for s in (one.strip() for one in ("\n".join(lines) + SENSOR_SCHEMA).split(";")) if s]

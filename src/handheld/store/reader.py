"""Reads a run file and returns its rows as records. The folder analyse/ interprets them."""

from __future__ import annotations

import itertools
import os
import sqlite3
from collections.abc import Sequence
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from handheld.device import canonical
from handheld.errors import RunFileError
from handheld.store.checks import Check, column_flaw, count, meta_flaw, whole
from handheld.store.checks import columns as checks_of
from handheld.store.commands import LAUNCH, Commands, flaw_of, from_bytes
from handheld.store.rows import ChannelRow, Row, StepRow, coding, from_json
from handheld.store.writer import APPLICATION, VERSION

_HEADER = b"SQLite format 3\0"
#: SQLite's own errors, and one whose text quotes damaged bytes.
_BROKEN = (sqlite3.Error, UnicodeDecodeError)
DAY_NS = 86_400 * 10**9
MOST_NS = 1000 * DAY_NS  # Steps that last longer than this have damaged times.


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
            name = self.path if self.path.suffix == ".run" else "FILE.run, and then the name of that file"
            raise RunFileError(f"there is no run file {self.path}. Try: handheld profile MODEL --out {name}")
        try:
            with self.path.open("rb") as file:
                ours = file.read(len(_HEADER)) == _HEADER
        except OSError as error:
            raise RunFileError(
                f"{self.path} cannot be read: {error.strerror or error}. Try: check who may read it, or copy it"
            ) from None
        if not ours:
            raise RunFileError(f"{self.path} is not a run file of Handheld")
        try:
            self.db, application, version = self._open()
        except _BROKEN as error:
            raise self.damaged(error) from None
        if application != APPLICATION:
            raise RunFileError(f"{self.path} is an SQLite database, but not a run file of Handheld")
        if version > VERSION:
            raise RunFileError(
                f"{self.path} was written by a newer Handheld (version {version}; "
                f"this one reads up to {VERSION}). Try: install that version here"
            )
        self.meta = _today(self._meta())
        self._ops: frozenset[int] = frozenset()

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

    def damaged(self, why: object) -> RunFileError:
        """The error to raise if the content is impossible."""
        # SQLite quotes a text that is not UTF-8 as a whole, with all its control characters.
        reason = "".join(mark if mark.isprintable() else "?" for mark in str(why).partition(" with text ")[0])
        return RunFileError(
            f"{self.path} is damaged: {reason[:200]}. Try: copy it again, and the file "
            f"{self.path.name}-wal with it if there is one"
        )

    def rows(self, query: str, *args: object) -> list[tuple[Any, ...]]:
        try:
            return self.db.execute(query, args).fetchall()
        except _BROKEN as error:
            raise self.damaged(error) from None

    def _meta(self) -> dict[str, Any]:
        """The entries of `meta`. Each is checked, so that the rest of Handheld can rely on their types."""
        entries: dict[str, Any] = {}
        for key, value in self.rows("SELECT key, value FROM meta"):
            try:
                entries[str(key)] = from_json(value)
            except (ValueError, TypeError) as error:
                raise self.damaged(f"its entry {key!r:.40} cannot be read: {error}") from None
            flaw = meta_flaw(str(key), entries[str(key)])
            if flaw:
                raise self.damaged(f"its entry {key!r:.40}: {flaw}")
        return entries

    def table(self, kind: type[R], where: str = "", *args: object) -> list[R]:
        """The rows of a table as records; `where` is the rest of the query. Columns that an older version did not
        write get the default of the record's field."""
        present = {column[1] for column in self.rows(f"PRAGMA table_info({kind.table})")}
        missing = [field.name for field in fields(kind) if field.name not in present and _needed(field)]
        if missing:
            raise self.damaged(f"its table {kind.table} has no column {missing[0]}")
        columns = [field for field in fields(kind) if field.name in present]
        names = [field.name for field in columns]
        rows = self.rows(f"SELECT {', '.join(names)} FROM {kind.table} {where}", *args)
        checks = checks_of(kind)
        values = [
            self._column(kind, field, checks[field.name], column)
            for field, column in zip(columns, zip(*rows, strict=True), strict=False)
        ]
        records = [kind(**dict(zip(names, row, strict=True))) for row in zip(*values, strict=True)]
        flaw = next((flaw for record in records if (flaw := record.flaw())), "")
        if flaw:
            raise self.damaged(flaw)
        return records

    def newer_table(self, kind: type[R], where: str = "") -> list[R]:
        """The rows of a table that files of older versions do not have; empty for these."""
        known = self.rows("SELECT name FROM sqlite_master WHERE type='table' AND name=?", kind.table)
        return self.table(kind, where) if known else []

    def _column(self, kind: type[R], field: Field[Any], check: Check, column: Sequence[Any]) -> Sequence[Any]:
        """The values of a column as the record has them, checked."""
        coded = coding(field)
        try:
            values = column if coded is None else [coded.read(value) for value in column]
        except (ValueError, TypeError, KeyError) as error:
            raise self.damaged(f"a row of its table {kind.table} cannot be read: {error}") from None
        flaw = column_flaw(check, values)
        if flaw:
            raise self.damaged(f"the column {field.name} of its table {kind.table}: {flaw}")
        return values

    def steps(self) -> list[StepRow]:
        """All steps in their order. Each begins after the one before it, and together they last at most MOST_NS."""
        steps = self.table(StepRow, "ORDER BY id")
        for before, step in itertools.pairwise(steps):
            if step.begin_ns < before.begin_ns:
                raise self.damaged(f"step {step.id} begins before step {before.id}")
        if steps and steps[-1].end_ns - steps[0].begin_ns > MOST_NS:
            raise self.damaged(f"its steps last {(steps[-1].end_ns - steps[0].begin_ns) / DAY_NS:,.0f} days")
        return steps

    def channels(self, source: int) -> list[ChannelRow]:
        """The channels of a source, in the order of the values of a reading."""
        rows = self.table(ChannelRow, "WHERE source=? ORDER BY position", source)
        if [row.position for row in rows] != list(range(len(rows))):
            raise self.damaged(f"the channels of source {source} have the positions {[row.position for row in rows]}")
        return rows

    def readings(self, source: int, channels: int) -> Readings:
        """All readings of a source that has `channels` channels. Incomplete rows are left out."""
        rows = self.rows("SELECT t_ns, data FROM reading WHERE source=? ORDER BY t_ns", source)
        for t_ns, data in rows:
            if flaw := count(t_ns) or ("" if isinstance(data, bytes) else "a reading is not packed numbers"):
                raise self.damaged(f"a reading of source {source}: {flaw}")
        complete = [(t_ns, data) for t_ns, data in rows if len(data) == 8 * channels]
        values = np.frombuffer(b"".join(data for _, data in complete), "<f8").reshape(len(complete), channels)
        return Readings(np.array([t_ns for t_ns, _ in complete], np.int64), values)

    def reading_lengths(self) -> dict[int, int]:
        """From the first to the last reading of each source, in ns."""
        rows = self.rows("SELECT source, max(t_ns) - min(t_ns) FROM reading GROUP BY source")
        return {source: length for source, length in rows if not whole(source) and not whole(length)}

    def commands(self, step: int) -> Commands | None:
        """The commands of a step, or None if it was not recorded."""
        rows = self.rows("SELECT count, data FROM command WHERE step=?", step)
        if not rows:
            return None
        number, data = rows[0]
        if type(number) is not int or number < 0 or not isinstance(data, bytes):
            raise self.damaged(f"the commands of step {step} are not packed numbers")
        commands = from_bytes(number, data)
        if commands is None:
            raise self.damaged(f"the commands of step {step} are {len(data)} bytes long")
        flaw = flaw_of(commands) or self._unknown_op(commands)
        if flaw:
            raise self.damaged(f"the commands of step {step}: {flaw}")
        return commands

    def _unknown_op(self, commands: Commands) -> str:
        """Which op of the commands is not in the table of ops, or ""."""
        launched = set(commands["op"][commands["kind"] == LAUNCH].tolist())
        if not launched <= self._ops:  # They are read again, because a run that goes on may have added some.
            self._ops = frozenset(id_ for (id_,) in self.rows("SELECT id FROM op"))
        unknown = launched - self._ops
        return f"there is no op {min(unknown)}" if unknown else ""

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

"""Where the sampler writes, and how that is read.

A sink lives in the sampler's process. What `write` was given is safe from the death of any process
when it returns. `SqliteSink` is one SQLite file (WAL), a row a reading:

    meta     key, value                     clock, when it began on the wall clock
    source   id, name, about, period_s
    channel  source, position, name, quantity, unit, counter, covers, part_of, update_s
    reading  source, t_ns, data             CLOCK_MONOTONIC; one little-endian double a channel,
                                            NaN where there was none; counters without wraps
    gap      id, source, channel, from_ns, to_ns, reason     channel null: the whole source;
                                            to_ns null: it was never closed
    cost     source, readings, missed, wall_s, max_s, cpu_s  so far
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from handheld.errors import SensorError
from handheld.sensors.base import Channel

VERSION = 1
_META = "CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;"
SCHEMA = """
CREATE TABLE source (id INTEGER PRIMARY KEY, name TEXT, about TEXT, period_s REAL);
CREATE TABLE channel (source INTEGER, position INTEGER, name TEXT, quantity TEXT, unit TEXT,
    counter INTEGER, covers TEXT, part_of TEXT, update_s REAL, PRIMARY KEY (source, position));
CREATE TABLE reading (source INTEGER, t_ns INTEGER, data BLOB);
CREATE TABLE gap (id INTEGER PRIMARY KEY, source INTEGER, channel INTEGER, from_ns INTEGER,
    to_ns INTEGER, reason TEXT);
CREATE TABLE cost (source INTEGER PRIMARY KEY, readings INTEGER, missed INTEGER, wall_s REAL,
    max_s REAL, cpu_s REAL);
"""


@dataclass(frozen=True)
class Reading:
    """All channels of a source at one moment."""

    source: int
    t_ns: int
    data: bytes


@dataclass(frozen=True)
class Gap:
    """A time without readings of a source, or of one of its channels, and why."""

    id: int
    source: int
    channel: int | None
    from_ns: int
    to_ns: int | None  # None while it lasts
    reason: str


@dataclass(frozen=True)
class Cost:
    """What a source has taken so far, and how often each of its channels changed."""

    source: int
    readings: int
    missed: int  # deadlines that passed without a reading
    wall_s: float
    max_s: float
    cpu_s: float
    updates_s: tuple[float | None, ...]  # by channel: the median time between two values


class Sink(Protocol):
    """What the sampler needs of a place to write to: made from its path in the other process."""

    path: str

    def __init__(self, path: str) -> None: ...

    def open(self) -> None:
        """Makes it ready; SensorError if it cannot be."""

    def source(self, number: int, name: str, about: str, period_s: float, channels: tuple[Channel, ...]) -> None:
        """Says once what a source's readings will be."""

    def write(self, readings: Iterable[Reading], gaps: Iterable[Gap], costs: Iterable[Cost]) -> None:
        """Keeps them. A gap that comes again replaces the one with its id; costs are totals."""

    def close(self) -> None: ...


class SqliteSink:
    """One new SQLite file."""

    def __init__(self, path: str) -> None:
        self.path = str(path)
        self._db: sqlite3.Connection | None = None

    def open(self) -> None:
        if Path(self.path).exists():
            raise SensorError(f"{self.path} exists. Try: another name, or delete it")
        try:
            self._db = sqlite3.connect(self.path, isolation_level=None, timeout=10.0)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.executescript(_META + SCHEMA)
            self._db.executemany(
                "INSERT INTO meta VALUES (?, ?)",
                [
                    ("version", VERSION),
                    ("clock", "CLOCK_MONOTONIC"),
                    ("begun_monotonic_ns", time.monotonic_ns()),
                    ("begun_unix_ns", time.time_ns()),
                ],
            )
        except sqlite3.Error as error:
            raise SensorError(f"{self.path} could not be made: {error}") from None

    def source(self, number: int, name: str, about: str, period_s: float, channels: tuple[Channel, ...]) -> None:
        assert self._db is not None
        with self._transaction() as db:
            db.execute("INSERT INTO source VALUES (?, ?, ?, ?)", (number, name, about, period_s))
            db.executemany(
                "INSERT INTO channel VALUES (?, ?, ?, ?, ?, ?, ?, ?, NULL)",
                [
                    (
                        number,
                        position,
                        one.name,
                        one.quantity,
                        one.unit,
                        one.counter,
                        json.dumps(one.covers),
                        one.part_of,
                    )
                    for position, one in enumerate(channels)
                ],
            )

    def write(self, readings: Iterable[Reading], gaps: Iterable[Gap], costs: Iterable[Cost]) -> None:
        with self._transaction() as db:
            db.executemany(
                "INSERT INTO reading VALUES (?, ?, ?)", [(one.source, one.t_ns, one.data) for one in readings]
            )
            db.executemany(
                "REPLACE INTO gap VALUES (?, ?, ?, ?, ?, ?)",
                [(one.id, one.source, one.channel, one.from_ns, one.to_ns, one.reason) for one in gaps],
            )
            for one in costs:
                db.execute(
                    "REPLACE INTO cost VALUES (?, ?, ?, ?, ?, ?)",
                    (one.source, one.readings, one.missed, one.wall_s, one.max_s, one.cpu_s),
                )
                db.executemany(
                    "UPDATE channel SET update_s=? WHERE source=? AND position=?",
                    [
                        (seconds, one.source, position)
                        for position, seconds in enumerate(one.updates_s)
                        if seconds is not None
                    ],
                )

    @contextlib.contextmanager
    def _transaction(self) -> Any:
        assert self._db is not None
        self._db.execute("BEGIN")
        try:
            yield self._db
            self._db.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            raise

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None


class RunSink(SqliteSink):
    """The tables of a run file, which someone else has made and writes to as well."""

    def open(self) -> None:
        try:
            self._db = sqlite3.connect(
                f"{Path(self.path).absolute().as_uri()}?mode=rw", uri=True, isolation_level=None, timeout=10.0
            )
            self._db.execute("SELECT 1 FROM source")
        except sqlite3.Error as error:
            raise SensorError(f"{self.path} is no run file: {error}") from None


class Samples:
    """What a `SqliteSink` holds; it may still be written to while this reads.

    samples = Samples("run.samples")
    t_s, watts = samples.series("nvidia-power", "gpu0 power")
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        if not Path(self.path).is_file():
            raise SensorError(f"there is no file {self.path}")
        try:
            self._db = sqlite3.connect(f"{Path(self.path).absolute().as_uri()}?mode=ro", uri=True)
            version = self._one("SELECT value FROM meta WHERE key='version'")
        except sqlite3.Error as error:
            raise SensorError(f"{self.path} holds no samples: {error}") from None
        if version is None or version > VERSION:
            raise SensorError(
                f"{self.path} is of version {version}, and this Handheld reads up to {VERSION}. Try: a newer Handheld"
            )

    def _one(self, query: str, *args: Any) -> Any:
        row = self._db.execute(query, args).fetchone()
        return None if row is None else row[0]

    def _rows(self, query: str, *args: Any) -> list[dict[str, Any]]:
        cursor = self._db.execute(query, args)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def sources(self) -> list[dict[str, Any]]:
        """A row a source, with what it has cost."""
        return self._rows(
            "SELECT source.*, readings, missed, wall_s, max_s, cpu_s FROM source "
            "LEFT JOIN cost ON cost.source = source.id ORDER BY source.id"
        )

    def channels(self) -> list[dict[str, Any]]:
        """A row a channel; `update_s` is the median time between two values of it."""
        rows = self._rows(
            "SELECT source.name AS source, channel.name, quantity, unit, counter, "
            "covers, part_of, update_s FROM channel JOIN source ON source.id = "
            "channel.source ORDER BY source.id, position"
        )
        return [{**row, "counter": bool(row["counter"]), "covers": tuple(json.loads(row["covers"]))} for row in rows]

    def gaps(self) -> list[dict[str, Any]]:
        """A row a gap, in the order they began."""
        return self._rows(
            "SELECT source.name AS source, channel.name AS channel, from_ns, to_ns, reason FROM "
            "gap JOIN source ON source.id = gap.source LEFT JOIN channel ON channel.source = "
            "gap.source AND channel.position = gap.channel ORDER BY from_ns, gap.id"
        )

    def table(self, source: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Times in ns and a row of values a time, one column a channel, NaN where none was read."""
        number = self._one("SELECT id FROM source WHERE name=?", source)
        if number is None:
            known = ", ".join(row["name"] for row in self.sources())
            raise SensorError(f"{self.path} has no source {source}. It has {known}")
        rows = self._db.execute("SELECT t_ns, data FROM reading WHERE source=? ORDER BY t_ns", (number,)).fetchall()
        width = self._one("SELECT count(*) FROM channel WHERE source=?", number)
        data = np.frombuffer(b"".join(row[1] for row in rows), "<f8").reshape(len(rows), width)
        return np.array([row[0] for row in rows], np.int64), data

    def series(self, source: str, channel: str) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Times in s and values of one channel, without those that are missing."""
        names = [row["name"] for row in self.channels() if row["source"] == source]
        t_ns, data = self.table(source)
        if channel not in names:
            raise SensorError(f"{source} has no channel {channel}. It has {', '.join(names)}")
        values = data[:, names.index(channel)]
        here = ~np.isnan(values)
        return t_ns[here].astype(np.float64) * 1e-9, values[here]

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Samples:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

"""The file that the sampler writes, and its reader.

A sink lives in the sampler's process. When `write` returns, the data survives the death of any process. `SqliteSink`
is one SQLite file (in WAL mode) with one row per reading:

    meta     key, value                     the clock, and the start by the wall clock
    source   id, name, about, period_s
    channel  source, position, name, quantity, unit, counter, covers, part_of, update_s
    reading  source, t_ns, data             by CLOCK_MONOTONIC; one little-endian double per channel, NaN where
                                            there was no value; counters without wraps
    gap      id, source, channel, from_ns, to_ns, reason
                                            channel is null for the whole source; to_ns is null if it never ended
    cost     source, readings, missed, wall_s, max_s, cpu_s      totals until now
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from handheld.errors import SensorError
from handheld.sensors.base import Channel

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

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
    """A time without readings of a source, or of one of its channels, and the reason."""

    id: int
    source: int
    channel: int | None
    from_ns: int
    to_ns: int | None  # None while it lasts
    reason: str


@dataclass(frozen=True)
class Cost:
    """What reading a source has cost so far, and how often each of its channels changed."""

    source: int
    readings: int
    missed: int  # deadlines that passed without a reading
    wall_s: float
    max_s: float
    cpu_s: float
    updates_s: tuple[float | None, ...]  # per channel: the median time between two different values


class Sink(Protocol):
    """The interface of a place that the sampler writes to. The sampler's process creates it from its path."""

    path: str

    def __init__(self, path: str) -> None: ...

    def open(self) -> None:
        """Make it ready for writing. Raises SensorError if that fails."""

    def source(self, number: int, name: str, about: str, period_s: float, channels: tuple[Channel, ...]) -> None:
        """Describe a source. Called once per source, before its readings."""

    def write(self, readings: Iterable[Reading], gaps: Iterable[Gap], costs: Iterable[Cost]) -> None:
        """Store them. A gap replaces an earlier gap with the same id; costs are totals."""

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
            raise SensorError(f"{self.path} could not be created: {error}") from None

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
                        channel.name,
                        channel.quantity,
                        channel.unit,
                        channel.counter,
                        json.dumps(channel.covers),
                        channel.part_of,
                    )
                    for position, channel in enumerate(channels)
                ],
            )

    def write(self, readings: Iterable[Reading], gaps: Iterable[Gap], costs: Iterable[Cost]) -> None:
        with self._transaction() as db:
            db.executemany(
                "INSERT INTO reading VALUES (?, ?, ?)",
                [(reading.source, reading.t_ns, reading.data) for reading in readings],
            )
            db.executemany(
                "REPLACE INTO gap VALUES (?, ?, ?, ?, ?, ?)",
                [(gap.id, gap.source, gap.channel, gap.from_ns, gap.to_ns, gap.reason) for gap in gaps],
            )
            for cost in costs:
                db.execute(
                    "REPLACE INTO cost VALUES (?, ?, ?, ?, ?, ?)",
                    (cost.source, cost.readings, cost.missed, cost.wall_s, cost.max_s, cost.cpu_s),
                )
                db.executemany(
                    "UPDATE channel SET update_s=? WHERE source=? AND position=?",
                    [
                        (seconds, cost.source, position)
                        for position, seconds in enumerate(cost.updates_s)
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
    """The sampler's tables in a run file, which the profiler has created and also writes to."""

    def open(self) -> None:
        try:
            self._db = sqlite3.connect(
                f"{Path(self.path).absolute().as_uri()}?mode=rw", uri=True, isolation_level=None, timeout=10.0
            )
            self._db.execute("SELECT 1 FROM source")
        except sqlite3.Error as error:
            raise SensorError(f"{self.path} is not a run file: {error}") from None


class Samples:
    """The content of a `SqliteSink`; a sampler may still be writing to it.

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
                f"{self.path} has version {version}, but this Handheld reads up to {VERSION}. Try: a newer Handheld"
            )

    def _one(self, query: str, *args: Any) -> Any:
        row = self._db.execute(query, args).fetchone()
        return None if row is None else row[0]

    def _rows(self, query: str, *args: Any) -> list[dict[str, Any]]:
        cursor = self._db.execute(query, args)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def sources(self) -> list[dict[str, Any]]:
        """One row per source, with its cost."""
        return self._rows(
            "SELECT source.*, readings, missed, wall_s, max_s, cpu_s FROM source "
            "LEFT JOIN cost ON cost.source = source.id ORDER BY source.id"
        )

    def channels(self) -> list[dict[str, Any]]:
        """One row per channel; `update_s` is the median time between two different values."""
        rows = self._rows(
            "SELECT source.name AS source, channel.name, quantity, unit, counter, "
            "covers, part_of, update_s FROM channel JOIN source ON source.id = "
            "channel.source ORDER BY source.id, position"
        )
        return [{**row, "counter": bool(row["counter"]), "covers": tuple(json.loads(row["covers"]))} for row in rows]

    def gaps(self) -> list[dict[str, Any]]:
        """One row per gap, in the order of their beginnings."""
        return self._rows(
            "SELECT source.name AS source, channel.name AS channel, from_ns, to_ns, reason FROM "
            "gap JOIN source ON source.id = gap.source LEFT JOIN channel ON channel.source = "
            "gap.source AND channel.position = gap.channel ORDER BY from_ns, gap.id"
        )

    def table(self, source: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Times in ns, and one row of values per time: one column per channel, NaN where none was read."""
        import numpy as np  # Only readers need it. The process that samples does without, and is smaller.

        number = self._one("SELECT id FROM source WHERE name=?", source)
        if number is None:
            known = ", ".join(row["name"] for row in self.sources())
            raise SensorError(f"{self.path} has no source {source}. It has {known}")
        rows = self._db.execute("SELECT t_ns, data FROM reading WHERE source=? ORDER BY t_ns", (number,)).fetchall()
        width = self._one("SELECT count(*) FROM channel WHERE source=?", number)
        data = np.frombuffer(b"".join(row[1] for row in rows), "<f8").reshape(len(rows), width)
        return np.array([row[0] for row in rows], np.int64), data

    def series(self, source: str, channel: str) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Times in s and values of one channel, without the missing values."""
        import numpy as np

        names = [row["name"] for row in self.channels() if row["source"] == source]
        t_ns, data = self.table(source)
        if channel not in names:
            raise SensorError(f"{source} has no channel {channel}. It has {', '.join(names)}")
        values = data[:, names.index(channel)]
        valid = ~np.isnan(values)
        return t_ns[valid].astype(np.float64) * 1e-9, values[valid]

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Samples:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

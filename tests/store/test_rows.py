"""The records of a run file: one class per table, exact round trips, files that lack a column."""

from __future__ import annotations

import contextlib
import dataclasses
import sqlite3
from pathlib import Path

import pytest

import handheld
from handheld.errors import RunFileError
from handheld.store.reader import RunFile
from handheld.store.rows import (
    ChannelRow,
    ClockRow,
    CostRow,
    EnergyWindowRow,
    GapRow,
    NoteRow,
    OpRow,
    SourceRow,
    StepRow,
)
from handheld.store.writer import RunWriter, statements
from helpers.run_files import MadeRun

RECORDS = (OpRow, StepRow, ClockRow, EnergyWindowRow, NoteRow, SourceRow, ChannelRow, GapRow, CostRow)


@pytest.fixture
def whole(tmp_path) -> Path:
    made = MadeRun(tmp_path / "whole.run")
    made.steps(20)
    made.open().close()
    return made.path


def columns(table: str) -> list[str]:
    """The columns of a table in a new file, in order."""
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        for statement in statements():
            db.execute(statement)
        return [row[1] for row in db.execute(f"PRAGMA table_info({table})")]


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
def test_records_have_the_columns_of_their_tables(kind):
    assert [one.name for one in dataclasses.fields(kind)] == columns(kind.table)


def test_records_come_back_as_they_were_written(tmp_path):
    rows = [
        OpRow(3, "train", 0, "conv", "aten.conv", "forward", "a.b", "sig", "default", 1, 10, 20, {"activation": 4}),
        StepRow(0, "train", None, 1, 2),
        StepRow(1, "train", 8, 3, 4, 7, 0.5),
        ClockRow(5, 6, 7),
        EnergyWindowRow(0, "slope", "sig", (1, 2), 3, 4, 5, 6),
        NoteRow(1, "kind", "text"),
        SourceRow(0, "meter", "about", 0.1),
        ChannelRow(0, 0, "power", "power", "W", False, ("gpu", "soc"), "all", 0.1),
        ChannelRow(0, 1, "energy", "energy", "J", True),
        GapRow(0, 0, None, 1, None, "went"),
        CostRow(0, 1, 2, 0.1, 0.2, 0.3),
    ]
    assert {type(row) for row in rows} == set(RECORDS)
    writer = RunWriter(tmp_path / "one.run")
    for row in rows:
        writer.add(row)
    writer.close()
    file = RunFile(tmp_path / "one.run")
    assert [one for kind in dict.fromkeys(map(type, rows)) for one in file.table(kind)] == rows
    file.close()


def test_a_column_that_older_files_lack_has_its_default(whole):
    with contextlib.closing(sqlite3.connect(whole)) as db:
        db.execute("ALTER TABLE step DROP COLUMN loss")
        db.execute("ALTER TABLE op DROP COLUMN live")
    with handheld.open_run(whole) as run:
        assert run.steps()[0].loss is None and run.op_rows[0].live == {} and run.memory() == []


def test_a_column_that_every_file_has_is_missed(whole):
    with contextlib.closing(sqlite3.connect(whole)) as db:
        db.execute("ALTER TABLE step DROP COLUMN end_ns")
    with handheld.open_run(whole) as run, pytest.raises(RunFileError, match="its table step has no column end_ns"):
        run.steps()


def test_a_value_that_cannot_be_read(whole):
    with contextlib.closing(sqlite3.connect(whole)) as db, db:
        db.execute("UPDATE op SET live='{' WHERE id=1")
    with handheld.open_run(whole) as run, pytest.raises(RunFileError, match="a row of its table op cannot be read"):
        run.ops()


def test_rows_can_still_be_read_as_dictionaries(whole):
    """Users may have code from the time when rows were dictionaries."""
    with handheld.open_run(whole) as run:
        (first, *_), step = run.ops(), run.steps()[0]
        assert first["ms"] == first.ms == 6.0 and step["recorded"] is True
        assert run.summary()["variance"]["median"] == run.variance().times.median
        assert run.memory()[0]["activation"] == run.memory()[0].live["activation"] == 64
        assert "ms" in first and "nothing" not in first and first.get("nothing", 3) == 3
        assert dict(first) == first.to_json() == {**first} and list(first) == list(first.keys())
        with pytest.raises(KeyError):
            first["nothing"]

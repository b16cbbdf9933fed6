"""Writes CSV: a folder with one file per table, for spreadsheets, pandas and polars.

    ops.csv       one row per op: where it is in the model, its time, work and rates
    steps.csv     one row per step
    samples.csv   one row per reading of a sensor channel
    energy.csv    one row per power rail

The first line names the columns; units are in the names. An empty field was not measured.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path

from handheld.analyse.energy import RailEnergy
from handheld.analyse.ops import OpTime
from handheld.analyse.run import Run
from handheld.errors import RunFileError
from handheld.store.record import Record, plain
from handheld.store.rows import StepRow


def write(run: Run, out: Path) -> list[Path]:
    """Write every table of the run into the folder `out`."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        return [
            _table(out / "ops.csv", _names(OpTime), _rows(run.ops())),
            _table(out / "steps.csv", _names(StepRow), _rows(run.steps())),
            _table(out / "samples.csv", ("t_ns", "source", "channel", "unit", "value"), _samples(run)),
            _table(out / "energy.csv", _names(RailEnergy), _rows(run.energy())),
        ]
    except OSError as error:
        raise RunFileError(f"{out} cannot be written: {error.strerror or error}. Try: another --out") from None


def _names(record: type[Record]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(record))


def _rows(records: Iterable[Record]) -> Iterator[tuple[object, ...]]:
    for record in records:
        yield tuple(_cell(getattr(record, field.name)) for field in fields(record))


def _samples(run: Run) -> Iterator[tuple[object, ...]]:
    for series in run.channels:
        for t_ns, value in zip(series.t_ns.tolist(), series.values.tolist(), strict=True):
            yield t_ns, series.source, series.name, series.unit, value


def _cell(value: object) -> object:
    """The value of a cell. Lists and dictionaries are written as JSON."""
    flat = plain(value)
    return json.dumps(flat) if isinstance(flat, (dict, list)) else flat


def _table(path: Path, names: Sequence[str], rows: Iterable[tuple[object, ...]]) -> Path:
    """Write one file. It is written under a temporary name and renamed, so that a failure leaves the old file
    intact."""
    partial = path.with_name(f".{path.name}.part")
    try:
        with partial.open("w", encoding="utf-8", newline="") as file:
            table = csv.writer(file)
            table.writerow(names)
            table.writerows(rows)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return path

"""A run as flat tables, with the type of each column. CSV and Parquet write these.

ops         one row per op: where it is in the model, its time, work and rates
steps       one row per step
commands    one row per device command of recorded steps, with times by the host's clock
memory      bytes alive while each op runs: one row per op and category
samples     one row per reading of a sensor channel
energy      one row per power rail
op_energy   one row per signature of ops, rail and method
joules      one row per op and rail: its energy, with an interval and its source
training_steps, epochs   losses, rates and metrics of a training
notes       other events of the run
meta        everything else that the run file says, as JSON by key
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields

from handheld.analyse.energy import OpEnergy, RailEnergy
from handheld.analyse.joules import OpJoules
from handheld.analyse.ops import OpTime
from handheld.analyse.run import Run
from handheld.analyse.timeline import TRANSFERS
from handheld.store.commands import LAUNCH
from handheld.store.record import Record, plain
from handheld.store.rows import NoteRow, StepRow, TrainingEpochRow, TrainingStepRow

_TIMES = ("host_begin", "host_end", "started", "ended")


@dataclass(frozen=True)
class Table:
    """A table: the type of each column (int, float, bool or str; any value may be None), and its rows."""

    name: str
    columns: Mapping[str, type]
    rows: Iterable[tuple[object, ...]]


def tables(run: Run) -> Iterator[Table]:
    """All tables of a run. A table may be empty."""
    yield _records("ops", OpTime, run.ops())
    yield _records("steps", StepRow, run.steps())
    times = {f"{name}_ns": int for name in _TIMES}
    yield Table("commands", {"step": int, "kind": str, "op": int, "bytes": int, **times}, _commands(run))
    yield Table("memory", {"op": int, "category": str, "bytes": int}, _memory(run))
    reading = {"t_ns": int, "source": str, "channel": str, "quantity": str, "unit": str, "value": float}
    yield Table("samples", reading, _samples(run))
    yield _records("energy", RailEnergy, run.energy())
    yield _records("op_energy", OpEnergy, run.op_energy())
    yield _records("joules", OpJoules, run.joules())
    yield _records("training_steps", TrainingStepRow, run.training_steps())
    yield _records("epochs", TrainingEpochRow, run.epochs())
    yield _records("notes", NoteRow, run.notes())
    yield Table("meta", {"key": str, "value": str}, ((key, json.dumps(value)) for key, value in run.meta.items()))


def _records(name: str, kind: type[Record], records: Iterable[Record]) -> Table:
    hints = typing.get_type_hints(kind)
    columns = {field.name: _type(hints[field.name]) for field in fields(kind)}
    return Table(name, columns, (tuple(_cell(getattr(r, n)) for n in columns) for r in records))


def _type(hint: object) -> type:
    """The column type of a field's annotation. Lists and dictionaries are JSON, so text."""
    parts = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    kinds = [part for part in parts if part is not type(None)]
    if len(kinds) == 1 and isinstance(kinds[0], type) and kinds[0] in (int, float, bool, str):
        return kinds[0]
    return float if set(kinds) == {int, float} else str


def _cell(value: object) -> object:
    """The value of a cell. Lists and dictionaries are written as JSON."""
    flat = plain(value)
    return json.dumps(flat) if isinstance(flat, (dict, list)) else flat


def _commands(run: Run) -> Iterator[tuple[object, ...]]:
    for step in run.timed:
        columns = (step.commands[name].tolist() for name in ("kind", "op", "bytes", *_TIMES))
        for kind, op, nbytes, *times in zip(*columns, strict=True):
            launch = kind == LAUNCH
            name = "launch" if launch else TRANSFERS.get(kind, str(kind))
            yield (step.step, name, op if launch else None, None if launch else nbytes, *times)


def _memory(run: Run) -> Iterator[tuple[object, ...]]:
    for row in run.op_rows:
        for category, nbytes in row.live.items():
            yield row.id, category, nbytes


def _samples(run: Run) -> Iterator[tuple[object, ...]]:
    for one in run.channels:
        for t_ns, value in zip(one.t_ns.tolist(), one.values.tolist(), strict=True):
            yield t_ns, one.source, one.name, one.quantity, one.unit, value

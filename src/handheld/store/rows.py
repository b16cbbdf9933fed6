"""The rows of a run file: one record per table of schema.sql, one field per column.

A field may be None if its column may be NULL. Files of older versions may lack the column of a field that has a
default; the field then has its default. The tables `command` and `reading` hold bulk data and are read as arrays
(reader.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field
from dataclasses import fields as fields_of
from typing import Any, ClassVar

from handheld.store.record import Record


@dataclass(frozen=True)
class Coding:
    """How to read and write a column whose SQL type differs from the field's type."""

    read: Callable[[Any], object]
    write: Callable[[Any], object]


def from_json(text: str) -> object:
    """The value of a JSON text. Raises ValueError for any other text, also for one that is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _list(text: str) -> object:
    value = from_json(text)
    return tuple(value) if isinstance(value, list) else value


_JSON = Coding(from_json, json.dumps)
_LIST = Coding(_list, json.dumps)
_FLAG = Coding({0: False, 1: True}.__getitem__, int)
_TEXT = Coding(lambda text: text or "", str)  # NULL becomes the empty text.


PHASES = ("forward", "backward", "update")  # as in graph/graph.py, which the store does not know


def _reversed(what: str, begin_ns: int, end_ns: int) -> str:
    return f"{what} ends before it begins" if end_ns < begin_ns else ""


def coding(column: Field[Any]) -> Coding | None:
    """The coding of a dataclass field, or None if the value is stored unchanged."""
    result: Coding | None = column.metadata.get("coding")
    return result


@dataclass(frozen=True, slots=True)
class Row(Record):
    """A row of the table `table`."""

    table: ClassVar[str] = ""

    def values(self) -> tuple[object, ...]:
        """The values of the columns, as they are written."""
        values = []
        for column in fields_of(self):
            value, coded = getattr(self, column.name), coding(column)
            values.append(value if coded is None else coded.write(value))
        return tuple(values)

    def flaw(self) -> str:
        """What is impossible about these values, or "". The reader refuses such a row."""
        return ""


@dataclass(frozen=True, slots=True)
class Op(Record):
    """An operation of a graph."""

    id: int
    graph: str
    position: int
    op: str
    source: str
    phase: str
    path: str
    signature: str
    variant: str
    launches: int
    flops: int
    bytes: int

    @property
    def title(self) -> str:
        """Module path and op, for messages and tables."""
        return f"{self.path or '(model)'} {self.op}"


@dataclass(frozen=True, slots=True)
class OpRow(Op, Row):
    """An operation and the memory that is in use while it runs."""

    table: ClassVar[str] = "op"

    live: Mapping[str, int] = field(default_factory=dict, metadata={"coding": _JSON})  # live bytes per category

    def flaw(self) -> str:
        if self.phase not in PHASES:
            return f"op {self.id} has the phase {self.phase!r:.40}, not one of {', '.join(PHASES)}"
        if min(self.launches, self.flops, self.bytes) < 0:
            return f"op {self.id} has negative work"
        return ""


@dataclass(frozen=True, slots=True)
class StepRow(Row):
    """One run of a graph, as the host saw it."""

    table: ClassVar[str] = "step"

    id: int
    graph: str
    batch: int | None
    begin_ns: int
    end_ns: int
    window: int | None = None
    loss: float | None = None

    @property
    def recorded(self) -> bool:
        """Whether the commands of this step were timed."""
        return self.window is not None

    def flaw(self) -> str:
        return _reversed(f"step {self.id}", self.begin_ns, self.end_ns)

    def to_json(self) -> dict[str, object]:
        return {**Row.to_json(self), "recorded": self.recorded}


@dataclass(frozen=True, slots=True)
class ClockRow(Row):
    """One moment by the device's clock and by the host's clock; host_ns is correct to ± error_ns."""

    table: ClassVar[str] = "clock"

    device_ns: int
    host_ns: int
    error_ns: int

    def flaw(self) -> str:
        return "" if self.error_ns >= 0 else "a clock has a negative error"


@dataclass(frozen=True, slots=True)
class EnergyWindowRow(Row):
    """A window of repeated equal work, for the energy of ops."""

    table: ClassVar[str] = "energy_window"

    id: int
    method: str
    signature: str
    ops: tuple[int, ...] = field(metadata={"coding": _LIST})
    extra: int
    runs: int
    begin_ns: int
    end_ns: int

    def flaw(self) -> str:
        if self.method == "slope" and self.signature and self.extra < 1:
            return f"energy window {self.id} repeats its ops {self.extra} times"
        if self.runs < 0:
            return f"energy window {self.id} has {self.runs} runs"
        return _reversed(f"energy window {self.id}", self.begin_ns, self.end_ns)


@dataclass(frozen=True, slots=True)
class NoteRow(Row):
    """Something that happened during the run."""

    table: ClassVar[str] = "note"

    t_ns: int
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class TrainingStepRow(Row):
    """The loss of one step of a training, and when it was read. The loss may be NaN or infinite."""

    table: ClassVar[str] = "training_step"

    step: int
    epoch: int
    t_ns: int
    loss: float | None
    rate: float


@dataclass(frozen=True, slots=True)
class TrainingEpochRow(Row):
    """One epoch of a training; `step` is its last step, and `test` holds the metrics of the evaluation after it."""

    table: ClassVar[str] = "training_epoch"

    number: int
    t_ns: int
    step: int
    loss: float | None
    rate: float
    samples: int
    seconds: float
    test: Mapping[str, float] = field(metadata={"coding": _JSON})
    dropped: int = 0
    note: str = ""


# ── the tables of the sampler ─────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class SourceRow(Row):
    """A source of readings: one sensor of sensors/."""

    table: ClassVar[str] = "source"

    id: int
    name: str
    about: str = ""
    period_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ChannelRow(Row):
    """One channel of a source."""

    table: ClassVar[str] = "channel"

    source: int
    position: int
    name: str
    quantity: str
    unit: str
    counter: bool = field(metadata={"coding": _FLAG})
    covers: tuple[str, ...] = field(default=(), metadata={"coding": _LIST})
    part_of: str = field(default="", metadata={"coding": _TEXT})
    update_s: float | None = None


@dataclass(frozen=True, slots=True)
class GapRow(Row):
    """A time without readings of one channel, or of the whole source if `channel` is None."""

    table: ClassVar[str] = "gap"

    id: int
    source: int
    channel: int | None
    from_ns: int
    to_ns: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class CostRow(Row):
    """The cost of sampling a source so far."""

    table: ClassVar[str] = "cost"

    source: int
    readings: int
    missed: int
    wall_s: float
    max_s: float
    cpu_s: float

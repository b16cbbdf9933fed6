"""Compares planned and allocated memory with what the process and the device report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from handheld.store.record import Record

if TYPE_CHECKING:
    from handheld.analyse.rails import Series
    from handheld.analyse.run import Run

#: Sources that report a device's own memory.
DEVICE_MEMORY = ("nvidia", "amd-gpu")


@dataclass(frozen=True, slots=True)
class LiveMemory(Record):
    """Bytes alive while an op runs, in total and per category."""

    id: int
    op: str
    path: str
    phase: str
    bytes: int
    live: Mapping[str, int]

    def to_json(self) -> dict[str, object]:
        """The categories become keys next to the other fields."""
        values = Record.to_json(self)
        del values["live"]
        return {**values, **self.live}


@dataclass(frozen=True, slots=True)
class Owner:
    """A tensor that is alive at the peak."""

    name: str
    category: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Growth(Record):
    """One part of the growth of the process's memory."""

    what: str
    bytes: float


@dataclass(frozen=True, slots=True)
class MemorySummary(Record):
    """All values are bytes, or None if not known. `explained` splits the growth of the process into named parts
    that add up to it."""

    optional: ClassVar[frozenset[str]] = frozenset({"process_bytes"})

    peak_bytes: int | None
    peak_op: int | None
    owners: tuple[Owner, ...]
    plan_bytes: int | None
    allocated_bytes: int | None
    not_alive_bytes: int | None
    device_growth_bytes: float | None
    process_growth_bytes: float | None
    explained: tuple[Growth, ...]
    process_bytes: float | None

    def to_json(self) -> dict[str, object]:
        owners = [[owner.name, owner.category, owner.bytes] for owner in self.owners]
        return {**Record.to_json(self), "owners": owners}


@dataclass(frozen=True, slots=True)
class _Process:
    """Memory of the process: its maximum, its growth, and the parts of the growth."""

    bytes: float | None = None
    growth_bytes: float | None = None
    explained: tuple[Growth, ...] = ()


def memory_table(run: Run, graph: str) -> list[LiveMemory]:
    """One row per op of a graph, in their order. Empty if the memory is not known."""
    return [
        LiveMemory(row.id, row.op, row.path, row.phase, sum(row.live.values()), row.live)
        for row in run.op_rows
        if row.graph == graph and row.live
    ]


def memory_summary(run: Run) -> MemorySummary:
    planned = run.meta.get(f"memory.{run.graph}") or {}
    allocated, peak = run.meta.get("allocated_bytes"), planned.get("peak_bytes")
    process = _process(run, allocated)
    return MemorySummary(
        peak_bytes=peak,
        peak_op=planned.get("peak_op"),
        owners=tuple(_owner(*owner) for owner in planned.get("owners") or ()),
        plan_bytes=run.meta.get("plan_bytes"),
        allocated_bytes=allocated,
        not_alive_bytes=allocated - peak if allocated is not None and peak is not None else None,
        device_growth_bytes=_device_growth(run),
        process_growth_bytes=process.growth_bytes,
        explained=process.explained,
        process_bytes=process.bytes,
    )


def _owner(name: str, category: str, nbytes: int) -> Owner:
    """The first input of a model that takes no dictionary is called `0`, which would say nothing beside a size."""
    return Owner(f"input {name}" if category == "input" and name.isdigit() else name, category, nbytes)


def _device_growth(run: Run) -> float | None:
    started = run.meta.get("started_ns")
    used = [s for s in run.channels if s.quantity == "memory" and "used" in s.name and s.source in DEVICE_MEMORY]
    if not used or not started or used[0].t_ns[0] >= started:
        return None
    # Energy windows that follow the steps have another plan.
    until = run.span()[1] if run.steps() else used[0].t_ns[-1]
    values = used[0].within(used[0].t_ns[0], until)
    return float(values.max() - values[0]) if len(values) else None


def _process(run: Run, allocated: int | None) -> _Process:
    started: int = run.meta.get("started_ns") or 0
    resident = [s for s in run.channels if (s.source, s.name) == ("process", "resident")]
    during = resident[0].within(*run.span()) if resident and started and run.steps() else ()
    if not len(during):
        return _Process()
    most, samples = float(np.max(during)), resident[0]
    if samples.t_ns[0] >= started:
        return _Process(most)  # Sampling began after the plan had started, so the growth is not known.
    before = float(samples.values[0])
    caps = run.meta.get("caps") or {}
    buffers = allocated if caps.get("unified_memory") else None
    return _Process(most, most - before, _explained(samples, started, before, most, buffers))


def _explained(resident: Series, started: int, before: float, most: float, buffers: int | None) -> tuple[Growth, ...]:
    then = float(np.interp(started, resident.t_ns, resident.values))
    rest = then - before - (buffers or 0)
    planned = [Growth("buffers of the plan, which are in the process on this device", buffers)] if buffers else []
    return (
        *planned,
        Growth(
            "start: compiled programs, the driver, copies of values on the host; minus memory "
            "that was already free in the process",
            rest,
        ),
        Growth("during the steps: first launches, batches, stored times and samples", most - then),
    )

"""The time of ops: each by itself, and by module, phase and kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from handheld.analyse import stats
from handheld.store.record import Record
from handheld.store.rows import OpRow

_TIMES = frozenset({"p5_ms", "p95_ms", "cv", "recorded", "gflops", "gbytes_s"})


@dataclass(frozen=True, slots=True)
class OpTime(Record):
    """An op, its time (median over recorded steps), work and rates. Times are None for ops of
    graphs that were not recorded."""

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
    ms: float | None = None
    share: float | None = None  # of the time of all ops
    p5_ms: float | None = None
    p95_ms: float | None = None
    cv: float | None = None
    recorded: int | None = None  # how many times the median is of
    gflops: float | None = None
    gbytes_s: float | None = None

    @property
    def title(self) -> str:
        """Module path and op, for people."""
        return f"{self.path or '(model)'} {self.op}"

    def to_json(self) -> dict[str, object]:
        found = Record.to_json(self)
        return found if self.ms is not None else {k: v for k, v in found.items() if k not in _TIMES}


@dataclass(frozen=True, slots=True)
class GroupTime(Record):
    """The time and work of several ops together."""

    ms: float
    share: float
    ops: int
    launches: int
    flops: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ModuleTime(GroupTime):
    """Of a module path; a phase in which it has no op is None."""

    optional: ClassVar[frozenset[str]] = frozenset({"forward_ms", "backward_ms", "update_ms"})

    path: str
    forward_ms: float | None
    backward_ms: float | None
    update_ms: float | None


@dataclass(frozen=True, slots=True)
class PhaseTime(GroupTime):
    """Of a phase: forward, backward or update."""

    phase: str


@dataclass(frozen=True, slots=True)
class KindTime(GroupTime):
    """Of a kind of op."""

    op: str


def op_table(rows: Sequence[OpRow], times: Mapping[int, np.ndarray]) -> list[OpTime]:
    """All ops, the longest first. `times` has the ns of each op, one value a recorded step."""
    total = sum(float(np.median(t)) for t in times.values()) or 1.0
    return sorted((_op_time(row, times.get(row.id), total) for row in rows), key=lambda one: -(one.ms or 0.0))


def _op_time(row: OpRow, ns: np.ndarray | None, total: float) -> OpTime:
    one = OpTime(
        id=row.id,
        graph=row.graph,
        position=row.position,
        op=row.op,
        source=row.source,
        phase=row.phase,
        path=row.path,
        signature=row.signature,
        variant=row.variant,
        launches=row.launches,
        flops=row.flops,
        bytes=row.bytes,
    )
    if ns is None:
        return one
    spread = stats.distribution(ns * 1e-6)
    seconds = spread.median * 1e-3
    return replace(
        one,
        ms=spread.median,
        share=float(np.median(ns)) / total,
        p5_ms=spread.p5,
        p95_ms=spread.p95,
        cv=spread.cv,
        recorded=spread.n,
        gflops=row.flops / seconds * 1e-9 if seconds else None,
        gbytes_s=row.bytes / seconds * 1e-9 if seconds else None,
    )


def by_module(ops: Sequence[OpTime], depth: int | None) -> list[ModuleTime]:
    """By the first `depth` names of the module path; None: by all of it."""

    def key(row: OpTime) -> str:
        return ".".join((row.path.split(".") if row.path else ["(model)"])[:depth])

    def in_phase(mine: list[OpTime], phase: str) -> float | None:
        times = [row.ms or 0.0 for row in mine if row.phase == phase]
        return sum(times) if times else None

    made = []
    for path, mine in _groups(ops, key):
        one = _total(mine)
        made.append(
            ModuleTime(
                *(one.ms, one.share, one.ops, one.launches, one.flops, one.bytes),
                path=path,
                forward_ms=in_phase(mine, "forward"),
                backward_ms=in_phase(mine, "backward"),
                update_ms=in_phase(mine, "update"),
            )
        )
    return sorted(made, key=lambda one: -one.ms)


def by_phase(ops: Sequence[OpTime]) -> list[PhaseTime]:
    made = []
    for phase, mine in _groups(ops, lambda row: row.phase):
        one = _total(mine)
        made.append(PhaseTime(one.ms, one.share, one.ops, one.launches, one.flops, one.bytes, phase))
    return sorted(made, key=lambda one: -one.ms)


def by_kind(ops: Sequence[OpTime]) -> list[KindTime]:
    made = []
    for kind, mine in _groups(ops, lambda row: row.op):
        one = _total(mine)
        made.append(KindTime(one.ms, one.share, one.ops, one.launches, one.flops, one.bytes, kind))
    return sorted(made, key=lambda one: -one.ms)


def _groups(ops: Sequence[OpTime], key: Callable[[OpTime], str]) -> list[tuple[str, list[OpTime]]]:
    """Ops that were timed, by their key."""
    groups: dict[str, list[OpTime]] = {}
    for row in ops:
        if row.ms is not None:
            groups.setdefault(key(row), []).append(row)
    return list(groups.items())


def _total(ops: Sequence[OpTime]) -> GroupTime:
    return GroupTime(
        ms=sum(row.ms or 0.0 for row in ops),
        share=sum(row.share or 0.0 for row in ops),
        ops=len(ops),
        launches=sum(row.launches for row in ops),
        flops=sum(row.flops for row in ops),
        bytes=sum(row.bytes for row in ops),
    )

"""The time of ops: of each op, and by module, phase and kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import ClassVar

import numpy as np

from handheld.analyse import stats
from handheld.store.record import Record
from handheld.store.rows import Op, OpRow

_TIMES = frozenset({"mean_ms", "p5_ms", "p95_ms", "cv", "recorded", "gflops", "gbytes_s"})


@dataclass(frozen=True, slots=True)
class OpTime(Op):
    """An op with its time (median over recorded steps), work and rates. Times are None for ops of graphs that were not
    recorded."""

    ms: float | None = None
    share: float | None = None  # share of the time of all ops
    p5_ms: float | None = None
    p95_ms: float | None = None
    cv: float | None = None
    recorded: int | None = None  # the number of recorded times
    gflops: float | None = None
    gbytes_s: float | None = None
    mean_ms: float | None = None  # mean over the steps of `StepParts`; ops of a phase add up to the phase

    def to_json(self) -> dict[str, object]:
        values = Record.to_json(self)
        return values if self.ms is not None else {k: v for k, v in values.items() if k not in _TIMES}


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
    """The total of one module path. The time of a phase is None if the module has no op in it."""

    optional: ClassVar[frozenset[str]] = frozenset({"forward_ms", "backward_ms", "update_ms"})

    path: str
    forward_ms: float | None
    backward_ms: float | None
    update_ms: float | None


@dataclass(frozen=True, slots=True)
class PhaseTime(GroupTime):
    """The total of one phase: forward, backward or update."""

    phase: str


@dataclass(frozen=True, slots=True)
class KindTime(GroupTime):
    """The total of one kind of op."""

    op: str


def op_table(rows: Sequence[OpRow], times: Mapping[int, np.ndarray], means: Mapping[int, float]) -> list[OpTime]:
    """All ops, the longest first. `times` maps the id of an op to its times in ns, one per recorded step; `means` to
    its mean in ns over the steps of StepParts."""
    total = sum(float(np.median(t)) for t in times.values()) or 1.0
    ops = (_op_time(row, times.get(row.id), means.get(row.id), total) for row in rows)
    return sorted(ops, key=lambda op: -(op.ms or 0.0))


def _op_time(row: OpRow, ns: np.ndarray | None, mean_ns: float | None, total: float) -> OpTime:
    op = OpTime(*(getattr(row, field.name) for field in fields(Op)))
    if ns is None:
        return op
    spread = stats.distribution(ns * 1e-6)
    seconds = spread.median * 1e-3
    return replace(
        op,
        ms=spread.median,
        share=float(np.median(ns)) / total,
        p5_ms=spread.p5,
        p95_ms=spread.p95,
        cv=spread.cv,
        recorded=spread.n,
        gflops=row.flops / seconds * 1e-9 if seconds else None,
        gbytes_s=row.bytes / seconds * 1e-9 if seconds else None,
        mean_ms=spread.mean if mean_ns is None else mean_ns * 1e-6,
    )


def by_module(ops: Sequence[OpTime], depth: int | None) -> list[ModuleTime]:
    """Totals by the first `depth` names of the module path, or by the whole path if `depth` is None."""

    def key(row: OpTime) -> str:
        return ".".join((row.path.split(".") if row.path else ["(model)"])[:depth])

    def in_phase(group: list[OpTime], phase: str) -> float | None:
        times = [row.ms or 0.0 for row in group if row.phase == phase]
        return sum(times) if times else None

    rows = []
    for path, group in _groups(ops, key):
        total = _total(group)
        rows.append(
            ModuleTime(
                *(total.ms, total.share, total.ops, total.launches, total.flops, total.bytes),
                path=path,
                forward_ms=in_phase(group, "forward"),
                backward_ms=in_phase(group, "backward"),
                update_ms=in_phase(group, "update"),
            )
        )
    return sorted(rows, key=lambda row: -row.ms)


def by_phase(ops: Sequence[OpTime]) -> list[PhaseTime]:
    rows = []
    for phase, group in _groups(ops, lambda row: row.phase):
        total = _total(group)
        rows.append(PhaseTime(total.ms, total.share, total.ops, total.launches, total.flops, total.bytes, phase))
    return sorted(rows, key=lambda row: -row.ms)


def by_kind(ops: Sequence[OpTime]) -> list[KindTime]:
    rows = []
    for kind, group in _groups(ops, lambda row: row.op):
        total = _total(group)
        rows.append(KindTime(total.ms, total.share, total.ops, total.launches, total.flops, total.bytes, kind))
    return sorted(rows, key=lambda row: -row.ms)


def _groups(ops: Sequence[OpTime], key: Callable[[OpTime], str]) -> list[tuple[str, list[OpTime]]]:
    """The ops that were timed, grouped by their key."""
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

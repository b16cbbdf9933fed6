"""Memory and energy of two runs beside each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from handheld.analyse import judge
from handheld.analyse.rails import Series, rails
from handheld.store.record import Record

if TYPE_CHECKING:
    from handheld.analyse.joules import OpJoules
    from handheld.analyse.run import Run
    from handheld.store.rows import OpRow

SEGMENTS = 12  # The energy of a run is compared in parts of its time.
TICKS = 5  # A part needs this many readings.


@dataclass(frozen=True, slots=True)
class Quantity(Record):
    """One figure of both runs. `verdict` is `more` or `less` if the difference is more than noise, `same` if it is not,
    and `not judged` if the noise is not known. Planned sizes have no noise."""

    optional: ClassVar[frozenset[str]] = frozenset({"low", "high"})

    name: str
    unit: str
    a: float
    b: float
    ratio: float | None
    verdict: str
    low: float | None = None
    high: float | None = None


def memories(a: Run, b: Run) -> tuple[Quantity, ...]:
    """Planned, allocated and process memory in bytes, where both runs know it."""
    left, right = a.memory_summary(), b.memory_summary()
    rows = []
    for name, x, y, exact in (
        ("alive at the peak", left.peak_bytes, right.peak_bytes, True),
        ("plan", left.plan_bytes, right.plan_bytes, True),
        ("allocated", left.allocated_bytes, right.allocated_bytes, True),
        ("growth of the process", left.process_growth_bytes, right.process_growth_bytes, False),
    ):
        if x is not None and y is not None:
            verdict = "not judged" if not exact else "same" if x == y else "more" if y > x else "less"
            rows.append(Quantity(name, "bytes", float(x), float(y), y / x if x else None, verdict))
    return tuple(rows)


def energies(a: Run, b: Run, load: float, samples: tuple[int, int] = (1, 1)) -> tuple[Quantity, ...]:
    """Joules per step on each rail that both runs have, as Run.energy reports them. If their steps have different
    numbers of samples, joules per sample are judged."""
    rows = []
    right = {row.rail: row for row in b.energy()}
    for row in a.energy():
        other = right.get(row.rail)
        if other is None or row.joules_step is None or other.joules_step is None:
            continue
        shown = row.joules_step, other.joules_step
        measured = not row.estimate and not other.estimate
        each = shown[0] / samples[0], shown[1] / samples[1]
        parts = _joules(a, row.rail) / samples[0], _joules(b, row.rail) / samples[1]
        judged = judge.whole(*parts, load, each) if measured else None
        if samples[0] == samples[1]:
            rows.append(_energy(f"{row.rail} per step", shown, judged))
        else:
            rows.append(_energy(f"{row.rail} per step", shown, None))
            rows.append(_energy(f"{row.rail} per sample", each, judged))
    return tuple(rows)


def _energy(name: str, shown: tuple[float, float], judged: judge.Judged | None) -> Quantity:
    verdict = "not judged"
    if judged is not None:
        verdict = "same" if not judged.differs else "more" if judged.ratio > 1 else "less"
    low, high = (judged.low, judged.high) if judged else (None, None)
    return Quantity(name, "J", *shown, shown[1] / shown[0] if shown[0] else None, verdict, low, high)


@dataclass(frozen=True, slots=True)
class JoulesChange(Record):
    """The joules of one run of an op on a rail in both runs, per sample if the batches differ. They differ (`more`,
    `less`) if their 95% intervals do not overlap."""

    title: str
    id_a: int
    id_b: int
    rail: str
    a: float
    b: float
    ratio: float | None
    verdict: str
    source_a: str
    source_b: str


def op_joules(
    a: Run, b: Run, pairs: Sequence[tuple[OpRow, OpRow]], samples: tuple[int, int] = (1, 1)
) -> tuple[JoulesChange, ...]:
    """One row per pair of ops and rail that both runs know, those that gained or lost most first. Joules are per
    sample if the steps of the runs have different numbers of `samples`."""
    per_a, per_b = samples if samples[0] != samples[1] else (1, 1)
    left, right = (_by_op(run.joules()) for run in (a, b))
    rows = []
    for x, y in pairs:
        for first in left.get(x.id, ()):
            second = next((row for row in right.get(y.id, ()) if row.rail == first.rail), None)
            if second is not None:
                rows.append(_joules_change(x, y, _divided(first, per_a), _divided(second, per_b)))
    return tuple(sorted(rows, key=lambda row: -abs(row.b - row.a)))


def _by_op(rows: Sequence[OpJoules]) -> dict[int, list[OpJoules]]:
    groups: dict[int, list[OpJoules]] = {}
    for row in rows:
        groups.setdefault(row.id, []).append(row)
    return groups


def _divided(row: OpJoules, samples: int) -> OpJoules:
    low, high = (None if end is None else end / samples for end in (row.low_joules, row.high_joules))
    return replace(row, joules=row.joules / samples, low_joules=low, high_joules=high)


def _joules_change(x: OpRow, y: OpRow, a: OpJoules, b: OpJoules) -> JoulesChange:
    ends = (a.low_joules, a.high_joules, b.low_joules, b.high_joules)
    verdict = "not judged"
    if None not in ends:
        low_a, high_a, low_b, high_b = (float(end or 0.0) for end in ends)
        verdict = "more" if low_b > high_a else "less" if high_b < low_a else "same"
    ratio = b.joules / a.joules if a.joules else None
    return JoulesChange(x.title, x.id, y.id, a.rail, a.joules, b.joules, ratio, verdict, a.source, b.source)


def _joules(run: Run, name: str) -> np.ndarray:
    """Joules per step on a rail in parts of the run after warm-up. Fewer parts if the sensor is slow."""
    begin, end = run.warm()
    rail = next((rail for rail in rails(run.channels) if rail.rail == name), None)
    if rail is None or end <= begin:
        return np.zeros(0)
    parts = min(SEGMENTS, rail.ticks(begin, end) // TICKS)
    return np.array([joules for joules in _parts(run, rail, begin, end, parts) if joules > 0])


def _parts(run: Run, rail: Series, begin: int, end: int, parts: int) -> Iterator[float]:
    ends = np.array([step.end_ns for step in run.steps() if step.graph == run.graph])
    edges = np.linspace(begin, end, parts + 1).astype(np.int64) if parts else np.zeros(0, np.int64)
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        joules, steps = rail.joules(low, high), int(((ends > low) & (ends <= high)).sum())
        if joules is not None and steps:
            yield joules / steps

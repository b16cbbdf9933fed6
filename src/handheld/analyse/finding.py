"""A finding, and what finders share: which steps and ops an interval touches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

from handheld.analyse import timeline
from handheld.store.record import Record

if TYPE_CHECKING:
    from handheld.analyse.run import Run

OP_SHARE, OP_SHOWN = 0.2, 5  # how much slower an op is, to be touched; how many are named

Interval = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Finding(Record):
    """A named cause, the ids of the steps and ops that it touches, and numbers that show it."""

    kind: str
    text: str
    steps: list[int]
    ops: list[int]
    evidence: dict[str, object]

    @property
    def intervals(self) -> list[Interval]:
        """When that was, in ns, if it was not throughout."""
        return cast("list[Interval]", self.evidence.get("intervals", []))


def finding(kind: str, text: str, steps: list[int], ops: list[int] | None = None, **evidence: object) -> Finding:
    return Finding(kind, text, steps, ops or [], evidence)


def touched(run: Run, intervals: list[Interval]) -> list[int]:
    """Steps that overlap an interval: from the end of the one before to their own end."""
    steps = run.steps()
    ends = np.array([one.end_ns for one in steps])
    begins = np.append([one.begin_ns for one in steps[:1]], ends[:-1])
    hit = np.zeros(len(steps), bool)
    for a, b in intervals:
        hit |= (begins < b) & (ends > a)
    return [one.id for one, inside in zip(steps, hit.tolist(), strict=True) if inside]


def slower(run: Run, steps: list[int]) -> list[int]:
    """Ops that took longer in these steps, of those that were recorded, than in the others."""
    inside = set(steps)
    apart = [timeline.op_times([one for one in run.timed if (one.step in inside) == hit]) for hit in (True, False)]
    mine, others = ({op: float(np.median(ns)) for op, ns in part.items()} for part in apart)
    more = {op: ns - others[op] for op, ns in mine.items() if op in others and ns > (1 + OP_SHARE) * others[op]}
    return sorted(more, key=lambda op: -more[op])[:OP_SHOWN]


def seconds_of(intervals: list[Interval]) -> float:
    return sum(b - a for a, b in intervals) * 1e-9


def stretches(at: np.ndarray, hit: np.ndarray, least_s: float) -> list[Interval]:
    """Stretches of bins [at[i], at[i + 1]) that are hit, of at least so long."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], hit.astype(np.int8), [0]))))
    found = [(int(at[a]), int(at[b])) for a, b in zip(edges[::2], edges[1::2], strict=False)]
    return [one for one in found if seconds_of([one]) >= least_s * (1 - 1e-9)]

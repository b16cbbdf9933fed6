"""The record of a finding, and what the rules share: which steps and ops an interval affects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

from handheld.analyse import timeline
from handheld.store.record import Record

if TYPE_CHECKING:
    from handheld.analyse.run import Run

OP_SHARE, OP_SHOWN = 0.2, 5  # An op that is slower by this share is affected; at most this many are named.

Interval = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Finding(Record):
    """A named cause, the ids of the steps and ops that it affects, and the numbers that support it."""

    kind: str
    text: str
    steps: list[int]
    ops: list[int]
    evidence: dict[str, object]

    @property
    def intervals(self) -> list[Interval]:
        """When it happened, in ns. Empty if it lasted for the whole run."""
        return cast("list[Interval]", self.evidence.get("intervals", []))


def finding(kind: str, text: str, steps: list[int], ops: list[int] | None = None, **evidence: object) -> Finding:
    return Finding(kind, text, steps, ops or [], evidence)


def touched(run: Run, intervals: list[Interval]) -> list[int]:
    """The steps that overlap an interval. A step counts from the end of the previous step to its own end."""
    steps = run.steps()
    ends = np.array([step.end_ns for step in steps])
    begins = np.append([step.begin_ns for step in steps[:1]], ends[:-1])
    hit = np.zeros(len(steps), bool)
    for a, b in intervals:
        hit |= (begins < b) & (ends > a)
    return [step.id for step, inside in zip(steps, hit.tolist(), strict=True) if inside]


def slower(run: Run, steps: list[int]) -> list[int]:
    """The ops that took longer in these steps than in the other recorded steps, the slowest first."""
    inside = set(steps)
    parts = [timeline.op_times([step for step in run.timed if (step.step in inside) == hit]) for hit in (True, False)]
    these, others = ({op: float(np.median(ns)) for op, ns in part.items()} for part in parts)
    more = {op: ns - others[op] for op, ns in these.items() if op in others and ns > (1 + OP_SHARE) * others[op]}
    return sorted(more, key=lambda op: -more[op])[:OP_SHOWN]


def seconds_of(intervals: list[Interval]) -> float:
    return sum(b - a for a, b in intervals) * 1e-9


def stretches(at: np.ndarray, hit: np.ndarray, least_s: float) -> list[Interval]:
    """Runs of adjacent bins [at[i], at[i + 1]) for which `hit` is true and that last at least `least_s`."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], hit.astype(np.int8), [0]))))
    intervals = [(int(at[a]), int(at[b])) for a, b in zip(edges[::2], edges[1::2], strict=False)]
    return [interval for interval in intervals if seconds_of([interval]) >= least_s * (1 - 1e-9)]

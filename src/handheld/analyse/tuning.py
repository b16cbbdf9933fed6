"""Ops without a tuning record, and what `handheld tune` would probably gain.

The estimate comes from tuning records: for ops of the same kind, the time of the best variant as a share of the
default's time. The profile stores these shares with the run (profile/tuning.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from handheld.store.record import Record

if TYPE_CHECKING:
    from handheld.analyse.run import Run


@dataclass(frozen=True, slots=True)
class Untuned(Record):
    """The ops of a graph that have variants and no tuning record."""

    ops: list[int]
    variants: int  # the ops of all graphs that have variants
    ms: float  # their time per step
    gain_ms: float | None  # what tuning would gain per step; None if no record says so
    low_ms: float | None
    high_ms: float | None
    basis: str  # which records the estimate rests on


def untuned(run: Run, graph: str | None = None) -> Untuned | None:
    """None if the run does not say which ops are tuned, or the device has no variants."""
    facts = run.meta.get("tuning")
    if not facts:
        return None
    without = set(facts["without"])
    rows = [row for row in run.ops() if row.id in without and row.graph == (graph or run.graph) and row.mean_ms]
    ms = sum(row.mean_ms or 0.0 for row in rows)
    known = [(row.mean_ms or 0.0, facts["gains"][row.op]) for row in rows if row.op in facts["gains"]]
    if not known:
        return Untuned([row.id for row in rows], facts["variants"], ms, None, None, None, "")
    gain, high, low = (sum(t * (1 - shares[name]) for t, shares in known) for name in ("mean", "low", "high"))
    sources = {shares["from"] for _, shares in known}
    shapes = sum({row.op: facts["gains"][row.op]["shapes"] for row in rows if row.op in facts["gains"]}.values())
    return Untuned(
        ops=[row.id for row in rows],
        variants=facts["variants"],
        ms=ms,
        gain_ms=gain,
        low_ms=min(low, gain),
        high_ms=max(high, gain),
        basis=f"{shapes} tuned shapes of {' and '.join(sorted(sources))}",
    )

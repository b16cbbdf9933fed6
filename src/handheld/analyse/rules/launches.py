"""A step that mostly launches: the same launches with more work each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from handheld.analyse.rules.base import TRAINING, Advice, one_graph
from handheld.analyse.rules.batch import larger
from handheld.analyse.rules.growth import Growth, memory_of

if TYPE_CHECKING:
    from handheld.analyse.run import Run

SHARE = 0.15  # of a step that is spent on launching


def launches(run: Run) -> Advice | None:
    bound, growth, cost = run.bound(), Growth.of(run), run.launches()
    share = bound.shares.get("launches", 0.0) + bound.shares.get("host", 0.0)
    if share < SHARE or growth is None or cost is None or not one_graph(run):
        return None
    grown = growth.larger(memory_of(run))
    if grown is None:
        return None
    ms = share * (bound.step_ms or 0.0)
    seen = f"{share:.0%} of a step ({ms:.3g} ms) is spent on its {cost.per_step:.0f} launches, not on work"
    return larger(run, "launches", seen, ms, growth, grown, TRAINING)

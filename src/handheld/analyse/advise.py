"""Advice: what to change about a step, and what that would gain, best first.

Each rule (rules/) looks at one bottleneck of a run. It says what was seen, what that costs, what to change, and what
the change would gain, computed from this run. `handheld advise RUN --try` makes the change and measures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from handheld.analyse.rules.activations import activations
from handheld.analyse.rules.base import BYTES, JOULES, MODEL, Advice
from handheld.analyse.rules.batch import batch
from handheld.analyse.rules.chains import chains
from handheld.analyse.rules.freeze import freeze
from handheld.analyse.rules.half import half
from handheld.analyse.rules.heat import heat
from handheld.analyse.rules.inputs import inputs
from handheld.analyse.rules.joules import joules
from handheld.analyse.rules.launches import launches
from handheld.analyse.rules.processor import processor
from handheld.analyse.rules.tune import tune

if TYPE_CHECKING:
    from handheld.analyse.run import Run

#: In an order that decides between rules that want the same change: the first one explains it.
RULES: Mapping[str, Callable[[Run], Advice | None]] = MappingProxyType(
    {
        "inputs": inputs,
        "heat": heat,
        "processor": processor,
        "tune": tune,
        "launches": launches,
        "batch": batch,
        "joules": joules,
        "half": half,
        "activations": activations,
        "chains": chains,
        "freeze": freeze,
    }
)

LEAST = 0.03  # share that a change must save to be said


def advice(run: Run) -> list[Advice]:
    """The advice of all rules that apply and would save at least 3%. Changes of the model come last, and time comes
    before energy and memory; otherwise the larger share that is saved comes first."""
    given: list[Advice] = []
    for rule in RULES.values():
        item = rule(run)
        if item is None or item.gain.share < LEAST:
            continue
        if not any(item.to and item.to == other.to for other in given):
            given.append(item)
    return sorted(given, key=_rank)


def _rank(item: Advice) -> tuple[bool, bool, float]:
    return item.effect == MODEL, item.gain.quantity in (BYTES, JOULES), -item.gain.share

"""Clocks that fall while steps run."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from handheld.analyse.rules.base import STEP, Advice, Gain

if TYPE_CHECKING:
    from handheld.analyse.run import Run

LEAST = 0.03  # share of the mean step that falling clocks must cost


def heat(run: Run) -> Advice | None:
    found = next((item for item in run.findings() if item.kind == "clock"), None)
    if found is None:
        return None
    hit = set(found.steps)
    times: dict[bool, list[float]] = {True: [], False: []}
    for before, step in itertools.pairwise(run.steps()):
        times[step.id in hit].append((step.end_ns - before.end_ns) * 1e-6)
    if not times[True] or not times[False]:
        return None
    slow, normal = float(np.median(times[True])), float(np.median(times[False]))
    mean = (slow * len(times[True]) + normal * len(times[False])) / (len(times[True]) + len(times[False]))
    if mean - normal < LEAST * mean:
        return None
    return Advice(
        rule="heat",
        seen=f"{found.text}; {len(times[True])} steps took {slow:.3g} ms instead of {normal:.3g} ms",
        costs_ms=mean - normal,
        change="cool the device, or pause between epochs; a smaller model or a slower clock that lasts costs less than "
        "one that falls",
        gain=Gain(STEP, mean, normal, normal, mean),
        command="handheld train MODEL --data DATA, on a cooled device",
        why_not="software cannot cool the machine",
    )

"""A device that waits for its data."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from handheld.analyse.rules.base import STEP, Advice, Gain

if TYPE_CHECKING:
    from handheld.analyse.run import Run


def inputs(run: Run) -> Advice | None:
    """Follows the finding `caller`, which knows how long the device waits."""
    found = next((item for item in run.findings() if item.kind == "caller"), None)
    if found is None or not run.step_ms()[0] or not run.periods or _one_batch(run):
        return None
    begin, _ = run.warm()
    steps = [step for step in run.steps() if step.begin_ns >= begin]
    # The profiler itself works between steps when it opens or closes a window. Nobody makes a batch there.
    pairs = [(a, b) for a, b in itertools.pairwise(steps) if a.window == b.window]
    if not pairs:
        return None
    mean = float(np.mean([b.end_ns - a.end_ns for a, b in pairs])) * 1e-6
    makes = float(np.mean([b.begin_ns - a.end_ns for a, b in pairs])) * 1e-6
    often = len(found.steps) >= len(pairs) / 2
    waits = float(str(found.evidence["ms"])) if often else float(str(found.evidence["share"])) * mean
    waits = min(waits, makes)
    needs = mean - waits
    after = max(needs, makes)  # Whichever of the two takes longer, if they run at the same time.
    if after >= 0.97 * mean:
        change = "make batches faster, or with several workers: a single one that works ahead does not suffice"
        low, after = needs, mean - waits / 2
    else:
        change = "make batches ahead, while the device works: a DataLoader with workers, or a thread with a queue"
        low = needs
    return Advice(
        rule="inputs",
        seen=f"the device waits {waits:.3g} of {mean:.3g} ms per step for the next batch, which takes {makes:.3g} ms "
        "to make",
        costs_ms=waits,
        change=change,
        gain=Gain(STEP, mean, after, min(low, after), mean),
        command="handheld train MODEL --data DATA, or your own loop with a DataLoader (num_workers=2)",
        why_not="the batches come from the caller's own code, which a run file does not hold",
    )


def _one_batch(run: Run) -> bool:
    """Whether `handheld profile` made the run. It gives every step the same batch, so nothing makes batches."""
    return bool((run.meta.get("settings") or {}).get("repeat"))

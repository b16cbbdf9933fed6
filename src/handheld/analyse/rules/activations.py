"""Activations that fill the memory: fewer samples at once, with the same update.

The passes already compute again what is cheap (passes/recompute.py, passes/remake.py). `torch.utils.checkpoint` around
a block works, but it did not lower the memory of a plan. So the rule computes the samples in two halves and accumulates
their gradients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from handheld.analyse.rules.base import BYTES, Advice, Change, Gain, batch_of, one_graph
from handheld.analyse.rules.command import command
from handheld.analyse.rules.growth import FIXED_MEMORY, memory_of
from handheld.units import size

if TYPE_CHECKING:
    from handheld.analyse.run import Run

FILLED = 0.5  # share of the device's memory that must be in use
SHARE = 0.5  # share of the peak that grows with the batch


def activations(run: Run) -> Advice | None:
    summary, memory, batch = run.memory_summary(), memory_of(run), batch_of(run)
    alive = next((row.live for row in run.op_rows if row.id == summary.peak_op), {})
    peak = summary.peak_bytes or 0
    grows = peak - sum(alive.get(name, 0) for name in FIXED_MEMORY)
    if not memory or not one_graph(run) or batch < 2 or peak < FILLED * memory or grows < SHARE * peak:
        return None
    small = batch // 2
    after = peak - grows * (1 - small / batch)
    owners = [owner for owner in summary.owners if owner.category == "activation"]
    largest = f"; the largest is {owners[0].name} with {size(owners[0].bytes)}" if owners else ""
    return Advice(
        rule="activations",
        seen=f"the step fills {peak / memory:.0%} of the device's memory, {grows / peak:.0%} of that grows with the "
        f"batch{largest}",
        costs_ms=0.0,
        change=f"a batch of {small} whose gradients are accumulated twice: the update is the same, and half of the "
        "activations are kept. torch.utils.checkpoint does not lower the memory here",
        gain=Gain(BYTES, peak, after, after * 0.9, min(after * 1.1, peak)),
        command=command(run, f"--batch {small} --accumulate 2", "train"),
        to=Change(batch=small),
    )

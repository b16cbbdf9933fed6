"""Activations that fill the memory: computed again within a memory limit, or fewer samples at once.

When the profile was made, the planner said what less memory costs (profile/less_memory.py): then the rule names a
limit, with this cost. Else it computes the samples in two halves and accumulates their gradients, which gives the same
update. The passes already compute again what is cheap (passes/recompute.py, passes/remake.py). `torch.utils.checkpoint`
around a block works, but it did not lower the memory of a plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from handheld.analyse.rules.base import BYTES, Advice, Change, Gain, batch_of, one_graph
from handheld.analyse.rules.command import command, limit_text
from handheld.analyse.rules.growth import FIXED_MEMORY, memory_of
from handheld.units import size

if TYPE_CHECKING:
    from handheld.analyse.memory import MemorySummary
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
    seen = (
        f"the step fills {peak / memory:.0%} of the device's memory, {grows / peak:.0%} of that grows with the "
        f"batch{_largest(summary)}"
    )
    return _again(run, seen) or _in_halves(run, seen, batch, peak, grows)


def _again(run: Run, seen: str) -> Advice | None:
    """A memory limit, if the planner said what it costs."""
    less, before, step_ms = run.meta.get("less_memory"), run.meta.get("plan_bytes"), run.step_ms()[0]
    if not less or not before or not step_ms:
        return None
    more = max(float(less["more"]), 0.0)
    limit, after = limit_text(int(less["limit_bytes"])), int(less["bytes"])
    return Advice(
        rule="activations",
        seen=seen,
        costs_ms=0.0,
        change=f"--memory-limit {limit}: values of the forward pass are computed again in the backward pass. The "
        f"planner predicts {more:.0%} more time ({(1 + more) * step_ms:.3g} instead of {step_ms:.3g} ms per step)",
        gain=Gain(BYTES, before, after, after, after),
        command=command(run, f"--memory-limit {limit}"),
        to=Change(memory_limit=int(less["limit_bytes"])),
        evidence={"more": more},
    )


def _largest(summary: MemorySummary) -> str:
    owners = [owner for owner in summary.owners if owner.category == "activation"]
    return f"; the largest is {owners[0].name} with {size(owners[0].bytes)}" if owners else ""


def _in_halves(run: Run, seen: str, batch: int, peak: int, grows: int) -> Advice:
    small = batch // 2
    after = peak - grows * (1 - small / batch)
    return Advice(
        rule="activations",
        seen=seen,
        costs_ms=0.0,
        change=f"a batch of {small} whose gradients are accumulated twice: the update is the same, and half of the "
        "activations are kept. torch.utils.checkpoint does not lower the memory here; --memory-limit may "
        "(handheld fit says at what cost)",
        gain=Gain(BYTES, peak, after, after * 0.9, min(after * 1.1, peak)),
        command=command(run, f"--batch {small} --accumulate 2", "train"),
        to=Change(batch=small),
    )

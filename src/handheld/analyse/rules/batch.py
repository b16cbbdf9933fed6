"""A batch that is too small for the device: its fixed costs are spread over more samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from handheld.analyse.rules.base import SAMPLE, TRAINING, Advice, Change, Gain, one_graph
from handheld.analyse.rules.command import command
from handheld.analyse.rules.growth import Grown, Growth, memory_of

if TYPE_CHECKING:
    from handheld.analyse.run import Run

LEAST = 0.12  # share of the time per sample that a larger batch must save


def batch(run: Run) -> Advice | None:
    growth = Growth.of(run) if one_graph(run) else None
    grown = growth.larger(memory_of(run)) if growth else None
    if growth is None or grown is None:
        return None
    fixed = growth.step_ms - grown.ms / grown.times  # what a larger batch would not need per batch of today's size
    if fixed < LEAST * growth.step_ms:
        return None
    seen = (
        f"{fixed:.3g} of {growth.step_ms:.3g} ms of a step at batch {growth.batch} do not come from its samples: "
        "launches, updates, and kernels that do not fill the device"
    )
    return larger(run, "batch", seen, fixed, growth, grown, TRAINING)


def larger(run: Run, rule: str, seen: str, ms: float, growth: Growth, grown: Grown, effect: str) -> Advice:
    """Advice to use a larger batch."""
    each = [value / grown.batch for value in (grown.ms, grown.low_ms, grown.high_ms)]
    return Advice(
        rule=rule,
        seen=seen,
        costs_ms=ms,
        change=f"a batch of {grown.batch} instead of {growth.batch}. The learning rate may have to follow the batch",
        gain=Gain(SAMPLE, growth.step_ms / growth.batch, each[0], each[1], each[2]),
        command=command(run, f"--batch {grown.batch}"),
        effect=effect,
        to=Change(batch=grown.batch),
        evidence={"batch": grown.batch, "step_ms": grown.ms, "bytes": grown.bytes},
    )

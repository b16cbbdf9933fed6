"""Halves, for activations that fill the memory. They save no time: every load widens a half and every store rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from handheld.analyse.rules.base import BYTES, TRAINING, Advice, Change, Gain
from handheld.analyse.rules.command import command
from handheld.analyse.rules.growth import memory_of

if TYPE_CHECKING:
    from handheld.analyse.run import Run

FILLED = 0.25  # share of the device's memory that must be in use
ACTIVATIONS = 0.4  # share of the peak that halves can shrink
STORED = (0.75, 0.6, 0.95)  # What remains of the bytes of activations and gradients: usual, best, worst.
SLOWER = "A step usually takes longer, because every load widens a half and every store rounds"


def half(run: Run) -> Advice | None:
    options = run.meta.get("plan_options") or {}
    if options.get("precision") != "float32" or not run.step_ms()[0]:
        return None
    summary, memory = run.memory_summary(), memory_of(run)
    alive = next((row.live for row in run.op_rows if row.id == summary.peak_op), {})
    peak = summary.peak_bytes or 0
    shrinks = alive.get("activation", 0) + alive.get("gradient", 0)
    if not memory or peak < FILLED * memory or shrinks < ACTIVATIONS * peak:
        return None
    after, low, high = (peak - (1 - left) * shrinks for left in STORED)
    return Advice(
        rule="half",
        seen=f"the step fills {peak / memory:.0%} of the device's memory; {shrinks / peak:.0%} of that are activations "
        "and gradients",
        costs_ms=0.0,
        change=f"store values between kernels in 16 bits. {SLOWER}",
        gain=Gain(BYTES, peak, after, low, high),
        command=command(run, "--precision half"),
        effect=TRAINING,
        to=Change(precision="half"),
    )

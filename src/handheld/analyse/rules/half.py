"""Halves: for activations that fill the memory, and for a GPU that mostly moves memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from handheld.analyse.rules.base import BYTES, STEP, TRAINING, Advice, Change, Gain
from handheld.analyse.rules.command import command
from handheld.analyse.rules.growth import memory_of

if TYPE_CHECKING:
    from handheld.analyse.run import Run

BOUND = 0.4  # share of a step in memory-bound ops for which a GPU gains time
FILLED = 0.25  # share of the device's memory that must be in use
ACTIVATIONS = 0.4  # share of the peak that halves can shrink
STORED = (0.75, 0.6, 0.95)  # What remains of the bytes of activations and gradients: usual, best, worst.
MOVED = (0.75, 0.6, 1.0)  # The same for the time of memory-bound ops.
SLOWER = "On this CPU a step takes longer, because every load widens a half and every store rounds"


def half(run: Run) -> Advice | None:
    options = run.meta.get("plan_options") or {}
    step_ms = run.step_ms()[0]
    if options.get("precision") != "float32" or not step_ms:
        return None
    gpu = (run.meta.get("caps") or {}).get("kind") == "gpu"
    share = run.bound().shares.get("memory", 0.0)
    if gpu and share >= BOUND:
        moved = share * step_ms
        after, low, high = (step_ms - (1 - left) * moved for left in MOVED)
        return Advice(
            rule="half",
            seen=f"{share:.0%} of a step is in ops that are limited by memory",
            costs_ms=moved,
            change="store values between kernels in 16 bits",
            gain=Gain(STEP, step_ms, after, low, high),
            command=command(run, "--precision half"),
            effect=TRAINING,
            to=Change(precision="half"),
        )
    return _for_memory(run, gpu)


def _for_memory(run: Run, gpu: bool) -> Advice | None:
    """Halves where memory is short, although they may cost time."""
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
        change=f"store values between kernels in 16 bits.{'' if gpu else f' {SLOWER}'}",
        gain=Gain(BYTES, peak, after, low, high),
        command=command(run, "--precision half"),
        effect=TRAINING,
        to=Change(precision="half"),
    )

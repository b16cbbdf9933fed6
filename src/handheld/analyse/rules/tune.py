"""Kernels without a tuning record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from handheld.analyse.rules.base import STEP, Advice, Change, Gain
from handheld.analyse.rules.command import command
from handheld.units import count

if TYPE_CHECKING:
    from handheld.analyse.run import Run

LEAST = 0.03  # share of a step that tuning must gain
EACH_S, MOST_S = 1.5, 120.0  # Seconds of tuning per op, and at most.


def tune(run: Run) -> Advice | None:
    known, step_ms = run.untuned(), run.step_ms()[0]
    if known is None or not step_ms or known.gain_ms is None or known.low_ms is None or known.high_ms is None:
        return None
    parts = run.parts()
    scale = min(step_ms / parts.ms, 1.0) if parts else 1.0
    gain, low, high = (scale * value for value in (known.gain_ms, known.low_ms, known.high_ms))
    if gain < LEAST * step_ms:
        return None
    seconds = min(max(EACH_S * len(known.ops), 20.0), MOST_S)
    return Advice(
        rule="tune",
        seen=f"{count(len(known.ops), 'op')} of {known.variants} with variants have no tuning record; they take "
        f"{scale * known.ms:.3g} of {step_ms:.3g} ms",
        costs_ms=gain,
        change=f"tune the kernels, once for this device (from {known.basis})",
        gain=Gain(STEP, step_ms, step_ms - gain, step_ms - high, step_ms - low),
        command=command(run, f"--budget {seconds:.0f}", "tune"),
        to=Change(tune_s=seconds),
        evidence={"ops": len(known.ops)},
    )

"""A batch that wastes energy: the device's idle power counts for as long as a step takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from handheld.analyse.rules.base import JOULES, TRAINING, Advice, Change, Gain, one_graph
from handheld.analyse.rules.command import command
from handheld.analyse.rules.growth import Growth, memory_of

if TYPE_CHECKING:
    from handheld.analyse.run import Run

IDLE = 0.3  # share of a step's joules that the idle device would have used too
LEAST = 0.1  # share of the joules per sample that must be saved


def joules(run: Run) -> Advice | None:
    rails = [row for row in run.energy() if not row.estimate and not row.part_of and row.idle_watts and row.joules_step]
    growth = Growth.of(run) if rails and one_graph(run) else None
    grown = growth.larger(memory_of(run)) if growth else None
    if growth is None or grown is None:
        return None
    whole = sum(row.joules_step or 0.0 for row in rails)
    idle = sum(row.idle_watts or 0.0 for row in rails) * growth.step_ms * 1e-3
    if idle < IDLE * whole:
        return None
    moving = max(whole - idle, 0.0)

    def each(ms: float) -> float:
        return (idle * ms / growth.step_ms + grown.times * moving) / grown.batch

    before, after = whole / growth.batch, each(grown.ms)
    if after > (1 - LEAST) * before:
        return None
    return Advice(
        rule="joules",
        seen=f"{idle / whole:.0%} of the {whole:.3g} J of a step would be used by the idle device too",
        costs_ms=0.0,
        change=f"a batch of {grown.batch} instead of {growth.batch}: the same idle power serves more samples",
        gain=Gain(JOULES, before, after, each(grown.low_ms), each(grown.high_ms)),
        command=command(run, f"--batch {grown.batch}"),
        effect=TRAINING,
        to=Change(batch=grown.batch),
    )

"""The joules of ops in the tables of a run."""

from __future__ import annotations

from handheld.analyse.energy import METHODS
from handheld.analyse.joules import ESTIMATE, MODEL, OpJoules
from handheld.analyse.run import Run
from handheld.units import count


def main_rail(run: Run) -> dict[int, OpJoules]:
    """The joules of each op on one rail: one that is no part of another, the one with most joules. Empty if none."""
    rows = run.joules()
    parts = {total.rail for total in run.step_joules() if total.part_of}
    sums: dict[str, float] = {}
    for row in rows:
        if row.rail not in parts:
            sums[row.rail] = sums.get(row.rail, 0.0) + row.joules
    rail = max(sums, key=lambda name: sums[name], default="")
    return {row.id: row for row in rows if row.rail == rail}


def cell(row: OpJoules | None) -> str:
    """The joules of an op in mJ, with a mark where they were measured and not predicted."""
    if row is None:
        return ""
    mark = {MODEL: "", ESTIMATE: " (estimate)"}.get(row.source, "*")
    return f"{row.joules * 1e3:.3f}{mark}"


def lines(run: Run) -> list[str]:
    """Per rail, the sum of a step's ops and gaps beside the sensor; or why there are no joules of ops."""
    totals = run.step_joules()
    if not totals:
        reason = run.no_joules()
        # Without a sensor, the line above says so.
        return [f"no joules per op: {reason}"] if reason and run.energy() else []
    texts = []
    for total in totals:
        text = f"{total.rail}: ops {total.ops:.4g} J + gaps {total.gaps:.4g} J = {total.sum:.4g} J per step"
        if total.counter and total.scale != 1:
            text += f"; model scaled by {total.scale:.2f} to the sensor ({total.counter:.4g} J)"
        elif total.counter:
            text += f" by the energy model, {total.sum / total.counter - 1:+.0%} beside the sensor"
        else:
            text += " by the energy model"
        texts.append(text + (f"; {total.measured_share:.0%} of ops from windows (*)" if total.measured_share else ""))
        texts += _both([row for row in run.joules() if row.rail == total.rail])
    return texts


def _both(rows: list[OpJoules]) -> list[str]:
    """Which figure is used for ops that both the model and a window have, and what the other one says."""
    texts = []
    for used, what in (
        (METHODS, "windows are used and the model"),
        ((MODEL,), "the model is used and windows, too wide,"),
    ):
        both = [row for row in rows if row.unused in (*METHODS, MODEL) and row.source in used and row.unused_joules]
        if whole := sum(row.joules for row in both):
            ratio = sum(row.unused_joules or 0.0 for row in both) / whole
            texts.append(f"for {count(len(both), 'op')} with both figures, {what} would say {ratio:.2f} times as much")
    return texts

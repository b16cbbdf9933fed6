"""A finding: ops whose rank by energy differs from their rank by time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from handheld.analyse.finding import Finding, finding
from handheld.analyse.joules import ESTIMATE, OpJoules

if TYPE_CHECKING:
    from handheld.analyse.run import Run

LEAST_SHARE = 0.03  # of the energy or of the time of all ops
APART = 1.3  # The share of energy differs from the share of time by at least this factor, whatever the interval.
LEAST_RANKS = 2  # The two ranks differ by at least this many places.
SHOWN = 3


def energy_rank(run: Run) -> list[Finding]:
    """Ops that take clearly more, or less, of the energy than of the time. At most one finding per rail that is no part
    of another."""
    parts = {total.rail for total in run.step_joules() if total.part_of}
    by_rail: dict[str, list[OpJoules]] = {}
    for row in run.joules():
        if row.rail not in parts and row.source != ESTIMATE:
            by_rail.setdefault(row.rail, []).append(row)
    return [found for rail, rows in by_rail.items() if (found := _on(run, rail, rows)) is not None]


def _on(run: Run, rail: str, rows: list[OpJoules]) -> Finding | None:
    ops = {row.id: row for row in run.ops() if row.ms and row.graph == run.graph}
    rows = [row for row in rows if row.id in ops]
    joules, ms = sum(row.joules for row in rows), sum(ops[row.id].ms or 0.0 for row in rows)
    if joules <= 0 or ms <= 0:
        return None
    by_energy = {row.id: i for i, row in enumerate(sorted(rows, key=lambda row: -row.joules), 1)}
    by_time = {row.id: i for i, row in enumerate(sorted(rows, key=lambda row: -(ops[row.id].ms or 0.0)), 1)}
    found = []
    for row in rows:
        energy, time = row.joules / joules, (ops[row.id].ms or 0.0) / ms
        low, high = (value / joules if value is not None else energy for value in (row.low_joules, row.high_joules))
        clear = low > APART * time or high < time / APART
        moved = abs(by_energy[row.id] - by_time[row.id]) >= LEAST_RANKS
        if clear and moved and max(energy, time) >= LEAST_SHARE:
            found.append((max(energy, time) * abs(energy / time - 1), row, energy, time))
    if not found:
        return None
    found.sort(key=lambda item: -item[0])
    named = "; ".join(
        f"{ops[row.id].title} is number {by_energy[row.id]} by energy and {by_time[row.id]} by time "
        f"({energy:.0%} of the joules, {time:.0%} of the time)"
        for _, row, energy, time in found[:SHOWN]
    )
    ids = [row.id for _, row, _, _ in found]
    return finding("energy rank", f"on {rail}, {named}", [], ids, rail=rail, shares=[item[2:] for item in found])

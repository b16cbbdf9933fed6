"""The parts of a run's payload about energy: rails, and ops on each of them."""

from __future__ import annotations

from collections.abc import Sequence

from handheld.analyse.joules import OpJoules
from handheld.analyse.run import Run
from handheld.report.pack import columns, rounded


def energy(run: Run) -> dict[str, object]:
    """Joules per step and rail; joules per group of ops; and why, if there are none."""
    rails, rows = run.energy(), run.joules()
    return {
        "why": "" if rails or rows else no_energy(run),
        "ops": _op_joules(rows),
        "ops_why": run.no_joules(),
        "inner": sorted({r.rail for r in rails if r.part_of} | {r.rail for r in run.step_joules() if r.part_of}),
        "rails": [
            {
                "rail": row.rail,
                "covers": list(row.covers),
                "part_of": row.part_of,
                "joules_step": rounded(row.joules_step),
                "watts": rounded(row.watts),
                "idle_watts": rounded(row.idle_watts),
                "seconds": rounded(row.seconds),
                "ticks": row.ticks,
                "estimate": row.estimate,
            }
            for row in rails
        ],
        "groups": [
            {
                "signature": row.signature,
                "method": row.method,
                "rail": row.rail,
                "joules": rounded(row.joules),
                "low": rounded(row.low_joules),
                "high": rounded(row.high_joules),
                "ops": list(row.ops),
                "ticks": row.ticks,
            }
            for row in run.op_energy()
        ],
        "steps": [
            {
                "rail": row.rail,
                "joules": rounded(row.joules),
                "half_width": rounded(row.half_width),
                "slope": rounded(row.slope),
                "alone": rounded(row.alone),
            }
            for row in run.step_energy()
        ],
    }


def _op_joules(rows: Sequence[OpJoules]) -> dict[str, object]:
    """Joules per op and rail, as columns. An interval that is not known is None."""
    return columns(
        {
            "id": [row.id for row in rows],
            "rail": [row.rail for row in rows],
            "joules": [row.joules for row in rows],
            "low": [row.low_joules for row in rows],
            "high": [row.high_joules for row in rows],
            "source": [row.source for row in rows],
        },
        ("rail", "source"),
    )


def no_energy(run: Run) -> str:
    """Why no rail was measured."""
    absent: dict[str, str] = run.meta.get("sensors_absent") or {}
    if not run.channels and not absent:
        return "No sensor was read in this run."
    return (
        "No power sensor was read in this run, so there are no joules. "
        f"handheld doctor{run.on_option} says per sensor why; "
        "handheld profile --estimate-energy --watts-busy W makes an estimate at a power that you state."
    )

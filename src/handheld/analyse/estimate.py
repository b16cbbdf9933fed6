"""Estimates of energy from watts that the user states (profile/estimate.py), marked as such.

an op      watts_busy × its time
a step     watts_busy × the time that the device ran a command + watts_idle × the rest of it
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from handheld.graph.graph import PHASES

if TYPE_CHECKING:
    from handheld.analyse.run import Run

RAIL = "estimate"

Row = dict[str, Any]


def model(run: Run) -> Row | None:
    """What was stated, or None: no estimate was asked for."""
    return run.meta.get("estimate")


def step_estimate(run: Run) -> list[Row]:
    """As Run.energy: one row, or none."""
    stated, parts = model(run), run.parts()
    if stated is None or parts is None:
        return []
    seconds = parts["ms"] * 1e-3
    busy_s = sum(parts[name] for name in (*PHASES, "upload", "download", "copy")) * 1e-3
    joules = stated["watts_busy"] * busy_s + stated["watts_idle"] * (seconds - busy_s)
    return [
        {
            "rail": RAIL,
            "covers": (),
            "part_of": "",
            "joules": None,
            "joules_step": joules,
            "watts": joules / seconds,
            "idle_watts": stated["watts_idle"],
            "ticks": 0,
            "seconds": seconds,
            "estimate": True,
        }
    ]


def op_estimate(run: Run) -> list[Row]:
    """As Run.op_energy: a row a signature, of one run of all its ops."""
    stated = model(run)
    if stated is None:
        return []
    groups: dict[str, list[Row]] = {}
    for row in run.ops():
        if row["ms"] is not None and row["graph"] == run.graph:
            groups.setdefault(row["signature"], []).append(row)
    rows = []
    for signature, mine in groups.items():
        seconds = sum(row["ms"] for row in mine) * 1e-3
        rows.append(
            {
                "signature": signature,
                "method": "estimate",
                "rail": RAIL,
                "joules": stated["watts_busy"] * seconds,
                "low_joules": None,
                "high_joules": None,
                "windows": 0,
                "ticks": 0,
                "run_s": seconds,
                "idle_joules": stated["watts_idle"] * seconds,
                "ops": [row["id"] for row in mine],
                "estimate": True,
            }
        )
    return rows

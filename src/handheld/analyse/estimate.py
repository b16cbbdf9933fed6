"""Estimates energy from watts that the user states (`Estimate`). The results are marked as estimates.

an op      watts_busy × its time
a step     watts_busy × the time in which the device ran a command + watts_idle × the rest of the step
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from handheld.analyse.energy import OpEnergy, RailEnergy
from handheld.errors import HandheldError

if TYPE_CHECKING:
    from handheld.analyse.ops import OpTime
    from handheld.analyse.run import Run

RAIL = "estimate"


@dataclass(frozen=True)
class Estimate:
    """The power of the device while it runs a command and while it is idle, as stated by the user and not measured.
    Everything computed from it is marked as an estimate."""

    watts_busy: float
    watts_idle: float = 0.0

    def __post_init__(self) -> None:
        valid = all(math.isfinite(w) and w >= 0 for w in (self.watts_busy, self.watts_idle))
        if not valid or self.watts_busy < self.watts_idle or not self.watts_busy:
            raise HandheldError(
                "an estimate needs watts_busy above 0 and watts_idle between 0 and watts_busy; "
                f"these are {self.watts_busy:g} and {self.watts_idle:g}"
            )


def model(run: Run) -> Estimate | None:
    """The stated watts, or None if the run was not asked for an estimate."""
    given = run.meta.get("estimate")
    return None if given is None else Estimate(given["watts_busy"], given["watts_idle"])


def step_estimate(run: Run) -> list[RailEnergy]:
    """A row for Run.energy, or no row."""
    stated = model(run)
    parts = None if stated is None else run.parts()
    if stated is None or parts is None:
        return []
    seconds, busy_s = parts.ms * 1e-3, parts.busy_ms * 1e-3
    joules = stated.watts_busy * busy_s + stated.watts_idle * (seconds - busy_s)
    return [
        RailEnergy(
            rail=RAIL,
            covers=(),
            part_of="",
            joules=None,
            joules_step=joules,
            watts=joules / seconds,
            idle_watts=stated.watts_idle,
            ticks=0,
            seconds=seconds,
            estimate=True,
        )
    ]


def op_estimate(run: Run) -> list[OpEnergy]:
    """Rows for Run.op_energy: one per signature, for one run of all its ops."""
    stated = model(run)
    if stated is None:
        return []
    groups: dict[str, list[OpTime]] = {}
    for row in run.ops():
        if row.ms is not None and row.graph == run.graph:
            groups.setdefault(row.signature, []).append(row)
    rows = []
    for signature, ops in groups.items():
        seconds = sum(row.ms or 0.0 for row in ops) * 1e-3
        rows.append(
            OpEnergy(
                signature=signature,
                method="estimate",
                rail=RAIL,
                joules=stated.watts_busy * seconds,
                low_joules=None,
                high_joules=None,
                windows=0,
                ticks=0,
                runs=None,
                seconds=None,
                run_s=seconds,
                ops=tuple(row.id for row in ops),
                idle_joules=stated.watts_idle * seconds,
                estimate=True,
            )
        )
    return rows

"""Energy of ops, from windows of equal work (profile/energy.py).

    slope   (energy of a step with `extra` more runs - energy of a step as it is) / extra
    alone   energy of a round of these ops alone

Each round of windows gives one value; the interval is that of their mean at 95%. Energy is that of
the whole rail while the op runs: what the device takes when idle is in it, and shown apart.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from handheld.analyse.rails import Series, rails
from handheld.store.reader import RunFile

#: of Student's distribution, two-sided 95%, for 1, 2, ... degrees of freedom
_T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)

Row = dict[str, Any]


def op_energy(file: RunFile, channels: list[Series]) -> list[Row]:
    """A row a signature, method and rail: joules of one run of all ops of the signature."""
    windows = file.table("SELECT * FROM energy_window ORDER BY begin_ns")
    rows = []
    for rail in rails(channels):
        for signature in dict.fromkeys(w["signature"] for w in windows if w["signature"]):
            for method in ("slope", "alone"):
                row = _one(windows, rail, signature, method)
                if row is not None:
                    rows.append(row)
    return rows


def _per_run(window: Row, rail: Series) -> float | None:
    joules = rail.joules(window["begin_ns"], window["end_ns"])
    return None if joules is None or not window["runs"] else joules / window["runs"]


def _one(windows: list[Row], rail: Series, signature: str, method: str) -> Row | None:
    mine = [w for w in windows if w["signature"] == signature and w["method"] == method]
    plain = [(w["begin_ns"], _per_run(w, rail)) for w in windows if not w["signature"]]
    plain = [(at, joules) for at, joules in plain if joules is not None]
    values = []
    for window in mine:
        joules = _per_run(window, rail)
        if joules is None:
            continue
        if method == "slope":
            if not plain:
                continue
            # the two plain windows next to it: a device that warms up takes more as time goes on
            near = sorted(plain, key=lambda one: abs(one[0] - window["begin_ns"]))[:2]
            joules = (joules - float(np.mean([j for _, j in near]))) / window["extra"]
        values.append(joules)
    if not values:
        return None
    mean, half = interval(values)
    return {
        "signature": signature, "method": method, "rail": rail.rail, "joules": mean,
        "low_joules": mean - half, "high_joules": mean + half, "windows": len(values),
        "ticks": sum(rail.ticks(w["begin_ns"], w["end_ns"]) for w in mine),
        "runs": sum(w["runs"] * max(w["extra"], 1) for w in mine),
        "seconds": sum(w["end_ns"] - w["begin_ns"] for w in mine) * 1e-9,
        "ops": json.loads(mine[0]["ops"]),
    }


def interval(values: list[float]) -> tuple[float, float]:
    """The mean, and half the width of its 95% interval; infinite for one value."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, math.inf
    t = _T95[min(len(values) - 2, len(_T95) - 1)]
    return mean, t * float(np.std(values, ddof=1)) / math.sqrt(len(values))


def step_energy(file: RunFile, channels: list[Series]) -> list[Row]:
    """A row a rail: joules of a step as it is, beside the sum over its ops by each method."""
    windows = file.table("SELECT * FROM energy_window WHERE signature='' ORDER BY begin_ns")
    ops = op_energy(file, channels)
    rows = []
    for rail in rails(channels):
        values = [v for v in (_per_run(w, rail) for w in windows) if v is not None]
        if not values:
            continue
        mean, half = interval(values)
        row: Row = {"rail": rail.rail, "joules": mean, "half_width": half}
        for method in ("slope", "alone"):
            mine = [o["joules"] for o in ops if (o["rail"], o["method"]) == (rail.rail, method)]
            row[method] = sum(mine) if mine else None
        rows.append(row)
    return rows

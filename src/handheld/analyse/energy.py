"""The energy of ops, from windows of repeated equal work (profile/energy.py), by two methods.

    slope   (energy of a step with `extra` more runs - energy of a normal step) / extra
    alone   energy of one round in which only these ops run

Each window gives one value; the interval is the 95% interval of their mean. The energy is that of the whole rail
while the op runs. It includes the power of the idle device, whose share is also reported separately (`idle_joules`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from handheld.analyse.rails import Series, rails
from handheld.store.reader import RunFile
from handheld.store.record import Record
from handheld.store.rows import EnergyWindowRow

METHODS = ("slope", "alone")
#: Quantiles of Student's t distribution, two-sided 95%, for 1, 2, ... degrees of freedom.
_T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)


@dataclass(frozen=True, slots=True)
class RailEnergy(Record):
    """Energy of the steps after warm-up on one rail, or an estimate of it."""

    rail: str
    covers: tuple[str, ...]
    part_of: str
    joules: float | None
    watts: float | None
    idle_watts: float | None
    joules_step: float | None
    ticks: int  # how often the sensor's value changed in this time
    seconds: float
    estimate: bool


@dataclass(frozen=True, slots=True)
class OpEnergy(Record):
    """Energy of one run of all ops of a signature, by one method on one rail."""

    optional: ClassVar[frozenset[str]] = frozenset({"runs", "seconds"})  # An estimate has neither.

    signature: str
    method: str
    rail: str
    joules: float
    low_joules: float | None
    high_joules: float | None
    windows: int
    ticks: int
    runs: int | None
    seconds: float | None
    run_s: float
    ops: tuple[int, ...]
    idle_joules: float | None
    estimate: bool = False

    def to_json(self) -> dict[str, object]:
        values = Record.to_json(self)
        if not self.estimate:
            del values["estimate"]  # Only estimates are marked.
        return values


@dataclass(frozen=True, slots=True)
class StepEnergy(Record):
    """Energy of a step on one rail, and the sums over its ops by each method."""

    rail: str
    joules: float
    half_width: float
    slope: float | None
    alone: float | None


def rail_energy(file: RunFile, channels: list[Series], begin: int, end: int, steps: int) -> list[RailEnergy]:
    """One row per rail that was read from `begin` to `end`; `steps` is the number of steps in this time."""
    seconds = (end - begin) * 1e-9
    rows = []
    for rail in rails(channels):
        joules = rail.joules(begin, end)
        if joules is None:
            continue
        rows.append(
            RailEnergy(
                rail=rail.rail,
                covers=rail.covers,
                part_of=rail.part_of,
                joules=joules,
                watts=joules / seconds if seconds else None,
                idle_watts=idle_watts(file, rail),
                joules_step=joules / steps if steps else None,
                ticks=rail.ticks(begin, end),
                seconds=seconds,
                estimate=False,
            )
        )
    return rows


def op_energy(file: RunFile, channels: list[Series]) -> list[OpEnergy]:
    """One row per signature, method and rail: the joules of one run of all ops of the signature."""
    windows = file.table(EnergyWindowRow, "ORDER BY begin_ns")
    rows = []
    for rail in rails(channels):
        idle = idle_watts(file, rail)
        for signature in dict.fromkeys(w.signature for w in windows if w.signature):
            for method in METHODS:
                row = _op_energy(windows, rail, signature, method, idle)
                if row is not None:
                    rows.append(row)
    return rows


def idle_watts(file: RunFile, rail: Series) -> float | None:
    """The rail's power before the first step, while the device was open and idle."""
    begin, end = file.meta.get("idle_ns") or (0, 0)
    joules = rail.joules(begin, end) if end > begin else None
    return None if joules is None else float(joules / ((end - begin) * 1e-9))


def _per_run(window: EnergyWindowRow, rail: Series) -> float | None:
    joules = rail.joules(window.begin_ns, window.end_ns)
    return None if joules is None or not window.runs else joules / window.runs


def _op_energy(
    windows: list[EnergyWindowRow], rail: Series, signature: str, method: str, idle: float | None
) -> OpEnergy | None:
    chosen = [w for w in windows if w.signature == signature and w.method == method]
    plain = [w for w in windows if not w.signature and _per_run(w, rail) is not None]
    values, seconds = [], []
    for window in chosen:
        joules, each_s = _per_run(window, rail), _seconds(window)
        if joules is None:
            continue
        if method == "slope":
            if not plain:
                continue
            # Compare with the two nearest plain windows, because a device that warms up draws more with time.
            near = sorted(plain, key=lambda w: abs(w.begin_ns - window.begin_ns))[:2]
            joules = (joules - _mean(_per_run(w, rail) for w in near)) / window.extra
            each_s = (each_s - _mean(map(_seconds, near))) / window.extra
        values.append(joules)
        seconds.append(each_s)
    if not values:
        return None
    mean, half = interval(values)
    run_s = float(np.mean(seconds))
    return OpEnergy(
        signature=signature,
        method=method,
        rail=rail.rail,
        joules=mean,
        low_joules=mean - half,
        high_joules=mean + half,
        windows=len(values),
        ticks=sum(rail.ticks(w.begin_ns, w.end_ns) for w in chosen),
        runs=sum(w.runs * max(w.extra, 1) for w in chosen),
        seconds=sum(w.end_ns - w.begin_ns for w in chosen) * 1e-9,
        run_s=run_s,
        ops=chosen[0].ops,
        idle_joules=None if idle is None else idle * run_s,
    )


def _seconds(window: EnergyWindowRow) -> float:
    return float((window.end_ns - window.begin_ns) * 1e-9 / max(window.runs, 1))


def _mean(values: Iterable[float | None]) -> float:
    return float(np.mean([v for v in values if v is not None]))


def interval(values: list[float]) -> tuple[float, float]:
    """The mean and half the width of its 95% interval, which is infinite for a single value."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, math.inf
    t = _T95[min(len(values) - 2, len(_T95) - 1)]
    return mean, t * float(np.std(values, ddof=1)) / math.sqrt(len(values))


def step_energy(file: RunFile, channels: list[Series]) -> list[StepEnergy]:
    """One row per rail: the joules of a normal step, and the sums over its ops by each method."""
    windows = file.table(EnergyWindowRow, "WHERE signature='' ORDER BY begin_ns")
    ops = op_energy(file, channels)
    rows = []
    for rail in rails(channels):
        values = [v for v in (_per_run(w, rail) for w in windows) if v is not None]
        if not values:
            continue
        mean, half = interval(values)
        slope, alone = ([o.joules for o in ops if (o.rail, o.method) == (rail.rail, method)] for method in METHODS)
        rows.append(StepEnergy(rail.rail, mean, half, sum(slope) if slope else None, sum(alone) if alone else None))
    return rows

"""The energy of ops, from windows of repeated equal work (profile/energy.py), by two methods.

    slope   (energy of a step with `extra` more runs - energy of a normal step) / extra
    alone   energy of one round in which only these ops run

Each window gives one value; the interval is the 95% interval of their mean. The energy is that of the whole rail
while the op runs. It includes the power of the idle device, whose share is also reported separately (`idle_joules`).

The windows run in a plan of their own (profile/isolated.py). If ops take other times there than in the plan that
trains, by more than SAME, their joules are scaled by time; if the times differ by more than a factor of MOST_SCALE,
there are none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from handheld.analyse.rails import Series, rails
from handheld.store.reader import RunFile
from handheld.store.record import Record
from handheld.store.rows import EnergyWindowRow

METHODS = ("slope", "alone")
STEP = "step"  # the method of windows of whole steps of the plan that trains
SAME = 0.1  # Times that differ by less than this share are the same.
MOST_SCALE = 2.0  # Joules are scaled at most by this factor.
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
    scale: float = 1.0  # the time of these ops in the plan that trains / in the plan of the windows, if they differ

    def to_json(self) -> dict[str, object]:
        values = Record.to_json(self)
        if not self.estimate:
            del values["estimate"]  # Only estimates are marked.
        if self.scale == 1.0:
            del values["scale"]
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


def op_energy(file: RunFile, channels: list[Series], op_ms: Mapping[int, float]) -> list[OpEnergy]:
    """One row per signature, method and rail: the joules of one run of all ops of the signature. `op_ms` are the times
    of ops in the plan that trains."""
    windows = file.table(EnergyWindowRow, "ORDER BY begin_ns")
    rows = []
    for rail in rails(channels):
        idle = idle_watts(file, rail)
        for signature in dict.fromkeys(w.signature for w in windows if w.signature):
            for method in METHODS:
                row = _op_energy(windows, rail, signature, method, idle)
                if row is not None:
                    scale = 1 / isolated_ratio(file, op_ms, row.ops)
                    if abs(scale - 1) <= SAME:
                        rows.append(row)
                    elif 1 / MOST_SCALE <= scale <= MOST_SCALE:
                        rows.append(_scaled(row, scale))
    return rows


def isolated_ratio(file: RunFile, op_ms: Mapping[int, float], ops: Sequence[int]) -> float:
    """The time of these ops in the plan of the windows, divided by their time in the plan that trains. 1 if one of the
    two is not known, as in files of versions that had one plan for both."""
    there = (file.meta.get("isolated") or {}).get("op_ms", {})
    known = [op for op in ops if op_ms.get(op) and str(op) in there]
    real = sum(op_ms[op] for op in known)
    return sum(float(there[str(op)]) for op in known) / real if real else 1.0


def _scaled(row: OpEnergy, scale: float) -> OpEnergy:
    def times(value: float | None) -> float | None:
        return None if value is None else value * scale

    return replace(
        row,
        joules=row.joules * scale,
        low_joules=times(row.low_joules),
        high_joules=times(row.high_joules),
        run_s=row.run_s * scale,
        idle_joules=times(row.idle_joules),
        scale=scale,
    )


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
    plain = [w for w in windows if not w.signature and w.method != STEP and _per_run(w, rail) is not None]
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


def step_energy(file: RunFile, channels: list[Series], ops: Sequence[OpEnergy]) -> list[StepEnergy]:
    """One row per rail: the joules of a step of the plan that trains, and the sums over its ops by each method."""
    windows = file.table(EnergyWindowRow, "WHERE signature='' ORDER BY begin_ns")
    # Older files have only steps of the plan of the windows.
    windows = [w for w in windows if w.method == STEP] or windows
    rows = []
    for rail in rails(channels):
        values = [v for v in (_per_run(w, rail) for w in windows) if v is not None]
        if not values:
            continue
        mean, half = interval(values)
        slope, alone = ([o.joules for o in ops if (o.rail, o.method) == (rail.rail, method)] for method in METHODS)
        rows.append(StepEnergy(rail.rail, mean, half, sum(slope) if slope else None, sum(alone) if alone else None))
    return rows

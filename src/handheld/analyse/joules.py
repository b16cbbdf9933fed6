"""The joules of every op: by the device's energy model (cost/energy.py), or by measured windows where there are some.

A run file holds the model of its device (`energy_model` in `meta`) and how each op is launched (`launch_sizes`). The
joules of an op are those of one run, on one rail. Windows that measured an op are preferred to the model: the slope,
and then the op alone. Rails that are part of another rail must not be added to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from handheld.analyse.energy import METHODS, OpEnergy
from handheld.analyse.rails import rails
from handheld.cost.energy import Effort, EnergyModel
from handheld.store.record import Record

if TYPE_CHECKING:
    from handheld.analyse.ops import OpTime
    from handheld.analyse.run import Run

MODEL, ESTIMATE = "model", "estimate"
WIDE = 0.5  # A window whose interval is wider than this share of its joules does not replace the model.


@dataclass(frozen=True, slots=True)
class OpJoules(Record):
    """The joules of one run of an op on one rail, with a 95% interval. `source` says where they come from: `model`,
    `slope`, `alone` or `estimate`."""

    id: int
    rail: str
    joules: float
    low_joules: float | None
    high_joules: float | None
    source: str


@dataclass(frozen=True, slots=True)
class StepJoules(Record):
    """The joules of a step on one rail: by the rail's sensor (None if it did not resolve the steps), and as the sum of
    its ops and of the rest of its time. `measured_share` is the share of the sum that comes from windows."""

    rail: str
    covers: tuple[str, ...]
    part_of: str
    counter: float | None
    sum: float
    ops: float
    gaps: float
    measured_share: float


def energy_model(run: Run) -> EnergyModel | None:
    """The energy model of the run's device, or None."""
    stored = run.meta.get("energy_model")
    if not isinstance(stored, dict):
        return None
    try:
        return EnergyModel.from_json(stored)
    except (KeyError, TypeError, ValueError):
        return None


def no_joules(run: Run) -> str:
    """Why there are no joules of ops, or "" if there are some."""
    if run.joules():
        return ""
    if not any(row.ms is not None for row in run.ops()):
        return "no op was timed"
    if energy_model(run) is not None:
        return "the run was made by a version that does not store how ops are launched. Try: handheld profile again"
    if run.meta.get("sensors_absent") and not rails(run.channels):
        return "this machine has no power sensor that can be read. Try: handheld doctor, which says why for each sensor"
    known = run.meta.get("no_energy_model")
    return str(known) if known else "the device's energy model was not measured. Try: handheld doctor --energy"


def joules(run: Run) -> list[OpJoules]:
    """One row per op and rail, in the order of ops. Empty if nothing is known; `no_joules` says why."""
    times = [row for row in run.ops() if row.ms and row.launches]
    rows: dict[tuple[int, str], OpJoules] = {}
    model = energy_model(run)
    if model is not None:
        for row in _modelled(run, model, times):
            rows[row.id, row.rail] = row
    for row in _measured(run.op_energy(), {row.id: row.ms or 0.0 for row in times}):
        known = rows.get((row.id, row.rail))
        if known is None or not _wide(row):
            rows[row.id, row.rail] = row
    order = {name: i for i, name in enumerate(dict.fromkeys(row.rail for row in rows.values()))}
    return sorted(rows.values(), key=lambda row: (order[row.rail], row.id))


def _wide(row: OpJoules) -> bool:
    if row.low_joules is None or row.high_joules is None:
        return row.source == ESTIMATE
    return row.joules <= 0 or row.high_joules - row.low_joules > WIDE * row.joules


def _modelled(run: Run, model: EnergyModel, times: list[OpTime]) -> list[OpJoules]:
    known = [(row, effort) for row in times if (effort := effort_of(run, row)) is not None]
    all_seconds = op_seconds(run)
    seconds = [all_seconds[row.id] for row, _ in known]
    rows = []
    for rail in model.rails:
        values = model.joules(rail.name, [effort for _, effort in known], seconds)
        rows += [
            OpJoules(row.id, rail.name, value.joules, value.low_joules, value.high_joules, MODEL)
            for (row, _), value in zip(known, values, strict=True)
        ]
    return rows


def effort_of(run: Run, row: OpTime) -> Effort | None:
    """How an op is launched, or None if the run does not say."""
    sizes = (run.meta.get("launch_sizes") or {}).get(str(row.id))
    if sizes is None:
        return None
    kernel, groups, items = sizes
    return Effort(row.op, str(kernel), row.flops, row.bytes, row.launches, int(groups), int(items))


def op_seconds(run: Run) -> dict[int, float]:
    """The time of each op in a step that was not recorded. Where recorded steps are slower than others, their ops are
    taken to be shorter, so that they fit into the step."""
    timed = [row for row in run.ops() if row.ms and row.launches]
    seconds: dict[int, float] = {}
    for graph in {row.graph for row in timed}:
        own = {row.id: (row.ms or 0.0) * 1e-3 for row in timed if row.graph == graph}
        step, _ = run.step_ms(graph)
        fits = min(1.0, step * 1e-3 / sum(own.values())) if step else 1.0
        seconds |= {op: took * fits for op, took in own.items()}
    return seconds


def _measured(windows: list[OpEnergy], op_ms: dict[int, float]) -> list[OpJoules]:
    """The joules of windows, divided among the ops of a signature by their times. The rest of a phase is left out, for
    its ops differ."""
    rows: dict[tuple[int, str], OpJoules] = {}
    for method in (ESTIMATE, *reversed(METHODS)):
        for window in windows:
            if window.method != method or window.signature.startswith("rest of "):
                continue
            whole = sum(op_ms.get(op, 0.0) for op in window.ops)
            for op in window.ops:
                if not whole or op not in op_ms:
                    continue
                share = op_ms[op] / whole
                low, high = (None if v is None else v * share for v in (window.low_joules, window.high_joules))
                row = OpJoules(op, window.rail, window.joules * share, low, high, method)
                if (op, window.rail) not in rows or not _wide(row):
                    rows[op, window.rail] = row
    return list(rows.values())


def step_joules(run: Run) -> list[StepJoules]:
    """One row per rail that has joules of ops: the sum over a step's ops and its gaps, beside the rail's sensor."""
    model = energy_model(run)
    if model is None:
        return []
    rows = run.joules()
    graph = run.graph
    times = {row.id for row in run.ops() if row.graph == graph and row.ms and row.launches}
    seconds = op_seconds(run)
    step, _ = run.step_ms()
    counted = {row.rail: row.joules_step for row in run.energy() if not row.estimate}
    covers = {rail.rail: rail for rail in rails(run.channels)}
    result = []
    for rail in model.rails:
        own = [row for row in rows if row.rail == rail.name and row.id in times]
        if not own or step is None:
            continue
        busy = sum(seconds[row.id] for row in own)
        gaps = rail.gap_watts * max(step * 1e-3 - busy, 0.0)
        ops = sum(row.joules for row in own)
        measured = sum(row.joules for row in own if row.source in METHODS)
        named = covers.get(rail.name)
        result.append(
            StepJoules(
                rail.name,
                named.covers if named else rail.covers,
                rail.part_of,
                counted.get(rail.name),
                ops + gaps,
                ops,
                gaps,
                measured / ops if ops else 0.0,
            )
        )
    return result

"""The joules of every op: by the device's energy model (cost/energy.py), or by measured windows where there are some.

A run file holds the model of its device (`energy_model` in `meta`) and how each op is launched (`launch_sizes`). The
joules of an op are those of one run, on one rail. Windows that measured an op are preferred to the model: the slope,
and then the op alone. Rails that are part of another rail must not be added to it.

If the rail's sensor resolved the steps of this run, the sum of a step is known: the model's ops are then scaled so that
ops and gaps add up to it, and `StepJoules.scale` states the factor. What the model says about an op is then its share.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from handheld.analyse.energy import METHODS, OpEnergy
from handheld.analyse.rails import rails
from handheld.cost.energy import Effort, EnergyModel, Rail
from handheld.store.record import Record

if TYPE_CHECKING:
    from handheld.analyse.ops import OpTime
    from handheld.analyse.run import Run

MODEL, ESTIMATE = "model", "estimate"
LEAST_TICKS = 10  # A sensor whose value changed less often did not resolve the steps.
LEAST_SCALE, MOST_SCALE = 0.7, 1.4  # Beyond these the calibration does not fit the device, and nothing is scaled.
WIDE = 0.5  # A window whose interval is wider than this share of its joules does not replace the model.


@dataclass(frozen=True, slots=True)
class OpJoules(Record):
    """The joules of one run of an op on one rail, with a 95% interval. `source` says where they come from: `model`,
    `slope`, `alone` or `estimate`.

    If both the model and a window have a figure, `unused` says which of them the other one is, and `unused_joules` what
    it says: that of the model before it is scaled, or that of a window whose interval is too wide."""

    optional: ClassVar[frozenset[str]] = frozenset({"unused_joules"})

    id: int
    rail: str
    joules: float
    low_joules: float | None
    high_joules: float | None
    source: str
    unused: str = ""
    unused_joules: float | None = None


@dataclass(frozen=True, slots=True)
class StepJoules(Record):
    """The joules of a step on one rail. `counter` is what the rail's sensor says; None if it did not resolve the steps.
    `sum` is that of its ops and gaps (the rest of its time), `model_sum` the same before the model's ops were scaled by
    `scale` to the counter; `scale` is 1 if they were not. `measured_share` is the share that windows measured."""

    rail: str
    covers: tuple[str, ...]
    part_of: str
    counter: float | None
    sum: float
    ops: float
    gaps: float
    measured_share: float
    model_sum: float
    scale: float
    misfit: str  # why the ops were not scaled although there is a counter, or ""


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
        return (
            f"{run.meta.get('target') or 'this machine'} has no power sensor that can be read. Try: handheld doctor"
            f"{run.on_option}, which says why for each sensor"
        )
    known = run.meta.get("no_energy_model")
    return str(known or f"the device's energy model was not measured. Try: handheld doctor --energy{run.on_option}")


def joules(run: Run) -> list[OpJoules]:
    """One row per op and rail, in the order of ops. Empty if nothing is known; `no_joules` says why."""
    scales = {total.rail: total.scale for total in run.step_joules()}
    rows = [_scaled(row, scales.get(row.rail, 1.0)) if row.source == MODEL else row for row in _unscaled(run)]
    order = {name: i for i, name in enumerate(dict.fromkeys(row.rail for row in rows))}
    return sorted(rows, key=lambda row: (order[row.rail], row.id))


def _scaled(row: OpJoules, scale: float) -> OpJoules:
    low, high = (None if value is None else value * scale for value in (row.low_joules, row.high_joules))
    return replace(row, joules=row.joules * scale, low_joules=low, high_joules=high)


def _unscaled(run: Run) -> list[OpJoules]:
    times = [row for row in run.ops() if row.ms and row.launches]
    rows: dict[tuple[int, str], OpJoules] = {}
    model = energy_model(run)
    if model is not None:
        for row in _modelled(run, model, times):
            rows[row.id, row.rail] = row
    for row in _measured(run.op_energy(), {row.id: row.ms or 0.0 for row in times}):
        known = rows.get((row.id, row.rail))
        used, other = (row, known) if known is None or not _wide(row) else (known, row)
        if other is not None:
            used = replace(used, unused=other.source, unused_joules=other.joules)
        rows[row.id, row.rail] = used
    return list(rows.values())


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
    """One row per rail of the energy model: the sum over a step's ops and its gaps, beside the rail's sensor."""
    model = energy_model(run)
    step, _ = run.step_ms()
    if model is None or step is None:
        return []
    times = {row.id for row in run.ops() if row.graph == run.graph and row.ms and row.launches}
    rows = [row for row in _unscaled(run) if row.id in times]
    seconds = op_seconds(run)
    # Power times the time of a step: the joules of all steps also hold what recording some of them took.
    counted = {
        row.rail: row.watts * step * 1e-3
        for row in run.energy()
        if row.watts is not None and row.ticks >= LEAST_TICKS and not row.estimate
    }
    result = []
    for rail in model.rails:
        own = [row for row in rows if row.rail == rail.name]
        if not own:
            continue
        gaps = rail.gap_watts * max(step * 1e-3 - sum(seconds[row.id] for row in own), 0.0)
        # The sensor's joules are those of all graphs that take turns.
        counter = counted.get(rail.name) if len(run.graphs) == 1 else None
        result.append(_total(rail, own, gaps, counter))
    return result


def _total(rail: Rail, rows: list[OpJoules], gaps: float, counter: float | None) -> StepJoules:
    measured = sum(row.joules for row in rows if row.source in METHODS)
    modelled = sum(row.joules for row in rows if row.source == MODEL)
    scale, misfit = 1.0, ""
    if counter is not None and modelled > 0:
        wanted = (counter - gaps - measured) / modelled
        if LEAST_SCALE <= wanted <= MOST_SCALE:
            scale = wanted
        else:
            misfit = (
                f"the energy model does not fit {rail.name}: its ops would have to be scaled by {wanted:.2f} to add up "
                "to the sensor's joules, so they are as the model says. Try: handheld doctor --energy"
            )
    ops = measured + scale * modelled
    return StepJoules(
        rail.name,
        rail.covers,
        rail.part_of,
        counter,
        ops + gaps,
        ops,
        gaps,
        measured / ops if ops > 0 else 0.0,
        measured + modelled + gaps,
        scale,
        misfit,
    )

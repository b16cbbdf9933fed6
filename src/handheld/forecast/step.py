"""Predicts a training step of a plan: time, memory, launches, and the cost of each op."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from handheld.cost.energy import WIDTH, EnergyModel
from handheld.cost.heldout import HeldOut
from handheld.cost.samples import Moved, StepSample, Timed
from handheld.cost.step import correction
from handheld.cost.time import OpCost
from handheld.cost.work import Work
from handheld.forecast.model import CostModel
from handheld.graph.dtypes import DTYPES
from handheld.plan.launched import main_launch
from handheld.plan.plan import GraphPlan, Plan
from handheld.plan.transfers import transfers as moves_of
from handheld.plan.work import works
from handheld.store.record import Record

#: A step was measured if a known step has the ops of at least this share of its time.
MEASURED = 0.98
#: If more than this share of the ops' time rests on ceilings alone, the error of other predictions does not hold.
FEW = 0.1


@dataclass(frozen=True)
class OpLine(Record):
    """An op of the step and its predicted time."""

    graph: str
    path: str
    phase: str
    op: str
    signature: str
    variant: str
    launches: int
    flops: int
    bytes: int
    cost: OpCost
    #: Joules by rail; empty if the energy model of the device was not measured.
    joules: Mapping[str, float] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """That of the op's samples."""
        return Work(self.op, self.signature, self.variant, self.launches, self.flops, self.bytes).key


@dataclass(frozen=True)
class RailJoules(Record):
    """The joules of a step on one rail, with the interval of energy and time together."""

    rail: str
    joules: float
    low_joules: float
    high_joules: float
    part_of: str = ""


@dataclass(frozen=True)
class StepCost(Record):
    """The predicted cost of one training step. `seconds` lies between `low_s` and `high_s` in nine of ten cases of the
    held-out error. `bytes` is exact: the plan decides it."""

    batch: int
    seconds: float
    low_s: float
    high_s: float
    bytes: int
    launches: int
    flops: int
    device_s: float
    host_s: float
    ops_s: float
    transfers_s: float
    #: What limits the step: `host`, or the limit of most of the ops' time (`compute`, `memory`, `launches`).
    bound: str
    #: The share of the ops' time that comes from measurements of these very ops.
    measured: float
    #: `measured`, `batches`, `model`, `few`, `ceilings` or `description`.
    derived: str
    error: HeldOut
    ops: tuple[OpLine, ...]
    joules: tuple[RailJoules, ...] = ()
    #: The runs that measured this very step, if it was measured. `seconds` is the median of their times.
    runs: tuple[Timed, ...] = ()


def predict(
    model: CostModel, plan: Plan, graphs: Sequence[str], batch: int, energy: EnergyModel | None = None
) -> StepCost:
    """The cost of a step that runs these graphs of the plan in turn; with its joules if an energy model is given."""
    entries = [plan.graphs[name] for name in graphs]
    lines = [line for name, entry in zip(graphs, entries, strict=True) for line in _lines(model, name, entry, energy)]
    moved = [each for entry in entries for each in transfers(entry)]
    launches, ops_s = sum(line.launches for line in lines), sum(line.cost.seconds for line in lines)
    extra = model.overheads
    device_s, host_s = extra.device_s(ops_s, launches, moved), extra.host_s(launches, moved)
    measured = sum(line.cost.seconds for line in lines if line.cost.source == "measured") / max(ops_s, 1e-12)
    guessed = sum(line.cost.seconds for line in lines if line.cost.source == "ceilings") / max(ops_s, 1e-12)
    own = [step for step in model.samples.steps if step.whole and step.of_model(weights(plan))]
    runs = _runs(model, own, batch, lines)
    derived, kind = ("measured", "next_steps") if runs else _derived(model, own, batch, guessed)
    factor = correction(own, batch, extra) if derived == "batches" else 1.0
    seconds = float(np.median([r.seconds for r in runs])) if runs else factor * extra.step_s(ops_s, launches, moved)
    error = model.errors[kind]
    low, high = error.interval(seconds)
    # An interval that leaves out a measurement of this very step would be wrong.
    low, high = min((low, *(r.seconds for r in runs))), max((high, *(r.seconds for r in runs)))
    return StepCost(
        batch=batch,
        seconds=seconds,
        low_s=low,
        high_s=high,
        bytes=plan.bytes,
        launches=launches,
        flops=sum(line.flops for line in lines),
        device_s=device_s,
        host_s=host_s,
        ops_s=ops_s,
        transfers_s=extra.moved_s(moved),
        bound="host" if host_s > device_s else _bound(lines),
        measured=measured,
        derived=derived,
        error=error,
        ops=tuple(sorted(lines, key=lambda line: -line.cost.seconds)),
        joules=_joules(energy, lines, seconds, ops_s, error) if energy else (),
        runs=runs,
    )


def _joules(
    energy: EnergyModel, lines: Sequence[OpLine], seconds: float, ops_s: float, error: HeldOut
) -> tuple[RailJoules, ...]:
    """The joules of the ops, and of the gaps between them, per rail. The errors of energy and time are independent."""
    rows = []
    for rail in energy.rails:
        total = sum(line.joules.get(rail.name, 0.0) for line in lines) + max(seconds - ops_s, 0.0) * rail.gap_watts
        wide = 1 + math.hypot(math.expm1(WIDTH * rail.deviation), error.p90)
        rows.append(RailJoules(rail.name, total, total / wide, total * wide, rail.part_of))
    return tuple(rows)


def _op_joules(energy: EnergyModel | None, entry: GraphPlan, costs: Sequence[OpCost]) -> list[dict[str, float]]:
    """The joules of each op by rail."""
    rows: list[dict[str, float]] = [{} for _ in costs]
    pairs = zip(entry.graph.nodes, entry.lowered, strict=True)
    found = [(i, main_launch(node, entry.graph, low)) for i, (node, low) in enumerate(pairs)] if energy else []
    efforts = [(i, effort) for i, effort in found if effort is not None]
    for rail in energy.rails if energy else ():
        took = [costs[i].seconds for i, _ in efforts]
        values = energy.joules(rail.name, [effort for _, effort in efforts], took) if energy else []
        for (i, _), value in zip(efforts, values, strict=True):
            rows[i][rail.name] = value.joules
    return rows


def _lines(model: CostModel, name: str, entry: GraphPlan, energy: EnergyModel | None) -> list[OpLine]:
    found: list[Work] = works(entry)
    costs = model.times.ops(found)
    joules = _op_joules(energy, entry, costs)
    return [
        OpLine(
            name,
            node.origin.path,
            node.origin.phase,
            work.op,
            work.signature,
            work.variant,
            work.launches,
            work.flops,
            work.bytes,
            cost,
            each,
        )
        for node, work, cost, each in zip(entry.graph.nodes, found, costs, joules, strict=True)
    ]


def transfers(entry: GraphPlan) -> list[Moved]:
    """The transfers of a graph: its inputs, the copies of slots, the loss, and what its plan moves out and in."""
    tensors = entry.graph.tensors
    moved = [Moved("upload" if t.way == "in" else "download", t.nbytes, 1.0) for t in moves_of(entry.graph).values()]
    inputs = [Moved("upload", tensors[given.tensor].nbytes, 1.0) for given in entry.graph.inputs]
    copies = [Moved("copy", tensors[copy.value].nbytes, 1.0) for copy in entry.copies]
    return [*inputs, *copies, *moved, Moved("download", 4, 1.0)]


def weights(plan: Plan) -> int:
    """The bytes of the parameters, by which runs of the same model are recognised."""
    return sum(math.prod(s.shape) * DTYPES[s.dtype].nbytes for s in plan.slots.values() if s.role == "parameter")


def _runs(model: CostModel, own: Sequence[StepSample], batch: int, lines: Sequence[OpLine]) -> tuple[Timed, ...]:
    """The runs that measured this very step: those that the user named if one of them did, and undisturbed ones if
    there are any."""
    known = [own] if model.named is None else [model.named.steps, own]
    for steps in known:
        same = [step for step in steps if step.batch == batch and _share(step, lines) >= MEASURED]
        # Tables of older versions have no medians.
        runs = [t for s in same for t in s.timed] or [Timed("", s.seconds, s.disturbed) for s in same]
        if runs:
            return tuple(run for run in runs if not run.disturbed) or tuple(runs)
    return ()


def _share(step: StepSample, lines: Sequence[OpLine]) -> float:
    """The share of the ops' time that is of ops which this measured step has."""
    known = set(step.works)
    total = sum(line.cost.seconds for line in lines)
    return sum(line.cost.seconds for line in lines if line.key in known) / max(total, 1e-12)


def _derived(model: CostModel, own: Sequence[StepSample], batch: int, guessed: float) -> tuple[str, str]:
    """How the prediction was derived, and the kind of its held-out error. `own` are the known steps of this model,
    `guessed` the share of the ops' time for which nothing like the ops was measured."""
    if model.derived != "runs":
        return model.derived, "another_device"
    if guessed > FEW:
        return "few", "another_device"
    batches = {step.batch for step in own}
    return ("batches", "other_batches") if len(batches - {batch}) > 1 else ("model", "another_model")


def _bound(lines: Sequence[OpLine]) -> str:
    shares: dict[str, float] = {}
    for line in lines:
        shares[line.cost.bound] = shares.get(line.cost.bound, 0.0) + line.cost.seconds
    return max(shares, key=lambda name: shares[name], default="launches")

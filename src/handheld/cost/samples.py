"""The measurements that a time model is fitted to: times of ops, and of the steps that they were part of.

A table belongs to one device and one driver. It is bounded: if there are too many steps, the oldest are dropped, and
with them the ops that no other step has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from handheld.cost.rates import Rates
from handheld.cost.work import Work
from handheld.store.record import Record

VERSION = 1
MOST_STEPS = 300
#: Repetitions of one step that are kept.
MOST_RUNS = 8


@dataclass(frozen=True)
class OpSample(Record):
    """The time of one op on a device. `disturbed`: other processes took part of the processors meanwhile."""

    work: Work
    seconds: float
    disturbed: bool = False


@dataclass(frozen=True)
class Moved(Record):
    """Transfers of one kind (upload, download, copy) and size in a step, and the seconds of one of them."""

    kind: str
    bytes: int
    count: float
    seconds: float = 0.0


@dataclass(frozen=True)
class Timed(Record):
    """One run of a step: the file's name, the median time of its steps as they were measured, and the errors of
    predicting its later steps from its earlier ones."""

    run: str
    seconds: float
    disturbed: bool = False
    later: tuple[float, ...] = ()


@dataclass(frozen=True)
class StepSample(Record):
    """A measured training step. `works` are the keys of its ops in their order; `ops_s` is the sum of their times.

    If other processes disturbed it, `seconds` and `ops_s` are those of its fastest tenth, because the time model is
    about the device alone. `timed` has the medians, which the user saw."""

    model: str
    batch: int
    precision: str
    works: tuple[str, ...]
    seconds: float
    ops_s: float
    launches: int
    #: Seconds per launch: of the host, and between two launches on a busy device.
    enqueue_s: float
    gap_s: float
    #: The host's time per step for all else.
    host_s: float
    moved: tuple[Moved, ...] = ()
    bytes: int = 0  # of the plan
    weights: int = 0  # bytes of the parameters
    disturbed: bool = False
    #: The runs of this step, the newest last. Empty in tables of older versions.
    timed: tuple[Timed, ...] = ()
    #: False: the kernels of some of its ops have changed since. Then `works` are the other ops, and what the step took
    #: besides its ops still counts.
    whole: bool = True

    def of_model(self, weights: int) -> bool:
        """Whether this is a step of the model whose parameters have this many bytes."""
        return abs(self.weights - weights) < 0.01 * weights  # Never of a model without parameters.

    @property
    def same(self) -> tuple[object, ...]:
        """Steps that are equal in this are repetitions of one measurement."""
        return (self.model, self.batch, self.precision, self.works)


@dataclass
class Samples:
    """All measurements of one device, and its ceilings if they were known."""

    device: str
    driver: str
    kind: str = ""
    rates: Rates | None = None
    #: The version of each kernel family that was measured (kernels/versions.py).
    families: dict[str, int] = field(default_factory=dict)
    ops: dict[str, OpSample] = field(default_factory=dict)
    steps: list[StepSample] = field(default_factory=list)

    def add(self, ops: Iterable[OpSample], steps: Sequence[StepSample]) -> None:
        """Adds a run. Of two times of one op, an undisturbed one counts; else the newer one, or the shorter one if
        both are disturbed, because other processes only make it longer."""
        for sample in ops:
            key = sample.work.key
            known = self.ops.get(key)
            if known is None or _better(sample, known):
                self.ops[key] = sample
        for step in steps:
            equal = [s for s in self.steps if s.same == step.same]
            best = step if all(_better(step, s) for s in equal) else equal[0]
            # A run that is added again counts once.
            timed = {(t.run, t.seconds): t for s in (*equal, step) for t in s.timed}
            best = replace(best, timed=tuple(timed.values())[-MOST_RUNS:])
            self.steps = [s for s in self.steps if s.same != step.same] + [best]
        self.steps = self.steps[-MOST_STEPS:]
        used = {key for step in self.steps for key in step.works}
        self.ops = {key: sample for key, sample in self.ops.items() if key in used}

    def merge(self, other: Samples) -> None:
        """Adds the samples of another table of this device."""
        self.add(other.ops.values(), other.steps)
        self.rates = other.rates or self.rates

    def without(self, model: str) -> Samples:
        """The samples that would be known if this model had never been measured."""
        return self.only(lambda step: step.model != model)

    def only(self, wanted: Callable[[StepSample], bool]) -> Samples:
        """The samples of some steps and of their ops."""
        steps = [step for step in self.steps if wanted(step)]
        used = {key for step in steps for key in step.works}
        ops = {key: sample for key, sample in self.ops.items() if key in used}
        return replace(self, steps=steps, ops=ops)

    @property
    def models(self) -> list[str]:
        """The models of which whole steps are known."""
        return sorted({step.model for step in self.steps if step.whole})

    def to_json(self) -> dict[str, Any]:
        number = {key: i for i, key in enumerate(self.ops)}
        return {
            "handheld": "costs",
            "version": VERSION,
            "device": self.device,
            "driver": self.driver,
            "kind": self.kind,
            "rates": self.rates and self.rates.to_json(),
            "families": self.families,
            "ops": [
                [w.op, w.signature, w.variant, w.launches, w.flops, w.bytes, _short(s.seconds), int(s.disturbed)]
                for s in self.ops.values()
                for w in (s.work,)
            ],
            "steps": [{**_step_json(step), "works": [number[key] for key in step.works]} for step in self.steps],
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Samples:
        """The inverse of `to_json`. Raises KeyError, IndexError, TypeError or ValueError if the data is something
        else."""
        if data["handheld"] != "costs" or data["version"] != VERSION:
            raise ValueError("these are not samples of costs, or they are of another version")
        ops = [_op(row) for row in data["ops"]]
        keys = [sample.work.key for sample in ops]
        return Samples(
            str(data["device"]),
            str(data["driver"]),
            str(data["kind"]),
            Rates.from_json(data["rates"]) if data["rates"] else None,
            {str(name): int(number) for name, number in data["families"].items()},
            dict(zip(keys, ops, strict=True)),
            [_step(row, keys) for row in data["steps"]],
        )


def _better(new: OpSample | StepSample, known: OpSample | StepSample) -> bool:
    if new.disturbed != known.disturbed:
        return known.disturbed
    return not new.disturbed or new.seconds < known.seconds


def _short(seconds: float) -> float:
    """Four digits: more than any measurement of time has."""
    return float(f"{seconds:.4g}")


def _step_json(step: StepSample) -> dict[str, Any]:
    row = step.to_json()
    for name in ("seconds", "ops_s", "enqueue_s", "gap_s", "host_s"):
        row[name] = _short(getattr(step, name))
    row["moved"] = [[m.kind, m.bytes, _short(m.count), _short(m.seconds)] for m in step.moved]
    row["timed"] = [[t.run, t.seconds, int(t.disturbed), [_short(e) for e in t.later]] for t in step.timed]
    return row


def _op(row: Sequence[Any]) -> OpSample:
    op, signature, variant, launches, flops, nbytes, seconds, disturbed = row
    work = Work(str(op), str(signature), str(variant), int(launches), int(flops), int(nbytes))
    return OpSample(work, _time(seconds), bool(disturbed))


def _step(row: Mapping[str, Any], keys: Sequence[str]) -> StepSample:
    fields = dict(row)
    fields["works"] = tuple(keys[i] for i in fields["works"])
    fields["moved"] = tuple(Moved(str(k), int(b), float(n), float(s)) for k, b, n, s in fields["moved"])
    fields["timed"] = tuple(
        Timed(str(run), _time(s), bool(noisy), tuple(float(e) for e in later))
        for run, s, noisy, later in fields.get("timed", ())
    )
    step = StepSample(**fields)
    _time(step.seconds)
    return step


def _time(seconds: Any) -> float:
    if not isinstance(seconds, int | float) or not math.isfinite(seconds) or seconds <= 0:
        raise ValueError(f"{seconds!r} is not a time")
    return float(seconds)

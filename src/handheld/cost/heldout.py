"""How wrong predictions are: each case is predicted from samples without it, and compared with its measurement."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from handheld.cost import step as overheads
from handheld.cost.rates import Rates
from handheld.cost.samples import Samples, StepSample
from handheld.cost.time import TimeModel
from handheld.store.record import Record

#: The batches that are known when others are predicted.
KNOWN = (8, 32)
#: The share of the held-out cases that an interval covers.
COVERED = 0.9


@dataclass(frozen=True)
class HeldOut(Record):
    """The errors of one kind of prediction on cases that were held out: |predicted / measured - 1|."""

    kind: str
    cases: int
    median: float
    p90: float
    device: str = ""  # where these cases were measured, if that is another device

    @staticmethod
    def of(kind: str, errors: Sequence[float]) -> HeldOut | None:
        if not errors:
            return None
        return HeldOut(kind, len(errors), float(np.median(errors)), float(np.percentile(errors, 100 * COVERED)))

    @staticmethod
    def from_json(data: dict[str, object]) -> HeldOut:
        median, p90 = float(str(data["median"])), float(str(data["p90"]))
        return HeldOut(str(data["kind"]), int(str(data["cases"])), median, p90, str(data.get("device", "")))

    def interval(self, value: float) -> tuple[float, float]:
        """The range that nine of ten held-out cases would have been in."""
        return value / (1 + self.p90), value * (1 + self.p90)


@dataclass(frozen=True)
class Case(Record):
    """A measured step, and its prediction from samples without it. `ops` is the error of the sum of its ops."""

    model: str
    batch: int
    measured_s: float
    predicted_s: float
    ops: float

    @property
    def error(self) -> float:
        return abs(self.predicted_s / self.measured_s - 1)


def another_model(samples: Samples, rates: Rates) -> list[Case]:
    """Every step, predicted without any measurement of its model."""
    cases = []
    for model in samples.models:
        steps = [step for step in samples.steps if step.model == model and step.whole]
        cases += _cases(samples.without(model), steps, samples, rates)
    return cases


def other_batches(samples: Samples, rates: Rates, known: Iterable[int] = KNOWN) -> list[Case]:
    """The steps of models that were measured at the `known` batches and at others; the others are predicted."""
    cases, given = [], set(known)
    for model in samples.models:
        steps = [step for step in samples.steps if step.model == model and step.whole]
        if not given <= {step.batch for step in steps}:
            continue
        seen = samples.only(lambda step, model=model: step.model != model or step.batch in given)  # type: ignore[misc]
        own = [step for step in steps if step.batch in given]
        cases += _cases(seen, [step for step in steps if step.batch not in given], samples, rates, own)
    return cases


def another_device(samples: Samples, rates: Rates, elsewhere: Samples, other: Rates) -> list[Case]:
    """The steps of a device, predicted from its ceilings and from the samples of another device."""
    model = TimeModel(rates, list(elsewhere.ops.values()), elsewhere=other)
    costs = overheads.from_rates(rates)
    return [_case(model, costs, step, samples) for step in samples.steps if step.whole]


def _cases(
    seen: Samples, steps: Sequence[StepSample], samples: Samples, rates: Rates, own: Sequence[StepSample] = ()
) -> list[Case]:
    """The cases of some steps. `own` are the steps of their model that are known."""
    if not seen.ops:
        return []
    model, costs = TimeModel(rates, list(seen.ops.values())), overheads.fit(seen, rates)
    return [_case(model, costs, step, samples, overheads.correction(own, step.batch, costs)) for step in steps]


def _case(
    model: TimeModel, costs: overheads.Overheads, step: StepSample, samples: Samples, factor: float = 1.0
) -> Case:
    works = [samples.ops[key].work for key in step.works]
    ops_s = sum(cost.seconds for cost in model.ops(works))
    predicted = factor * costs.step_s(ops_s, step.launches, step.moved)
    return Case(step.model, step.batch, step.seconds, predicted, ops_s / step.ops_s - 1)

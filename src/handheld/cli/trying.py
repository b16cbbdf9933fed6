"""Makes the change that a piece of advice wants, and measures what it gains beside the run's own conditions."""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from handheld.analyse.rules.base import BYTES, JOULES, SAMPLE, Advice, Change
from handheld.analyse.run import Run
from handheld.backends.base import describe
from handheld.cli.prepare import capture_example
from handheld.cli.repeating import Request, as_measured, planned, with_known_variants
from handheld.errors import HandheldError, RunFileError
from handheld.measure.jobs import find_jobs
from handheld.measure.tuner import Tuner, known_record
from handheld.partial.options import PartialOptions
from handheld.plan.plan import Plan
from handheld.plan.precision import prepare
from handheld.plan.tuning import TuningRecord
from handheld.profile.inputs import graphs_in_turn, inputs_for
from handheld.profile.run import profile
from handheld.profile.turns import Turns, stepping, take_turns
from handheld.resolve import Factory, ModelSpec, Suite, open_model
from handheld.store.record import Record

Stage = Callable[[str], object]
Measured = tuple[Plan, Mapping[str, Any]]  # a plan, and the inputs of each of its graphs
ENERGY_S = 4.0  # seconds of steps that energy is measured over


@dataclass(frozen=True)
class Trial(Record):
    """What a piece of advice promised, and what was measured. Factors are times less of the promised quantity.
    `before` and `after` are that quantity, measured; `promised_before` and `promised_after` are those of the advice."""

    rule: str
    quantity: str
    promised: float
    promised_low: float
    promised_high: float
    measured: float
    measured_low: float
    measured_high: float
    turns: Turns
    before_bytes: int
    after_bytes: int
    before: float
    after: float
    promised_before: float
    promised_after: float

    @property
    def verdict(self) -> str:
        """How the measured gain stands to the promised range."""
        if self.promised_low <= self.measured <= self.promised_high:
            return "agrees with the promised range"
        side = "below" if self.measured < self.promised_low else "above"
        meets = self.measured_high >= self.promised_low and self.measured_low <= self.promised_high
        return f"is {side} the promised range{', though its interval reaches into it' if meets else ''}"


def request_of(run: Run) -> Request:
    """What the run measured, as `profile --like` repeats it."""
    stored = (run.meta.get("settings") or {}).get("repeat")
    if not stored:
        raise HandheldError(
            f"{run.path} does not say which model it measured: it was made from Python, or by an older version. "
            "Try: handheld profile MODEL, and advise about that run"
        )
    try:
        return Request.from_json(stored)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunFileError(f"{run.path} is damaged: its settings cannot be read: {error}. Try: copy it again") from None


def changed(request: Request, change: Change) -> Request:
    """The same request with the change. What the plan does to fit is decided again, within the same limit."""
    return replace(
        request,
        batch=change.batch or request.batch,
        precision=change.precision or request.precision,
        on=change.on or request.on,
        memory_limit=change.memory_limit or request.memory_limit,
        fit=None,
        moves=None,
    )


def try_advice(run: Run, advice: Advice, seconds: float, stage: Stage = lambda text: None) -> Trial:
    """Make the change and measure both. Raises HandheldError if it cannot be made."""
    if advice.to is None:
        raise HandheldError(f"{advice.rule} cannot be tried automatically: {advice.why_not}. Try: {advice.command}")
    asked = request_of(run)
    batches = (asked.batch or 1, advice.to.batch or asked.batch or 1)
    with tempfile.TemporaryDirectory() as folder:  # Plans read the tuning records there again when they start.
        stage("capturing")
        before, given = made(as_measured(run, asked, Path(folder)))
        if advice.to.tune_s:
            stage(f"tuning for about {advice.to.tune_s:.0f} s")
            tune_kernels(before, advice.to.tune_s)
            after, taken = before.again(tuning=True), given
        else:
            stage("capturing the change")
            after, taken = made(_then(run, asked, advice.to, before, Path(folder)), advice.to.freeze)
        return _tried(advice, (before, given), (after, taken), batches, seconds, stage)


def _then(run: Run, asked: Request, change: Change, before: Plan, folder: Path) -> Request:
    """The request of the changed step: everything else is as in the run. The same parameters train."""
    then = changed(asked, change)
    if asked.partial.sparse:  # Its budget could choose others for another batch or on another device.
        then = replace(then, partial=PartialOptions.of(before.step.meta))
    return then if change.on else with_known_variants(run, then, before.caps, folder)


def _tried(
    advice: Advice, before: Measured, after: Measured, batches: tuple[int, int], seconds: float, stage: Stage
) -> Trial:
    stage("building both")
    with contextlib.ExitStack() as stack:
        runs = [stack.enter_context(stepping(*pair)) for pair in (before, after)]
        stage("measuring both in turns")
        turns = take_turns(runs[0], runs[1], batches[1] / batches[0], seconds)
    if advice.gain.quantity == JOULES:
        stage("measuring energy")
    values, measured = _measured(advice, turns, before, after, batches)
    gain = advice.gain
    return Trial(
        *(advice.rule, gain.quantity, gain.factor, gain.before / gain.high, gain.before / gain.low),
        *measured,
        turns=turns,
        before_bytes=before[0].bytes,
        after_bytes=after[0].bytes,
        before=values[0],
        after=values[1],
        promised_before=gain.before,
        promised_after=gain.after,
    )


def _measured(
    advice: Advice, turns: Turns, before: Measured, after: Measured, batches: tuple[int, int]
) -> tuple[tuple[float, float], tuple[float, float, float]]:
    """The promised quantity as measured before and after the change, and its factor with an interval."""
    quantity = advice.gain.quantity
    if quantity == BYTES:
        sizes = (before[0].bytes, after[0].bytes)
        return sizes, (sizes[0] / sizes[1],) * 3
    if quantity != JOULES:
        each = batches if quantity == SAMPLE else (1, 1)
        values = (turns.before_ms / each[0], turns.after_ms / each[1])
        return values, (turns.factor, turns.low, turns.high)
    joules = [_joules(plan, inputs) for plan, inputs in (before, after, before, after)]
    joules = [value / batch for value, batch in zip(joules, 2 * batches, strict=True)]
    factors = sorted(a / b for a, b in (joules[:2], joules[2:]))
    means = (joules[0] + joules[2]) / 2, (joules[1] + joules[3]) / 2
    return means, (sum(factors) / 2, factors[0], factors[1])


def _joules(plan: Plan, inputs: Mapping[str, Any]) -> float:
    """Joules per step on all rails that are not part of another one."""
    names = list(inputs)
    with tempfile.TemporaryDirectory() as folder:
        batches = inputs[names[0]] if len(names) == 1 else inputs
        with profile(plan, batches, Path(folder) / "one.run", graph=names, seconds=ENERGY_S) as run:
            rails = [row.joules_step for row in run.energy() if not row.estimate and not row.part_of]
    if not any(rails):
        raise HandheldError("there is no power sensor here to measure joules with. Try: another rule, with --rule")
    return sum(value or 0.0 for value in rails)


def made(request: Request, freeze: Sequence[str] = ()) -> tuple[Plan, dict[str, Any]]:
    """The plan of a request, and the inputs of each graph that a step runs. Layers in `freeze` are not trained."""
    partial = request.partial.at(request.on)
    spec = open_model(request.model, request.size, partial)
    if freeze:
        names = _inside(spec, request.seed, freeze)
        spec = open_model(request.model, request.size, replace(partial, freeze=(*partial.freeze, *names)))
    size = request.batch or spec.default_batch
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The profile has shown them.
        step, batches = capture_example(spec, [size], request.seed, request.data, request.given)
    example = batches[0] if batches else spec.example(size)
    runs = dict(spec.runs(example) or [(name, example) for name in graphs_in_turn(step.graphs, size)])
    names = [request.graph] if request.graph else list(runs)
    inputs = {name: inputs_for(runs.get(name), step.graphs[name], request.seed) for name in names}
    plan = planned(step, names, request)
    return plan, {name: value if isinstance(value, Mapping) else tuple(value) for name, value in inputs.items()}


def _inside(spec: ModelSpec, seed: int, layers: Sequence[str]) -> list[str]:
    """The names of the parameters inside the layers."""
    if isinstance(spec, Suite) and spec.workload.single:
        parts = spec.workload.make(seed)
    elif isinstance(spec, Factory):
        parts = spec.parts(seed)
    else:
        raise HandheldError(
            f"layers of {spec.name} cannot be frozen from here: only its own code makes its model. "
            "Try: requires_grad_(False) in that code"
        )
    within = tuple(f"{layer}." for layer in layers)
    names = [name for name, _ in parts[0].named_parameters() if name.startswith(within)]
    if not names:
        raise HandheldError(f"the model has no parameters in {', '.join(layers)}. Try: profile it again")
    return names


def tune_kernels(plan: Plan, seconds: float) -> None:
    """Tune the kernels of a plan. The results are stored as `handheld tune` stores them."""
    caps = describe(plan.device)
    precision = str(plan.options.get("precision") or "float32")
    graphs, _ = prepare(plan.step, list(plan.graphs), caps, precision)
    record, path, _ = known_record(TuningRecord.of(caps))
    known = set(record.entries)
    jobs = find_jobs(graphs, caps)
    # Shapes that no record knows come first; the time may not suffice for all.
    jobs.sort(key=lambda job: job.signature in known)
    Tuner(plan.device, caps, jobs, record, path).run(seconds)

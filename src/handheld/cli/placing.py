"""Which device and batch a command takes if the user leaves the choice to it: `--on auto`, `--for`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from handheld.backends.present import present_devices
from handheld.cli import output
from handheld.cli.data_options import PLAIN, DataOptions, load
from handheld.cli.described import captured, device_caps
from handheld.cli.means_options import AS_IS, Means
from handheld.cli.options import split
from handheld.cli.stages import stages
from handheld.data import Indexed
from handheld.device import DeviceCaps
from handheld.errors import HandheldError
from handheld.limits.means import Allowed
from handheld.partial.options import WHOLE, PartialOptions
from handheld.placement.choice import QUANTITY, Choice, best, check_goal
from handheld.placement.measured import fastest
from handheld.placement.pair import is_pair
from handheld.placement.table import BATCHES, Candidate, CostTable, cost_table
from handheld.profile.inputs import graphs_in_turn
from handheld.resolve import ModelSpec, StepFile, open_model
from handheld.step import Step

AUTO = "auto"

Goal = Annotated[
    str | None,
    typer.Option(
        "--for",
        metavar="GOAL",
        show_default=False,
        help="Choose the batch (without --batch) and the device (with --on auto) of least time, energy or memory.",
    ),
]


def candidates(on: str | None) -> list[Candidate]:
    """The devices of a list such as `opencl:0,adreno-740`; without one, those of this machine."""
    if on is None:
        return [Candidate(found.name, found.caps) for found in present_devices()]
    names = list(dict.fromkeys(split(on)))
    if not names:
        raise HandheldError("--on names no device. Try: --on opencl,adreno-740, or leave it out")
    return [Candidate(name, device_caps(name), name if name in DeviceCaps.names() else "") for name in names]


def batches_of(spec: ModelSpec, wanted: Sequence[int]) -> list[int]:
    """The batches to look at: the wanted ones, else those of a step file, else 1 to 256."""
    if wanted:
        return sorted(set(wanted))
    if isinstance(spec, StepFile):
        return sorted(spec.sizes) or [spec.default_batch]
    return list(BATCHES)


@dataclass(frozen=True)
class Wanted:
    """What a command was asked for. `measure` says whether it may run steps to choose; `trains` that the batch must
    not be larger than the data."""

    what: str
    size: str | None
    on: str
    batch: int | None
    goal: str | None
    precision: str = "float32"
    data: str | None = None
    given: DataOptions = PLAIN
    partial: PartialOptions = WHOLE
    memory_limit: int | None = None
    seed: int = 0
    measure: bool = True
    trains: bool = False
    means: Means = AS_IS
    #: Commands that compare or measure steps keep batches whole.
    micro_batches: int | None = 1


def placed(wanted: Wanted, json: bool) -> tuple[str, int | None]:
    """The device and the batch that a command uses. Chooses what was left to it, and prints the choice with its
    reason."""
    if wanted.goal is not None:
        check_goal(wanted.goal)
        if wanted.batch is not None and wanted.on != AUTO:
            raise HandheldError(
                f"--for {wanted.goal} has nothing to choose: --batch is given, and --on is not auto. Try: --on auto, "
                "or leave out --batch"
            )
        if is_pair(wanted.on):
            raise HandheldError(f"--for {wanted.goal} chooses one device. Try: --on auto, or two devices without --for")
    if wanted.goal is None and wanted.on != AUTO:
        return wanted.on, wanted.batch
    found = candidates(None if wanted.on == AUTO else wanted.on)
    if wanted.goal is None and len(found) == 1:
        output.warn(f"--on auto: {found[0].device} is the only device here")
        return found[0].device, wanted.batch
    with stages(json) as say:
        device, batch, text = _choose(wanted, found, say)
    output.warn(text)
    return device, batch


def _choose(wanted: Wanted, found: Sequence[Candidate], say: Any) -> tuple[str, int, str]:
    goal = wanted.goal or "time"
    spec = open_model(wanted.what, wanted.size, wanted.partial.at(found[0].device))
    own = [wanted.batch or spec.default_batch] if wanted.goal is None or wanted.batch else []
    batches = batches_of(spec, own)
    if wanted.trains and not own:
        batches = _within_data(batches, wanted, spec)
    say(f"capturing {spec.name} for a batch of {batches[0]}")
    step = captured(spec, batches[0], wanted.data, wanted.given)
    allowed = Allowed(spill=wanted.means.spill, micro_batches=wanted.micro_batches)
    options = {key: value for key, value in wanted.means.options().items() if key != "spill"}
    limits: dict[str, Any] = {"precision": wanted.precision, "memory_limit_bytes": wanted.memory_limit}
    costs = cost_table(spec.name, step, found, batches, allowed=allowed, options=options, say=say, **limits)
    limits |= wanted.means.options()
    unknown = [known.candidate.device for known in costs.known if known.model is None]
    if len(unknown) == len(found) and own and wanted.measure and goal == "time":
        device, text = _measured(step, costs.devices, batches[0], limits, say)
        return device, batches[0], f"{device} at batch {batches[0]}: nothing is known to predict from; {text}"
    choice = best(costs, goal)
    device, reason = choice.device, f"{choice.reason}; {_value(choice)}"
    close = [*choice.close, *unknown] if goal == "time" else []
    if close and wanted.measure:
        step = _at(costs, step, spec, choice.batch, wanted)
        device, reason = _measured(step, [choice.device, *close], choice.batch, limits, say)
        reason = f"the predictions cannot tell, so {reason}"
    elif unknown:
        reason += f"; left out, because nothing is known about it: {', '.join(unknown)}"
    elif not choice.sure:
        reason += f"; not certain: within the error of the predictions ({', '.join(choice.close)})"
    return device, choice.batch, f"{device} at batch {choice.batch:,}, for least {QUANTITY[goal]}: {reason}"


def _at(costs: CostTable, step: Step, spec: ModelSpec, batch: int, wanted: Wanted) -> Step:
    """The step at the chosen batch."""
    return step if batch == costs.batches[0] else captured(spec, batch, wanted.data, wanted.given)


def _measured(step: Step, devices: Sequence[str], batch: int, limits: dict[str, Any], say: Any) -> tuple[str, str]:
    names = graphs_in_turn(step.graphs, batch)
    device, rivals = fastest(step, devices, names, say=say, **limits)
    shown = "; ".join(f"{r.against} {r.against_ms:.3g} ms, {r.device} {r.ms:.3g} ms" for r in rivals)
    return device, f"steps were measured in turns: {shown}"


def _within_data(batches: Sequence[int], wanted: Wanted, spec: ModelSpec) -> list[int]:
    """The batches that the training data can fill."""
    if wanted.data is None:
        return list(batches)
    train = load(wanted.data, 1, wanted.seed, spec, wanted.given).train
    if not isinstance(train, Indexed):
        return list(batches)
    return [batch for batch in batches if batch <= train.samples] or [train.samples]


def _value(choice: Choice) -> str:
    if choice.goal == "memory":
        return f"{output.size(round(choice.value))} are needed"
    unit = "J" if choice.goal == "energy" else "ms"
    value = choice.value * (1 if choice.goal == "energy" else 1e3)
    return f"{value:.3g} {unit} per sample are predicted"

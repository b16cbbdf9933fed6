"""`handheld cost`: predicts the time, memory and energy of a training, and learns from runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from handheld.analyse.run import open_run
from handheld.cli import cost_tables
from handheld.cli.data_options import PLAIN, DataOptions, with_example_options
from handheld.cli.described import captured, device_caps
from handheld.cli.options import SPEC_HELP, Data, Json, Precision, Size
from handheld.cli.plan import plan_row, plan_sizes, wanted_batches
from handheld.cli.stages import stages
from handheld.device import DeviceCaps, canonical, takes_launches
from handheld.errors import HandheldError
from handheld.forecast import store
from handheld.forecast.model import CostModel, cost_model, read_rates
from handheld.forecast.rest import RestCost, rest_of_checkpoint, rest_of_run
from handheld.forecast.step import StepCost, predict
from handheld.placement.table import trained
from handheld.profile import energy_models
from handheld.resolve import open_model
from handheld.targets.names import on_option

What = Annotated[
    str | None,
    typer.Argument(
        metavar="[WHAT]",
        show_default=False,
        help=f"{SPEC_HELP} Or a run file or a checkpoint, to predict the rest of that training.",
    ),
]
Device = Annotated[
    str,
    typer.Option(
        "--on",
        metavar="DEVICE",
        help="A device (opencl, opencl:NAME, adb, adb:SERIAL, ssh:user@host), a description that comes with Handheld "
        "(adreno-740, jetson-orin-nano, raspberry-pi-5, ...), or the JSON file of one.",
    ),
]
Batch = Annotated[
    str | None, typer.Option("--batch", metavar="N,N,...", help="Batch sizes to predict. Default: the model's own.")
]
From = Annotated[
    list[Path] | None,
    typer.Option("--from", metavar="FILE.run", help="Also predict from this run of the device. Repeatable."),
]
CeilingsFile = Annotated[
    Path | None,
    typer.Option(
        "--ceilings", metavar="FILE", help="The device's ceilings, as handheld doctor --ceilings stored them."
    ),
]
Learn = Annotated[
    list[Path] | None,
    typer.Option(
        "--learn", metavar="FILE.run", help="Add this run to the samples of its device. Repeatable; needs no WHAT."
    ),
]
Steps = Annotated[int | None, typer.Option("--steps", min=1, metavar="N", help="Also predict a training of N steps.")]
Epochs = Annotated[
    int | None,
    typer.Option("--epochs", min=1, metavar="N", help="The same for N epochs; of a checkpoint, up to epoch N."),
]
Count = Annotated[
    int | None, typer.Option("--samples", min=1, metavar="N", help="Training samples per epoch, for --epochs.")
]
Battery = Annotated[
    float | None, typer.Option("--battery", min=0.01, metavar="WH", help="Size of the battery in watt-hours.")
]
Watts = Annotated[
    float | None,
    typer.Option("--watts", min=0, metavar="W", help="Power of the device while it trains, if it was not measured."),
]
Ops = Annotated[int, typer.Option("--ops", min=0, metavar="N", help="How many ops to show.")]


@dataclass(frozen=True)
class Length:
    """How long the training is, as the user said it."""

    steps: int | None
    epochs: int | None
    samples: int | None
    battery: float | None
    watts: float | None

    def steps_at(self, batch: int) -> int | None:
        """The number of steps with this batch size; None if the user did not say."""
        if self.steps is not None or self.epochs is None:
            return self.steps
        if self.samples is None:
            raise HandheldError(f"--epochs {self.epochs} needs the number of training samples. Try: --samples N")
        if self.samples < batch:
            raise HandheldError(
                f"--samples {self.samples} are fewer than one batch of {batch}. Try: --batch {self.samples} or less"
            )
        return self.epochs * (
            self.samples // max(batch, 1)
        )  # `handheld train` leaves out a last batch that is not full.


@with_example_options
def cost(
    what: What = None,
    on: Device = "opencl",
    batch: Batch = None,
    data: Data = None,
    size: Size = None,
    precision: Precision = "float32",
    known: From = None,
    ceilings: CeilingsFile = None,
    learn: Learn = None,
    steps: Steps = None,
    epochs: Epochs = None,
    samples: Count = None,
    battery: Battery = None,
    watts: Watts = None,
    ops: Ops = 10,
    json: Json = False,
    given: DataOptions = PLAIN,
) -> None:
    """Predict what a training will cost: time, memory and energy, each with its error.

    Nothing runs, and the device need not be present. The step is planned for the device, so its memory
    and launches are exact. Times come from runs on that device (every handheld profile there adds to
    them), or from its ceilings, or from its description; the output says which. The interval is the
    error that such predictions had on cases that were held out.

    A run file or a checkpoint instead of a model predicts the rest of that training.

    \b
    Examples:
    handheld cost mobilenet_v2 --batch 4,16,64
    handheld cost mine.py:make --on jetson-orin-nano --epochs 10 --samples 50000 --watts 10
    handheld cost mobilenet_v2 --batch 16 --from mobilenet_v2-1.run --from mobilenet_v2-2.run
    handheld cost mobilenet_v2-1.run --steps 10000 --battery 15
    handheld cost run.checkpoint
    handheld cost --learn phone-1.run --learn phone-2.run
    """
    length = Length(steps, epochs, samples, battery, watts)
    learned = [_learn(learn)] if learn else []
    if what is None:
        if not learned:
            raise HandheldError("there is nothing to predict. Try: handheld cost MODEL, FILE.run or CHECKPOINT")
        cost_tables.learned(learned, json)
        return
    rest = _rest(what, batch, length)
    if rest is not None:
        cost_tables.present_rest(what, rest, json)
        return
    with stages(json) as say:
        model, costs, failed = _predict(what, on, batch, data, size, precision, known, ceilings, given, say)
    model = replace(model, notes=(*model.notes, *_no_joules(model.caps, on, costs, length)))
    cost_tables.present(what, on, model, costs, failed, _totals(costs, length), ops, json)


def _learn(paths: Sequence[Path]) -> dict[str, Any]:
    runs = [open_run(path) for path in paths]
    try:
        table, path = store.learn(runs)
    finally:
        for run in runs:
            run.close()
    return {"device": table.device, "file": str(path), "ops": len(table.ops), "models": table.models}


def _rest(what: str, batch: str | None, length: Length) -> RestCost | None:
    """The rest of a training, if `what` is a run file or a checkpoint; None for a model."""
    path = Path(what)
    if not path.is_file() or path.suffix in (".py", ".step"):
        return None
    if batch is not None:
        raise HandheldError(f"{what} has its own batch size. Try: handheld cost MODEL --from {what} --batch {batch}")
    if path.suffix != ".run" and not _is_run(path):
        return rest_of_checkpoint(path, length.epochs, length.battery, length.watts)
    with open_run(path) as run:
        steps = length.steps_at(run.summary().batch or 1)
        if steps is None:
            raise HandheldError(
                "a run does not say how long the training is. Try: --steps N, or --epochs N --samples N"
            )
        return rest_of_run(run, steps, length.battery, length.watts)


def _is_run(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(15) == b"SQLite format 3"


def _predict(
    what: str,
    on: str,
    batch: str | None,
    data: str | None,
    size: str | None,
    precision: str,
    known: list[Path] | None,
    ceilings: Path | None,
    given: DataOptions,
    say: Callable[[str], None],
) -> tuple[CostModel, list[StepCost], list[dict[str, Any]]]:
    """The model of the device, the cost at each batch, and the batches that do not fit."""
    caps = device_caps(on, precision)
    if not caps.takes_launches:
        raise HandheldError(f"costs are predicted for plans of launches, and {on} has none. Try: --on opencl")
    spec = open_model(what, size)
    wanted = wanted_batches(batch, spec)
    say(f"reading what is known about {caps.name}")
    model = _model(caps, on, known, ceilings)
    say(f"capturing {spec.name} for a batch of {wanted[0]}")
    step = captured(spec, wanted[0], data, given)
    sizes = plan_sizes(step, wanted[0], None, canonical(on), caps, None, precision)
    energy = energy_models.stored(caps)[0]
    costs, failed = [], []
    for number in wanted:
        say(f"planning a batch of {number}")
        row = plan_row(sizes, number)
        if row.why:
            failed.append({"batch": number, "bytes": row.need.bytes, "why": row.why})
            continue
        costs.append(predict(model, row.plan, trained(row.plan, number), number, energy))
    return model, costs, failed


def _no_joules(caps: DeviceCaps, on: str, costs: Sequence[StepCost], length: Length) -> list[str]:
    """Where the energy comes from if it is given, or why there is none and what can be done about it."""
    if length.watts is not None:
        known = length.steps is not None or length.epochs is not None
        missing = "" if known else ", but the length is not known. Try: --steps N, or --epochs N --samples N"
        return [f"energy of the training: from the given {length.watts:g} W{missing}"]
    energy, why = energy_models.stored(caps, on)
    if energy is not None and (stale := energy_models.stale(energy, caps.kind)):
        return [f"{stale}. Try: handheld doctor --energy{on_option(on)}"]
    if not why or any(row.joules for row in costs):
        return []
    reason, _, command = why.partition(". Try: ")
    # The command measures the devices of this machine, with a power sensor.
    here = f"; or {command}, if the device has a power sensor" if takes_launches(on) else ""
    return [f"no joules: {reason}. Try: --watts W, the power of the device while it trains{here}"]


def _model(caps: DeviceCaps, on: str, known: list[Path] | None, ceilings: Path | None) -> CostModel:
    runs = [open_run(path) for path in known or ()]
    try:
        more = store.of_runs(runs, caps) if runs else None
    finally:
        for run in runs:
            run.close()
    shipped = on if on in DeviceCaps.names() else ""
    return cost_model(caps, shipped, more, read_rates(ceilings) if ceilings else None)


def _totals(costs: Sequence[StepCost], length: Length) -> list[cost_tables.Total]:
    """The whole training at each batch size, if its length is known."""
    found = []
    for row in costs:
        steps = length.steps_at(row.batch)
        if steps is None:
            continue
        rails = [rail.joules for rail in row.joules if not rail.part_of]
        each = length.watts * row.seconds if length.watts is not None else sum(rails) if rails else None
        joules = None if each is None else each * steps
        share = joules / (length.battery * 3600) if joules is not None and length.battery else None
        found.append(
            cost_tables.Total(
                row.batch, steps, row.seconds * steps, row.low_s * steps, row.high_s * steps, joules, share
            )
        )
    return found

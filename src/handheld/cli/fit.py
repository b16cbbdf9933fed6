"""`handheld fit`: the largest batch for a memory limit, and what less memory costs in time."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal

import typer
from rich.text import Text

from handheld.cli import output
from handheld.cli.data_options import PLAIN, DataOptions, with_example_options
from handheld.cli.described import captured, device_caps
from handheld.cli.growing import Search
from handheld.cli.options import Data, Json, Precision, Size, Spec, nbytes
from handheld.cli.placing import Goal, Wanted, placed
from handheld.cli.plan import Device, plan_sizes
from handheld.cli.stages import stages
from handheld.cli.tables import Column, table
from handheld.device import DeviceCaps, canonical
from handheld.limits.curve import Curve, Point, Say, curve, largest_as_it_is, largest_fitted
from handheld.limits.means import FittedSizes
from handheld.limits.planning import Fitting
from handheld.resolve import StepFile, open_model
from handheld.run.fitting import Largest, Probe, Sizes

SECONDS = 60.0
POINTS = 8

Batch = Annotated[
    int | None, typer.Option("--batch", min=1, metavar="N", help="Batch size of the table. Default: the model's own.")
]
Limit = Annotated[
    str | None,
    typer.Option(
        "--memory-limit", metavar="SIZE", help="Memory for the largest batch, such as 512MiB. Default: the device's."
    ),
]
Seconds = Annotated[
    float,
    typer.Option("--seconds", min=0, metavar="S", help="How long to look for each of the two batches; 0: do not."),
]
Grows = Annotated[
    Literal["batch", "image", "length"],
    typer.Option(
        "--largest",
        help="What to look for: the largest batch; or, at this batch, the largest square image (in pixels) or the "
        "longest sequence.",
    ),
]
Points = Annotated[int, typer.Option("--points", min=2, metavar="N", help="How many limits the table has.")]


@with_example_options
def fit(
    what: Spec,
    data: Data = None,
    size: Size = None,
    batch: Batch = None,
    device: Device = None,
    goal: Goal = None,
    memory_limit: Limit = None,
    precision: Precision = "float32",
    points: Points = POINTS,
    seconds: Seconds = SECONDS,
    grows: Grows = "batch",
    json: Json = False,
    given: DataOptions = PLAIN,
) -> None:
    """Find the largest batch, image or sequence for a memory limit, and show what less memory costs.

    A plan needs less memory if values of the forward pass are computed again in the backward pass. The
    table shows the time of the ops of a step for limits from none down to the smallest that can be
    met, and in micro-batches if these give the same update. Times are predicted; handheld cost also
    predicts what launching the ops adds. Nothing runs, and a described device need not be present.

    \b
    Examples:
    handheld fit mobilenet_v2 --size paper --on adreno-740 --memory-limit 1GiB
    handheld fit mine.py:make --data photos/ --batch 16
    handheld fit resnet50 --size paper --batch 8 --largest image --on adreno-740
    """
    limit = nbytes(memory_limit)
    asked = Wanted(
        what, size, device or "opencl", batch, goal, precision, data, given, memory_limit=limit, measure=False
    )
    on, batch = placed(asked, json)
    caps = device_caps(on, precision)
    spec = open_model(what, size)
    count = batch or spec.default_batch
    if grows != "batch":
        Search(spec, count, data, given, on, limit, precision, grows).run(seconds, json)
        return
    with stages(json) as say:
        say(f"capturing {spec.name} for a batch of {count}")
        step = captured(spec, count, data, given)
        plain = plan_sizes(step, count, None, canonical(on), caps, limit, precision)
        fitting = Fitting(plain.step, plain.device, caps, plain.names(count), plain.options, _description(on))
        made = curve(fitting, points, say)
        as_it_is, again = _largest(plain, fitting, made, count, seconds, say) if seconds else (None, None)
    result = {
        "model": spec.name,
        "device": on,
        "name": caps.name,
        "precision": precision,
        "batch": count,
        "available_bytes": plain.available,
        "largest": _found(again),
        "largest_as_it_is": _found(as_it_is),
        "only_batches_of_the_file": isinstance(spec, StepFile),
        **_points(made),
    }
    output.print_json(result) if json else present(result, made)


def _largest(
    plain: Sizes, fitting: Fitting, made: Curve, count: int, seconds: float, say: Say
) -> tuple[Largest, Largest]:
    """The largest batch as it is, and with values computed again."""
    whole, least = made.points[0].bytes, made.points[-1].bytes
    as_it_is = largest_as_it_is(plain, Probe(count, whole, whole <= plain.available), seconds, say)
    sizes = FittedSizes(plain.step, plain.device, plain.caps, plain.names(count), plain.options)
    sizes.prices = fitting.prices
    known = Probe(count, least, least <= plain.available)
    return as_it_is, largest_fitted(sizes, known, as_it_is.batch, seconds, say)


def _points(made: Curve) -> dict[str, object]:
    return {
        "points": [dataclasses.asdict(point) for point in made.points],
        "micro_batches": [dataclasses.asdict(point) for point in made.divided],
        "no_micro_batches": made.why_whole,
        "times": made.source,
    }


def _description(name: str) -> str:
    return name if name in DeviceCaps.names() else ""


def _found(found: Largest | None) -> dict[str, Any] | None:
    return None if found is None else {"batch": found.batch or None, "exact": found.exact, "plans": len(found.tried)}


def present(result: dict[str, Any], made: Curve) -> None:
    """Print the answer first: the largest batch. Then the table."""
    output.out.print(Text(_answer(result), style="bold"))
    output.out.print()
    lines = [
        ("model", f"{result['model']}, batch {result['batch']}, {result['precision']}"),
        ("device", f"{result['name']}, {output.size(result['available_bytes'])} may be used"),
        ("times", f"predicted, of the ops alone without launching them: {made.source}"),
    ]
    output.out.print(output.grid(lines))
    output.out.print()
    columns = [Column(name) for name in ("memory", "share", "op time", "factor", "computed again")]
    columns.append(Column("", name_of=True))
    output.out.print(
        table(columns, [_cells(point, result["available_bytes"]) for point in (*made.points, *made.divided)])
    )
    if not all(point.outputs for point in made.points):
        output.out.print("*: the outputs of the training step are not kept")
    if made.why_whole:
        output.out.print(f"No micro-batches: {made.why_whole}")


def _cells(point: Point, available: int) -> tuple[str, ...]:
    values = output.count(point.values, "value") + ("" if point.outputs else " *")
    if point.micro_batches > 1:
        values = output.count(point.micro_batches, "micro-batch")
    milliseconds = f"{1e3 * point.seconds:,.3g} ms"
    fits = "fits" if point.bytes <= available else "does not fit"
    return output.size(point.bytes), f"{point.share:.0%}", milliseconds, f"{point.factor:.2f}", values, fits


def _answer(result: dict[str, Any]) -> str:
    again, plain, room = result["largest"], result["largest_as_it_is"], output.size(result["available_bytes"])
    if again is None or plain is None:
        return "The largest batch was not looked for (--seconds 0)"
    if not again["batch"]:
        least = output.size(min(point["bytes"] for point in (*result["points"], *result["micro_batches"])))
        return f"No batch fits into {room}. The smallest plan below, of a batch of {result['batch']}, needs {least}"
    if result["only_batches_of_the_file"]:
        without = "none" if not plain["batch"] else f"{plain['batch']:,}"
        return f"The largest batch of the step file that fits into {room} is {again['batch']:,}; as it is, {without}"
    least = "" if again["exact"] else " or more (--seconds was too short to be sure)"
    without = "no batch fits" if not plain["batch"] else f"{plain['batch']:,}" + ("" if plain["exact"] else " or more")
    return (
        f"The largest batch that trains in {room} is {again['batch']:,}{least} with values computed again; "
        f"without, {without}"
    )

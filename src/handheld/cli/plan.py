"""`handheld plan`: the memory, launches and operations of a training step on a device, and the largest batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from handheld.backends.base import describe
from handheld.cli import output, plan_tables
from handheld.cli.bench import batches, nbytes, split
from handheld.cli.data_options import PLAIN, DataOptions, with_example_options
from handheld.cli.options import Data, Json, Precision, Size, Spec
from handheld.cli.prepare import capture_example, check_frozen
from handheld.cli.stages import stages
from handheld.device import DeviceCaps, canonical
from handheld.errors import DeviceError, HandheldError, OutOfMemory
from handheld.names import suggestion
from handheld.passes.scale import GROWTH
from handheld.plan.plan import Plan
from handheld.profile.inputs import graphs_in_turn
from handheld.profile.need import Need, need
from handheld.resolve import ModelSpec, StepFile, open_model
from handheld.run.batch import batch_sizes
from handheld.run.fitting import Largest, Probe, Sizes, largest
from handheld.step import Step

SECONDS = 60.0
#: More memory than any plan needs: a batch that does not fit is planned with it, to say how much it needs.
ROOM = 1 << 50

Batch = Annotated[
    str | None, typer.Option("--batch", metavar="N,N,...", help=("Batch sizes to plan. Default: the model's own."))
]
Device = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="DEVICE",
        help=(
            "A description that comes with Handheld (adreno-740, mali-g78, ...), the JSON file of one, or a device of "
            "this machine (opencl, opencl:NAME, reference:cpu)."
        ),
    ),
]
Memory = Annotated[
    str | None,
    typer.Option("--memory", metavar="SIZE", help=("Memory that may be used, such as 2GiB. Default: the device's.")),
]
Graphs = Annotated[
    str | None,
    typer.Option(
        "--graphs", metavar="NAME,NAME", help=("Only these graphs. Default: all, as handheld train plans them.")
    ),
]
Seconds = Annotated[
    float, typer.Option("--seconds", min=0, metavar="S", help=("How long to look for the largest batch; 0: do not."))
]
Explain = Annotated[bool, typer.Option("--explain", help=("Also print each plan: its schedule, memory and kernels."))]


@dataclass(frozen=True)
class Row:
    """A batch size: its needs and, if it does not fit, why."""

    need: Need
    why: str
    plan: Plan


@with_example_options
def plan(
    what: Spec,
    data: Data = None,
    size: Size = None,
    batch: Batch = None,
    device: Device = "opencl",
    memory: Memory = None,
    precision: Precision = "float32",
    graphs: Graphs = None,
    seconds: Seconds = SECONDS,
    explain: Explain = False,
    json: Json = False,
    given: DataOptions = PLAIN,
) -> None:
    """Show what fits: the memory, launches and operations of a training step.

    The step is captured and planned for the device at each batch size. Nothing runs, and a described
    device need not be present. A step file has only the batch sizes that it was packaged with.

    The categories are those at the moment when most memory is in use, and add up to the total:

    \b
    parameter         the weights of the model
    optimizer state   momentum, averages of gradients
    gradient          gradients, of weights and of activations
    activation        results of the forward pass
    input             the batch
    buffer            statistics of batch norm and the like
    workspace         scratch memory of kernels
    other             learning rates, counters, constants
    not alive ...     alignment, what only other moments or graphs need, and gaps: no
                      piece may be larger than the device allocates at once

    Operations count a multiply-add as two. No time is predicted without a measurement of the device. If
    handheld doctor --ceilings has measured it undisturbed, a lower bound is printed.

    \b
    Examples:
    handheld plan mobilenet_v2 --size paper --batch 1,8,64 --device adreno-740 --memory 2GiB
    handheld plan mine.py:make --data photos/ --batch 4,16 --precision half
    handheld plan lenet5.step --device phone.json --json
    """
    caps, limit = device_caps(device), nbytes(memory, "--memory")
    spec = open_model(what, size)
    wanted = wanted_batches(batch, spec)
    with stages(json) as say:
        say(f"capturing {spec.name} for a batch of {wanted[0]}")
        step = captured(spec, wanted[0], data, given)
        sizes = plan_sizes(step, wanted[0], graphs, canonical(device), caps, limit, precision)
        rows = _rows(sizes, wanted, say)
        found = _search(sizes, rows, seconds, say)
    result = _result(spec, device, caps, sizes, rows, found)
    if json:
        output.print_json(
            {**result, **({"explain": {r.need.batch: r.plan.explain() for r in rows}} if explain else {})}
        )
        return
    plan_tables.present(result, isinstance(spec, StepFile))
    for row in rows if explain else ():
        output.out.print(f"\n{row.plan.explain(width=output.out.width)}", markup=False, soft_wrap=True)


def device_caps(name: str) -> DeviceCaps:
    """The description for a text of --device."""
    if name.endswith(".json"):
        return DeviceCaps.read(Path(name))
    if name in DeviceCaps.names():
        return DeviceCaps.shipped(name)
    if canonical(name).partition(":")[0] in ("opencl", "reference", "null"):
        return describe(canonical(name))
    names = [*DeviceCaps.names(), "opencl", "reference:cpu"]
    hint = suggestion(name, names, f"{', '.join(names)}, or the JSON file of a description")
    raise DeviceError(f"there is no device {name!r}. {hint}")


def wanted_batches(text: str | None, spec: ModelSpec) -> list[int]:
    wanted = sorted(set(batches(text))) or [spec.default_batch]
    if text is None and isinstance(spec, StepFile):
        return sorted(spec.sizes) or wanted
    return wanted


def captured(spec: ModelSpec, batch: int, data: str | None, given: DataOptions) -> Step:
    step, _ = capture_example(spec, [batch], 0, data, given)
    frozen = check_frozen(step, spec, accept=True)  # The costs do not depend on the frozen values.
    if frozen:
        output.warn(frozen)
    return step


def plan_sizes(
    step: Step, batch: int, graphs: str | None, device: str, caps: DeviceCaps, limit: int | None, precision: str
) -> Sizes:
    several = batch_sizes(step.graphs, "train")
    names = [n for n in step.graphs if not several or n.partition("@")[2].partition(".")[0] == str(batch)]
    if graphs is not None:
        asked = split(graphs)
        missing = [name for name in asked if not any(name in (n, n.partition("@")[0]) for n in names)]
        if missing or not asked:
            raise HandheldError(f"--graphs {graphs}: the step has the graphs {', '.join(names)}")
        names = [name for name in names if name in asked or name.partition("@")[0] in asked]
    options = {
        "memory_limit_bytes": limit,
        "isolate": False,
        "tuning": True,
        "naive": False,
        "precision": precision,
        "growth_steps": GROWTH,
    }
    return Sizes(step, device, caps, names, options)


def _rows(sizes: Sizes, wanted: Sequence[int], say: Callable[[str], None]) -> list[Row]:
    rows = []
    for number, count in enumerate(wanted):
        say(f"planning a batch of {count}, {number + 1} of {len(wanted)}")
        rows.append(plan_row(sizes, count))
    return rows


def plan_row(sizes: Sizes, batch: int) -> Row:
    """A batch that does not fit is planned with more memory, to say how much it needs. If one tensor is larger than
    the device can allocate, that limit goes too."""
    roomy = replace(sizes.caps, global_mem_bytes=ROOM)
    why = ""
    for caps in (sizes.caps, roomy, replace(roomy, max_alloc_bytes=ROOM)):
        try:
            made = sizes.plan(batch, caps, unlimited=bool(why))
        except OutOfMemory as error:
            why = why or str(error).partition(". ")[0]
        else:
            return Row(need(made, batch, trained(made, batch)), why, made)
    raise HandheldError(why)


def trained(plan: Plan, batch: int) -> list[str]:
    """The graphs that a training step runs; all graphs if none of them trains."""
    names = [
        name for name in graphs_in_turn({n: p.graph for n, p in plan.graphs.items()}, batch) if name in plan.graphs
    ]
    return names or list(plan.graphs)


def _search(sizes: Sizes, rows: Sequence[Row], seconds: float, say: Callable[[str], None]) -> Largest | None:
    """The largest batch that fits. A step without code has only its own batch sizes."""
    known = [Probe(row.need.batch, row.need.bytes, not row.why, row.why) for row in rows]
    if sizes.step.code is None:
        tried = {probe.batch: probe for probe in known}
        for batch in sizes.own():
            if batch not in tried:
                tried[batch] = sizes.probe(batch)
        fits = max((batch for batch, probe in tried.items() if probe.fits), default=0)
        return Largest(fits, False, tuple(tried[batch] for batch in sorted(tried)))
    if not seconds:
        return None

    def probe(batch: int) -> Probe:
        say(f"looking for the largest batch that fits: {batch:,}")
        return sizes.probe(batch)

    start = [sizes.empty] if sizes.state_bytes <= sizes.available else []
    return largest(probe, [*start, *known], sizes.available, seconds)


def _result(
    spec: ModelSpec, device: str, caps: DeviceCaps, sizes: Sizes, rows: Sequence[Row], found: Largest | None
) -> dict[str, Any]:
    return {
        "model": spec.name,
        "device": device,
        "name": caps.name,
        "available_bytes": sizes.available,
        "precision": sizes.options["precision"],
        "graphs": [*sizes.kinds, *sizes.fixed],
        "batches": [{**dataclasses.asdict(row.need), "fits": not row.why, "why": row.why or None} for row in rows],
        "largest": None
        if found is None
        else {
            "batch": found.batch or None,
            "exact": found.exact,
            "grows": found.monotone,
            "only_batches_of_the_file": sizes.step.code is None,
            "tried": [dataclasses.asdict(probe) for probe in found.tried if probe.batch],
        },
        "time": plan_tables.times(caps, [row.need for row in rows]),
    }

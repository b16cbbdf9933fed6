"""`handheld plan`: the memory, launches and operations of a training step on a device, and the largest batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from handheld.cli import output, plan_files, plan_tables
from handheld.cli.data_options import PLAIN, DataOptions, load, with_example_options
from handheld.cli.described import captured, device_caps
from handheld.cli.means_options import AS_IS, Means, with_means
from handheld.cli.options import Data, Json, Precision, Size, Spec, batches, nbytes, split
from handheld.cli.partial_options import with_partial_options
from handheld.cli.placing import Goal, Wanted, placed
from handheld.cli.stages import stages
from handheld.data import Indexed
from handheld.device import DeviceCaps, canonical
from handheld.errors import HandheldError, OutOfMemory
from handheld.limits.means import Allowed, plan_of_batch
from handheld.partial.options import WHOLE, PartialOptions
from handheld.passes.scale import GROWTH
from handheld.placement.table import trained
from handheld.plan.fit import fit_summary
from handheld.plan.plan import Plan
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
    str | None,
    typer.Option(
        "--on",
        "--device",
        metavar="DEVICE",
        help=(
            "A description that comes with Handheld (adreno-740, mali-g78, ...), the JSON file of one, or a device "
            "(opencl, opencl:NAME, runner, reference:cpu, ssh:user@host, adb), or auto. Default: opencl."
        ),
    ),
]
Memory = Annotated[
    str | None,
    typer.Option(
        "--memory-limit",
        "--memory",
        metavar="SIZE",
        help=("Memory that may be used, such as 2GiB. Default: the device's."),
    ),
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
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FILE.plan",
        help=("Write the plan file that a runner executes: kernels, launches, memory and the values of the state."),
    ),
]
Explain = Annotated[bool, typer.Option("--explain", help=("Also print each plan: its schedule, memory and kernels."))]


@dataclass(frozen=True)
class Row:
    """A batch size: its needs and, if it does not fit, why. `fitted` is then the plan that is made smaller, or
    `why_never` says why there is none."""

    need: Need
    why: str
    plan: Plan
    fitted: Plan | None = None
    why_never: str = ""

    @property
    def best(self) -> Plan:
        """The plan that fits, if there is one."""
        return self.fitted or self.plan


@with_partial_options
@with_means
@with_example_options
def plan(
    what: Spec,
    data: Data = None,
    size: Size = None,
    batch: Batch = None,
    device: Device = None,
    goal: Goal = None,
    memory: Memory = None,
    precision: Precision = "float32",
    graphs: Graphs = None,
    seconds: Seconds = SECONDS,
    explain: Explain = False,
    out: Out = None,
    json: Json = False,
    given: DataOptions = PLAIN,
    partial: PartialOptions = WHOLE,
    means: Means = AS_IS,
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
    not alive ...     alignment, gaps, and what only other moments or graphs need

    Operations count a multiply-add as two. After handheld doctor --ceilings, a lower bound of the time is printed.

    \b
    Examples:
    handheld plan mobilenet_v2 --size paper --batch 1,8,64 --on adreno-740 --memory-limit 2GiB
    handheld plan mine.py:make --data photos/ --batch 4,16 --lora 8 --frozen-bits 4
    handheld plan lenet5 --batch 32 --on adreno-740 --out lenet5.plan
    handheld plan lenet5.plan     # checks the file, and says what is in it
    """
    if what.endswith(plan_files.SUFFIX):
        return plan_files.show(what, device, None if device is None else device_caps(device), json)
    limit, most = nbytes(memory), max(batches(batch), default=None)
    place = Wanted(what, size, device or "opencl", most, goal, precision, data, given, partial, limit, measure=False)
    device, chosen = placed(replace(place, means=means, micro_batches=None), json)
    caps, spec = device_caps(device, precision), open_model(what, size, partial.at(device))
    plan_files.check_out(out, wanted := wanted_batches(batch or chosen, spec))
    with stages(json) as say:
        step = captured(spec, wanted[0], data, given, say)
        sizes = plan_sizes(step, wanted[0], graphs, canonical(device), caps, limit, precision, means)
        sizes.test_samples = tested(data, spec, given) if data and graphs is None else 0
        rows = _rows(sizes, wanted, say, allowed_for(means, out), device)
        plan_files.write(rows[0].best, out, "" if rows[0].fitted else rows[0].why)
        found = _search(sizes, rows, seconds, say)
    _present(_result(spec, device, caps, sizes, rows, found), rows, out, isinstance(spec, StepFile), explain, json)


def _present(
    result: dict[str, Any], rows: Sequence[Row], out: Path | None, is_file: bool, explain: bool, json: bool
) -> None:
    if json:
        written = {} if out is None else {"out": str(out)}
        explained = {"explain": {r.need.batch: r.best.explain() for r in rows}} if explain else {}
        output.print_json({**result, **written, **explained})
        return
    plan_tables.present(result, is_file)
    if out is not None:
        plan_files.present(out)
    for row in rows if explain else ():
        output.out.print(f"\n{row.best.explain(width=output.out.width)}", markup=False, soft_wrap=True)


def allowed_for(means: Means, out: Path | None) -> Allowed:
    """What a plan may do to fit. A runner executes the graphs of a file one by one, so a batch stays whole in it."""
    return Allowed(spill=means.spill, micro_batches=None if out is None else 1)


def tested(data: str, spec: ModelSpec, given: DataOptions) -> int:
    """The samples of the test set; 0 if their number is not known."""
    test = load(data, 1, 0, spec, given).test
    return test.samples if isinstance(test, Indexed) else 0


def wanted_batches(given: str | int | None, spec: ModelSpec) -> list[int]:
    text = None if given is None else str(given)
    wanted = sorted(set(batches(text))) or [spec.default_batch]
    if text is None and isinstance(spec, StepFile):
        return sorted(spec.sizes) or wanted
    return wanted


def plan_sizes(
    step: Step,
    batch: int,
    graphs: str | None,
    device: str,
    caps: DeviceCaps,
    limit: int | None,
    precision: str,
    means: Means = AS_IS,
) -> Sizes:
    several = batch_sizes(step.graphs, "train")
    names = [n for n in step.graphs if not several or n.partition("@")[2].partition(".")[0] == str(batch)]
    if graphs is not None:
        asked = split(graphs)
        missing = [name for name in asked if not any(name in (n, n.partition("@")[0]) for n in names)]
        if missing or not asked:
            raise HandheldError(f"--graphs {graphs}: the step has the graphs {', '.join(names)}")
        names = [name for name in names if name in asked or name.partition("@")[0] in asked]
    options: dict[str, Any] = {
        "memory_limit_bytes": limit,
        "isolate": False,
        "tuning": True,
        "naive": False,
        "precision": precision,
        "growth_steps": GROWTH,
        "fit": {},
        "parts": {},
        "moves": {},
        **{key: value for key, value in means.options().items() if key != "spill"},
    }
    return Sizes(step, device, caps, names, options)


def _rows(sizes: Sizes, wanted: Sequence[int], say: Callable[[str], None], allowed: Allowed, device: str) -> list[Row]:
    rows, description = [], device if device in DeviceCaps.names() else ""
    for number, count in enumerate(wanted):
        say(f"planning a batch of {count}, {number + 1} of {len(wanted)}")
        row = plan_row(sizes, count)
        if row.why and row.need.bytes > sizes.available:
            say(f"fitting a batch of {count}")
            row = fitted_row(sizes, row, allowed, description)
        rows.append(row)
    return rows


def fitted_row(sizes: Sizes, row: Row, allowed: Allowed, description: str = "") -> Row:
    """The row with the plan that `handheld train` would take to fit."""
    try:
        plan = plan_of_batch(sizes, row.need.batch, allowed, description)
    except OutOfMemory as error:
        return replace(row, why_never=str(error).partition(". ")[2].removesuffix(". Try: a smaller batch"))
    return replace(row, fitted=plan)


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


def _batch(row: Row) -> dict[str, Any]:
    return {
        **dataclasses.asdict(row.need),
        "fits": not row.why,
        "why": row.why or None,
        "fitted": None if row.fitted is None else fit_summary(row.fitted.options, row.fitted.bytes),
        "why_never": row.why_never or None,
    }


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
        "batches": [_batch(row) for row in rows],
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

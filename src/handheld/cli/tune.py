"""`handheld tune`: finds the fastest variant of each kernel of a step on this device."""

from __future__ import annotations

import contextlib
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from handheld.backends.base import describe
from handheld.cli import output
from handheld.cli.data_options import PLAIN, DataOptions, with_example_options
from handheld.cli.fleet_run import on_fleet
from handheld.cli.options import Data, Json, OnOpenCLFleet, Precision, Size, Spec
from handheld.cli.partial_options import with_partial_options
from handheld.cli.prepare import capture_example, check_frozen
from handheld.cli.stages import stages
from handheld.cli.tables import Column, table
from handheld.errors import HandheldError, TargetLost
from handheld.kernels.base import Choice
from handheld.measure.jobs import find_jobs
from handheld.measure.tuner import Progress as Now
from handheld.measure.tuner import Row, Tuner, known_record
from handheld.partial.options import WHOLE, PartialOptions
from handheld.plan.precision import prepare
from handheld.plan.tuning import TuningRecord, load_tuning
from handheld.progress import report
from handheld.resolve import ModelSpec, open_model
from handheld.run.batch import batch_sizes
from handheld.step import Step

SHOWN = 20  # Signatures in the table.
COLUMNS = (
    Column("signature", name_of=True, least=20),
    Column("per step", drop=2),
    Column("default ms", drop=1),
    Column("best ms"),
    Column("gain"),
)


Batch = Annotated[
    int | None, typer.Option("--batch", min=1, metavar="N", help=("Batch size. Default: the model's own."))
]
Budget = Annotated[
    float,
    typer.Option("--budget", min=1, metavar="SECONDS", help=("Time to spend. The next run continues from there.")),
]
Graph = Annotated[
    str | None, typer.Option("--graph", metavar="NAME", help=("Only this graph. Default: the graphs that train."))
]
Fresh = Annotated[bool, typer.Option("--fresh", help=("Discard the results for these shapes and start again."))]


@on_fleet("tune", None)
@with_partial_options
@with_example_options
def tune(
    what: Spec,
    size: Size = None,
    on: OnOpenCLFleet = "opencl",
    precision: Precision = "float32",
    batch: Batch = None,
    budget: Budget = 120.0,
    graph: Graph = None,
    data: Data = None,
    fresh: Fresh = False,
    json: Json = False,
    given: DataOptions = PLAIN,
    partial: PartialOptions = WHOLE,
) -> None:
    """Find the fastest variant of each kernel of a model.

    The result of every candidate is checked before its time counts. Candidates run in a separate
    process: one that hangs or crashes the driver is recorded and not tried again. Results are saved
    at once, and every plan for this device uses them. After Ctrl-C, the same command continues.
    Variants sum in different orders, so results may change in their last bits after tuning.

    \b
    Examples:
    handheld tune mine.py:make --data photos/ --on opencl:nvidia --budget 600
    handheld tune resnet18 --precision half
    """
    caps = describe(on)  # An unknown device is reported as such.
    if not caps.takes_launches:
        raise HandheldError(f"{on} has no variants to choose from. Try: --on opencl")
    with stages(json) as stage:
        spec = open_model(what, size, partial.at(on))
        batch_size = batch or spec.default_batch
        step, _ = capture_example(spec, [batch_size], 0, data, given)
        names = _training(step, spec, graph, batch_size)
        stage("planning")
        jobs = find_jobs(prepare(step, names, caps, precision)[0], caps)
    record, path, notes = _record(TuningRecord.of(caps), [job.signature for job in jobs] if fresh else [])
    frozen = check_frozen(step, spec, accept=True)  # Speed does not depend on the frozen values.
    notes = [*notes, *load_tuning(caps).ignored, *([frozen] if frozen else [])]
    for note in notes if not json else ():
        output.warn(note)
    tuner = Tuner(on, caps, jobs, record, path)
    started, stopped = time.monotonic(), False
    with _bar(tuner, budget, json):
        try:
            tuner.run(budget)
        except KeyboardInterrupt:
            stopped = True
        except TargetLost as error:
            raise error.add("Results so far are saved; run the same command to continue") from error
    notes += tuner.notes
    if json:
        output.print_json(_as_json(tuner, notes, time.monotonic() - started, stopped))
    else:
        present(tuner, time.monotonic() - started)
        for note in tuner.notes:
            output.warn(note)
    if stopped:
        output.stopped("results so far are saved; run the same command to continue")
        raise typer.Exit(130)


def _training(step: Step, spec: ModelSpec, graph: str | None, batch_size: int) -> list[str]:
    """The graphs that change the state, for this batch size; with `graph`, the graph of that name."""
    names = [n for n in step.graphs if step.graphs[n].writes]
    if graph is not None:
        names = [n for n in step.graphs if graph in (n, n.partition("@")[0])]
        if not names:
            raise HandheldError(f"there is no graph {graph!r}; the step has {', '.join(step.graphs)}")
    sizes = batch_sizes(step.graphs, "train")
    chosen = [n for n in names if not sizes or n.partition("@")[2].partition(".")[0] == str(batch_size)]
    if not chosen:
        raise HandheldError(
            f"{spec.name} has the graphs {', '.join(step.graphs)}; none of them trains. Try: --graph NAME"
        )
    return chosen


def _record(new: TuningRecord, forget: list[str]) -> tuple[TuningRecord, Path, list[str]]:
    """The record of the device so far, without the signatures in `forget`."""
    record, path, notes = known_record(new)
    for key in forget:
        record.entries.pop(key, None)
    return record, path, notes


@contextlib.contextmanager
def _bar(tuner: Tuner, budget: float, quiet: bool) -> Iterator[None]:
    """On a terminal, show what is being tried and the time that is left."""
    bar = Progress(
        TextColumn("{task.fields[place]}"),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[left]} left  {task.description}"),
        console=output.err,
        transient=True,
        disable=quiet or not output.err.is_terminal,
    )
    task = bar.add_task("", total=budget, place="", left=output.duration(budget))

    def on_progress(now: Now) -> None:
        report(f"{now.signature} ({now.tried} of {now.candidates})", now.position, now.jobs)
        bar.update(
            task,
            completed=budget - now.seconds_left,
            left=output.duration(now.seconds_left),
            place=f"{now.position}/{now.jobs}",
            description=f"{output.middle(now.signature, 24)}  ({now.tried} of {now.candidates})",
        )

    tuner.progress = on_progress
    with bar:
        yield


def _as_json(tuner: Tuner, notes: list[str], seconds: float, stopped: bool) -> dict[str, object]:
    rows = tuner.rows()
    before, after = _totals(rows)
    return {
        "device": tuner.device,
        "record": str(tuner.path),
        "seconds": seconds,
        "interrupted": stopped,
        "default_ms": before,
        "best_ms": after,
        "notes": notes,
        "signatures": [
            {"signature": row.signature, "count": row.count, **(row.entry.to_json() if row.entry else {})}
            for row in rows
        ],
    }


def _totals(rows: list[Row]) -> tuple[float, float]:
    """Milliseconds per step in all tuned nodes: with the default variants, and with the best."""
    after = sum(row.count * (row.entry.best_ms or 0.0) for row in rows if row.entry)
    return after + sum(row.saved_ms for row in rows), after


def present(tuner: Tuner, seconds: float) -> None:
    """Print the best variants, and what they save per step."""
    rows = tuner.rows()
    if not rows:
        output.out.print("nothing to tune: no kernel of this step has variants")
        return
    known = [row for row in rows if row.entry is not None and row.entry.best_ms is not None]
    output.out.print(_table(sorted(known, key=lambda row: -row.saved_ms)[:SHOWN]))
    if len(known) > SHOWN:
        output.out.print(f"and {len(known) - SHOWN} more in the record", style="dim")
    before, after = _totals(rows)
    done = sum(row.entry is not None and row.entry.done for row in rows)
    failed = sum(len(row.entry.failed) for row in rows if row.entry)
    lines = [
        ("step", _gain(before, after) if known else "nothing was measured yet"),
        (
            "tuned",
            f"{done} of {output.count(len(rows), 'shape')} after {output.duration(seconds)}"
            + (f", {len(known) - done} in part" if len(known) > done else "")
            + ("" if done == len(rows) else "; the same command continues"),
        ),
    ]
    if failed:
        lines.append(("left out", f"{output.count(failed, 'variant')} that crashed or gave a wrong result"))
    output.out.print(output.grid([*lines, ("record", output.path(tuner.path))]))


def _gain(before: float, after: float) -> str:
    """What tuning changes per step, in all ops that have variants."""
    if f"{before:.2f}" == f"{after:.2f}":
        return f"{after:.2f} ms in tuned ops: no variant was clearly faster than the default"
    return f"{after:.2f} ms in tuned ops instead of {before:.2f} ms with the defaults"


def _table(rows: list[Row]) -> RenderableType:
    """One line per signature, and more below it for a choice that is not the default."""
    width = max(output.out.width - 44, 20)  # The columns of numbers take the rest.
    cells = []
    for row in rows:
        entry = row.entry
        assert entry is not None and entry.best_ms is not None
        own = entry.default_ms
        gain = "" if own is None else f"{own / entry.best_ms:.2f}x"
        shown = Text(output.middle(row.signature, width))
        for line in textwrap.wrap(_words(entry.choice or {}), width - 2):
            shown.append(f"\n  {line}", style="dim")
        cells.append((shown, str(row.count), "failed" if own is None else f"{own:.3f}", f"{entry.best_ms:.3f}", gain))
    return table(COLUMNS, cells)


def _words(choice: Choice) -> str:
    return " ".join(f"{name}={value}" for name, value in choice.items())

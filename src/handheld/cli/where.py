"""`handheld where`: which processor to train on, from which batch, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.text import Text

from handheld.cli import output
from handheld.cli.cost_tables import DERIVED
from handheld.cli.data_options import PLAIN, DataOptions, with_example_options
from handheld.cli.described import captured
from handheld.cli.options import Data, Json, Precision, Size, Spec, batches
from handheld.cli.placing import batches_of, candidates
from handheld.cli.stages import stages
from handheld.cli.tables import Column, table
from handheld.errors import HandheldError
from handheld.placement.choice import Range, best, best_at, check_goal, ranges
from handheld.placement.table import CostTable, Entry, cost_table
from handheld.resolve import open_model

On = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="D,D,...",
        show_default=False,
        help="Devices: opencl, opencl:NAME, runner, adb, ssh:user@host, descriptions that come with Handheld "
        "(adreno-740, mali-g78, ...), or JSON files of them. Default: all of this machine.",
    ),
]
Goal = Annotated[str, typer.Option("--for", metavar="GOAL", help="What is best: time, energy or memory.")]
Batch = Annotated[
    str | None, typer.Option("--batch", metavar="N,N,...", show_default=False, help="Default: 1, 2, 4, ... to 256.")
]


@with_example_options
def where(
    what: Spec,
    data: Data = None,
    size: Size = None,
    batch: Batch = None,
    on: On = None,
    goal: Goal = "time",
    precision: Precision = "float32",
    json: Json = False,
    given: DataOptions = PLAIN,
) -> None:
    """Say which processor trains a model best, from which batch, and why.

    The step is planned for each device at each batch, and its time, memory and joules are predicted, as
    in handheld cost. Nothing runs, and a described device need not be present. Joules need the energy
    model of the device (handheld doctor --energy). Memory is exact. Of times the output states the error.

    \b
    Examples:
    handheld where lenet5
    handheld where mobilenet_v2 --on adreno-740,mali-g78 --batch 1,8,64
    handheld where mine.py:make --data photos/ --for energy
    """
    check_goal(goal)
    devices, spec = candidates(on), open_model(what, size)
    wanted = batches_of(spec, batches(batch))
    with stages(json) as say:
        say(f"capturing {spec.name} for a batch of {wanted[0]}")
        step = captured(spec, wanted[0], data, given)
        costs = cost_table(spec.name, step, devices, wanted, precision=precision, say=say)
    if all(entry.cost is None for entry in costs.entries):
        raise HandheldError("; ".join(dict.fromkeys(entry.why for entry in costs.entries)))
    best(costs, goal)  # Raises the error of a goal for which something is not known.
    found = ranges(costs, goal)
    output.print_json(_document(costs, goal, found)) if json else _present(costs, goal, found)


def _document(costs: CostTable, goal: str, found: Sequence[Range]) -> dict[str, Any]:
    return {
        "model": costs.model,
        "for": goal,
        "devices": [
            {
                "device": known.candidate.device,
                "name": known.candidate.caps.name,
                "times": known.model.why if known.model else None,
                "problem": known.problem or None,
                "no_joules": known.no_joules or None,
            }
            for known in costs.known
        ],
        "entries": [_row(entry) for entry in costs.entries],
        "best": [choice.to_json() for batch in costs.batches if (choice := best_at(costs, batch, goal))],
        "ranges": [each.to_json() for each in found],
        "choice": best(costs, goal).to_json(),
    }


def _row(entry: Entry) -> dict[str, Any]:
    cost = entry.cost
    row: dict[str, Any] = {"device": entry.device, "batch": entry.batch, "why": entry.why or None}
    if cost is None:
        return row
    return row | {
        "seconds": cost.seconds,
        "low_s": cost.low_s,
        "high_s": cost.high_s,
        "samples_per_second": entry.batch / cost.seconds,
        "bytes": cost.bytes,
        "joules_per_sample": entry.joules_per_sample,
        "launches": cost.launches,
        "bound": entry.bound,
        "derived": cost.derived,
        "error": cost.error.to_json(),
    }


def _present(costs: CostTable, goal: str, found: Sequence[Range]) -> None:
    for line in _answers(costs, goal, found):
        output.out.print(Text(line, style="bold"))
    output.out.print()
    output.out.print(_table(costs, goal))
    for line in _notes(costs):
        output.out.print(Text(line))


def _answers(costs: CostTable, goal: str, found: Sequence[Range]) -> list[str]:
    """Which device, from which batch, and why: one line per range, and the best batch of all."""
    least = {"time": "least time per sample", "energy": "least joules per sample", "memory": "least memory"}[goal]
    several = len(costs.devices) > 1
    lines = []
    for number, each in enumerate(found if several else ()):
        span = f"batch {each.first:,}" if each.first == each.last else f"batches {each.first:,} to {each.last:,}"
        begin = f"{each.device} from batch {each.first:,}" if number else f"{each.device} at {span}"
        looked = [batch for batch in costs.batches if each.first <= batch <= each.last]
        unsure = "" if len(each.sure) == len(looked) else ". Not certain: within the error of the predictions"
        lines.append(f"{begin}: {each.reason}{unsure}")
    choice = best(costs, goal)
    reason = "" if several else f": {choice.reason}"
    return [*lines, f"{least[0].upper()}{least[1:]}: {choice.device} at batch {choice.batch:,}{reason}"]


def _table(costs: CostTable, goal: str) -> Any:
    joules = any(entry.joules_per_sample is not None for entry in costs.entries)
    columns = [
        Column("batch"),
        Column("device", name_of=True, least=16),
        Column("samples/s"),
        Column("ms per step"),
        Column("interval", drop=1),
        Column("memory"),
        *([Column("J per sample")] if joules else []),
        Column("bound by", name_of=True, least=9),
        Column("", name_of=True, least=4),
    ]
    rows = []
    for batch in costs.batches:
        choice = best_at(costs, batch, goal)
        for number, entry in enumerate(costs.at(batch)):
            mark = "best" if choice is not None and choice.device == entry.device and len(costs.devices) > 1 else ""
            rows.append((f"{batch:,}" if number == 0 else "", entry.device, *_cells(entry, joules), mark))
    return table(columns, rows)


def _cells(entry: Entry, joules: bool) -> tuple[str, ...]:
    cost = entry.cost
    if cost is None:
        no = "does not fit" if entry.why.startswith("does not fit") else "unknown"
        return ("", "", "", "", *([""] if joules else []), no)
    each, rate = entry.joules_per_sample, entry.batch / cost.seconds
    return (
        f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}",
        _ms(cost.seconds),
        f"{_ms(cost.low_s)} to {_ms(cost.high_s)}",
        output.size(cost.bytes),
        *([("unknown" if each is None else f"{each:.3g}")] if joules else []),
        entry.bound,
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.3g}" if seconds < 1 else f"{seconds * 1e3:,.0f}"


def _notes(costs: CostTable) -> list[str]:
    """How the times of each device are known, their error, and why something is not known."""
    lines = []
    for known in costs.known:
        name = known.candidate.device
        entries = costs.of(name)
        kinds: dict[str, list[Entry]] = {}
        for entry in entries:
            if entry.cost is not None:
                kinds.setdefault(entry.cost.derived, []).append(entry)
        for derived, rows in kinds.items():
            error = rows[0].cost.error if rows[0].cost else None
            at = "" if len(kinds) == 1 else f" at batch {', '.join(f'{row.batch:,}' for row in rows)}"
            assert error is not None
            lines.append(
                f"{name}{at}: {DERIVED[derived]}; error {error.median:.0%} in the median, at most {error.p90:.0%} in "
                "nine of ten"
            )
        lines += [f"{name}: {why}" for why in dict.fromkeys(entry.why for entry in entries if entry.why)]
        if known.no_joules and not known.problem:
            lines.append(f"{name}: no joules: {known.no_joules}")
    return lines

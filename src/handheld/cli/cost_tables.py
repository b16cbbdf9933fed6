"""Prints what `handheld cost` predicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from handheld.cli import output
from handheld.cli.tables import Column, table
from handheld.cost.heldout import HeldOut
from handheld.forecast.model import CostModel
from handheld.forecast.rest import RestCost
from handheld.forecast.step import OpLine, StepCost
from handheld.store.record import Record

#: How a prediction was derived, in words.
DERIVED = {
    "measured": "this very step was measured",
    "batches": "from runs of this model at other batches",
    "model": "from runs of other models on this device",
    "few": "from too few runs: some ops are like none that was measured on this device, so its ceilings count",
    "ceilings": "from the device's ceilings: no run of it is known",
    "description": "from public figures of the device: nothing was measured on it",
}
KINDS = {
    "next_steps": "steps of a run predicted from the steps before",
    "other_batches": "other batches of a model, predicted from two",
    "another_model": "models left out of the samples",
    "another_device": "steps of one device predicted from another",
}


@dataclass(frozen=True)
class Total(Record):
    """A whole training at one batch size."""

    batch: int
    steps: int
    seconds: float
    low_s: float
    high_s: float
    joules: float | None
    battery: float | None


def learned(results: Sequence[dict[str, Any]], json: bool) -> None:
    if json:
        output.print_json({"learned": list(results)})
        return
    for row in results:
        models = output.count(len(row["models"]), "model")
        output.out.print(
            f"{row['device']}: {row['ops']:,} ops of {models} are known now ({row['file']})", soft_wrap=True
        )


def present(
    what: str,
    on: str,
    model: CostModel,
    costs: Sequence[StepCost],
    failed: Sequence[dict[str, Any]],
    totals: Sequence[Total],
    ops: int,
    json: bool,
) -> None:
    if json:
        output.print_json(_document(what, on, model, costs, failed, totals))
        return
    output.out.print(output.grid([("model", what), ("device", f"{on} ({model.caps.name})"), ("known", model.why)]))
    output.out.print()
    if costs:
        output.out.print(_batches(costs))
    for row in failed:
        text = f"batch {row['batch']} does not fit: {row['why']}"
        output.out.print(Text(text, style="red"), soft_wrap=True)
    for line in _how(costs):
        output.out.print(line)
    for note in model.notes:
        output.out.print(Text(note, style="dim"))
    if totals:
        output.out.print()
        output.out.print(_totals(totals))
    if costs and ops:
        output.out.print()
        output.out.print(_ops(costs[-1], ops))


def _document(
    what: str,
    on: str,
    model: CostModel,
    costs: Sequence[StepCost],
    failed: Sequence[dict[str, Any]],
    totals: Sequence[Total],
) -> dict[str, Any]:
    return {
        "model": what,
        "device": on,
        "name": model.caps.name,
        "derived": model.derived,
        "why": model.why,
        "notes": list(model.notes),
        "rates": model.rates.to_json(),
        "overheads": model.overheads.to_json(),
        "batches": [row.to_json() for row in costs],
        "failed": list(failed),
        "trainings": [row.to_json() for row in totals],
    }


def _how(costs: Sequence[StepCost]) -> list[Text]:
    """How the rows were derived, once for all batches with the same words."""
    batches: dict[str, list[str]] = {}
    for row in costs:
        batches.setdefault(f"{_derived(row)} {_error(row.error)}", []).append(f"{row.batch:,}")
    return [Text(f"batch {', '.join(numbers)}: {words}") for words, numbers in batches.items()]


def _derived(row: StepCost) -> str:
    """How a prediction was derived; of a measured step with the times of its runs, and whether they were disturbed."""
    if not row.runs:
        return f"{DERIVED[row.derived]}."
    # Tables without the names of runs have only the fastest tenth of a disturbed run.
    unnamed = {False: "a table without the names of runs", True: "a table without the names of runs, fastest tenth"}
    times = ", ".join(f"{_ms(run.seconds)} ms in {run.run or unnamed[run.disturbed]}" for run in row.runs)
    noisy = sum(run.disturbed for run in row.runs)
    which = "this run" if len(row.runs) == 1 else f"{noisy} of these runs"
    disturbed = f" Other processes disturbed {which}: a quiet device may be faster." if noisy else ""
    return f"{DERIVED[row.derived]} ({times}).{disturbed}"


def _error(error: HeldOut) -> str:
    where = f" of {error.device}" if error.device else " of this device"
    why = ", because too few of this device are known" if error.device and error.kind != "another_device" else ""
    return (
        f"Error on {output.count(error.cases, 'held-out case')}{where}{why} ({KINDS.get(error.kind, error.kind)}): "
        f"{error.median:.1%} in the median, at most {error.p90:.0%} in nine of ten"
    )


def _each(seconds: float) -> str:
    return f"{_ms(seconds)} ms" if seconds < 1 else output.duration(seconds)


def _joules(joules: float) -> str:
    return f"{joules:,.0f} J" if joules >= 100 else f"{joules:.3g} J"


def _part(share: float) -> str:
    """The share of a battery. A small one is not none."""
    if 0 < share < 0.001:
        return "<0.1%"
    return f"{share:.1%}" if share < 0.1 else f"{share:.0%}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.3g}" if seconds < 1 else f"{seconds * 1e3:,.0f}"


def _batches(costs: Sequence[StepCost]) -> Any:
    joules = all(row.joules for row in costs)
    columns = [
        Column("batch"),
        Column("ms per step"),
        Column("interval"),
        Column("samples/s", drop=3),
        *([Column("J per step")] if joules else []),
        Column("memory"),
        Column("launches", drop=2),
        Column("bound by"),
        Column("measured ops", drop=1),
    ]
    rows = [
        (
            f"{row.batch:,}",
            _ms(row.seconds),
            f"{_ms(row.low_s)} to {_ms(row.high_s)}",
            f"{row.batch / row.seconds:,.0f}",
            *([f"{sum(rail.joules for rail in row.joules if not rail.part_of):.3g}"] if joules else []),
            output.size(row.bytes),
            f"{row.launches:,}",
            row.bound,
            f"{row.measured:.0%}",
        )
        for row in costs
    ]
    return table(columns, rows)


def _totals(totals: Sequence[Total]) -> Any:
    columns = [
        Column("batch"),
        Column("steps"),
        Column("whole training"),
        Column("interval"),
        Column("energy"),
        Column("battery"),
    ]
    rows = [
        (
            f"{row.batch:,}",
            f"{row.steps:,}",
            output.duration(row.seconds),
            f"{output.duration(row.low_s)} to {output.duration(row.high_s)}",
            "" if row.joules is None else _joules(row.joules),
            "" if row.battery is None else _part(row.battery),
        )
        for row in totals
    ]
    return table(columns, rows)


def _ops(row: StepCost, count: int) -> Any:
    whole = [rail.rail for rail in row.joules if not rail.part_of]

    def line(op: OpLine) -> tuple[str, ...]:
        cost = op.cost
        return (
            op.path or "(model)",
            op.op,
            op.phase,
            _ms(cost.seconds),
            f"{_ms(cost.low_s)} to {_ms(cost.high_s)}",
            f"{cost.seconds / max(row.ops_s, 1e-12):.1%}",
            *([f"{sum(op.joules[name] for name in whole) * 1e3:.3g}"] if whole else []),
            cost.bound,
            cost.source,
        )

    columns = [
        Column("layer", name_of=True, least=24),
        Column("op", name_of=True, least=12),
        Column("phase", drop=2),
        Column("ms"),
        Column("interval", drop=3),
        Column("share"),
        *([Column("mJ")] if whole else []),
        Column("bound by", drop=1),
        Column("from"),
    ]
    title = f"ops of a step with batch {row.batch:,}"
    return table(columns, [line(op) for op in row.ops[:count]], title=title)


def present_rest(what: str, rest: RestCost, json: bool) -> None:
    if json:
        output.print_json({"what": what, "rest": rest.to_json()})
        return
    unit = rest.unit if rest.count == 1 else f"{rest.unit}s"
    rows: list[tuple[str, str | Text]] = [
        ("rest of", what),
        ("left", f"{rest.count:,.12g} {unit} of {_each(rest.each_s)}"),
        ("time", f"{output.duration(rest.seconds)} ({output.duration(rest.low_s)} to {output.duration(rest.high_s)})"),
    ]
    for rail in rest.rails:
        how = "" if rail.source in ("measured", "given") else f", {rail.source}"
        rows.append(
            (
                "energy",
                f"{_joules(rail.joules)} ({_joules(rail.low_joules)} to {_joules(rail.high_joules)}), {rail.rail}{how}",
            )
        )
    if rest.why_no_joules:
        rows.append(("energy", f"not known: {rest.why_no_joules}"))
    if rest.battery is not None:
        rows.append(("battery", _part(rest.battery)))
    output.out.print(output.grid(rows))
    if rest.disturbed:
        output.out.print("Other processes disturbed this run: on a quiet device the rest takes less time.")
    output.out.print(_error(rest.error), highlight=False)

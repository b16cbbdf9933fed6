"""Prints what `federate` reports: rounds, devices, and the cost to reach a target."""

from __future__ import annotations

from rich.console import RenderableType

from handheld.cli import output
from handheld.cli.tables import Column, table
from handheld.errors import ResultsError
from handheld.federated.record import Record, Round, by_device, cost_to_target, quality_under_budget, spent


def rounds_table(record: Record) -> RenderableType:
    """One row per round: what it reached, and what all rounds until then cost."""
    names = [name for name in ("accuracy", "loss", "train-loss") if any(name in one.metrics for one in record.rounds)]
    others = sorted({name for one in record.rounds for name in one.metrics} - set(names))
    columns = [
        Column("round"),
        *(Column(name) for name in names),
        Column("updates"),
        Column("dropped"),
        Column("seconds"),
        Column("joules", drop=1),
        Column("sent", drop=2),
        *(Column(name, drop=3) for name in others),
    ]
    rows = []
    for one, cost in zip(record.rounds, spent(record), strict=True):
        rows.append(
            (
                str(one.number),
                *(_value(one, name) for name in names),
                str(sum(visit.trained for visit in one.visits)),
                str(sum(not visit.trained for visit in one.visits)),
                output.duration(cost.seconds),
                "-" if not cost.joules else output.number(cost.joules),
                output.size(cost.bytes),
                *(_value(one, name) for name in others),
            )
        )
    return table(columns, rows)


def by_device_table(record: Record) -> RenderableType:
    """One row per kind of device."""
    columns = [
        Column("device", name_of=True),
        *map(Column, ("nodes", "updates", "samples", "seconds", "joules", "peak", "°C")),
    ]
    rows = []
    for device, facts in by_device(record).items():
        rows.append(
            (
                device,
                str(facts["nodes"]),
                str(facts["updates"]),
                str(facts["samples"]),
                "-" if facts["seconds"] is None else output.duration(facts["seconds"]),
                "-" if facts["joules"] is None else output.number(facts["joules"]),
                "-" if facts["peak_bytes"] is None else output.size(int(facts["peak_bytes"])),
                "-" if facts["celsius"] is None else f"{facts['celsius']:.0f}",
            )
        )
    return table(columns, rows)


def target_rows(record: Record, metric: str, target: float | None) -> dict[str, str]:
    """What it took to reach a target."""
    if target is None:
        return {}
    cost = cost_to_target(record, metric, target)
    if cost is None:
        return {f"{metric} {target:g}": "not reached"}
    joules = "joules not measured" if cost.joules is None else f"{output.number(cost.joules)} J"
    return {
        f"{metric} {target:g}": f"{output.count(cost.rounds, 'round')}, {output.duration(cost.seconds)}, {joules}, "
        f"{output.size(cost.bytes)} sent"
    }


def budget_rows(record: Record, metric: str, budget: str | None) -> dict[str, str]:
    """The best that was reached for at most an amount of something, such as `seconds=60`."""
    if budget is None:
        return {}
    what, _, amount = budget.partition("=")
    try:
        most = float(amount)
    except ValueError:
        raise ResultsError(f"--budget {budget} is not possible. Try: --budget seconds=60") from None
    value = quality_under_budget(record, metric, what, most)
    return {
        f"{what} {amount}": "no round fits into it, or it was not measured"
        if value is None
        else f"{metric} {value:.4g}"
    }


def _value(one: Round, name: str) -> str:
    return f"{one.metrics[name]:.4g}" if name in one.metrics else "-"

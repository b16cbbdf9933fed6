"""The record of a federated training as a page: what it reached, and its cost in rounds, time, energy and bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from handheld.federated.protocols import costs, metric_of, qualities
from handheld.federated.record import BUDGETS, COMPLETE, Record, by_device, spent
from handheld.report import charts
from handheld.report.charts import Axis, Series
from handheld.report.document import Payload, write_document
from handheld.report.page import Block, Cell, Column, Tile, beside, callout, listing, page, section, table, text, tiles
from handheld.units import count

MIB = 2**20


def write_page(record: Record, path: Path) -> None:
    write_document(federated_page(record), path)


def federated_page(record: Record) -> Payload:
    """The payload of the page."""
    metric = metric_of(record)
    values = [one.metrics[metric] for one in record.rounds if metric in one.metrics]
    best = (min(values) if metric == "loss" else max(values)) if values else None
    rounds = max((one.number for one in record.rounds), default=0)
    dropped = sum(not visit.trained for one in record.rounds for visit in one.visits)
    return page(
        "Federated training",
        [
            *(
                []
                if record.status == COMPLETE
                else [callout("note", "This training is not complete", _unfinished(record))]
            ),
            tiles(
                Tile(f"best {metric}", "not measured" if best is None else f"{best:.4g}"),
                Tile("rounds", float(rounds)),
                Tile("updates averaged", float(sum(visit.trained for one in record.rounds for visit in one.visits))),
                Tile("updates dropped or lost", float(dropped)),
            ),
            section("What it reached, and what it cost", *_reached(record, metric)),
            *([section("By kind of device", *drawn)] if (drawn := list(_by_class(record, metric))) else []),
            section("Cost to reach a target", *_targets(record, metric)),
            section("Quality under a budget", *_budgets(record, metric)),
            section("Devices", _devices(record)),
            section("Rounds", _rounds(record), *_problems(record)),
        ],
        device=", ".join(by_device(record)) or "no device has trained yet",
        date=record.begun,
        about=f"{record.settings.get('strategy', '')} over {count(rounds, 'round')}. Seconds are those of the server; "
        "joules and bytes are sums over the devices.",
        facts={"model": record.model, "handheld": record.version, **_settings(record)},
    )


def _settings(record: Record) -> dict[str, str]:
    return {name.replace("_", " "): str(value) for name, value in record.settings.items() if value is not None}


def _unfinished(record: Record) -> str:
    wanted = record.settings.get("rounds")
    done = max((one.number for one in record.rounds), default=0)
    return f"It has {done} of {wanted} rounds. The next start of the same app continues it."


def _reached(record: Record, metric: str) -> Iterator[Block]:
    costs = spent(record)
    drawn = []
    axes = {
        "rounds": Axis("rounds"),
        "seconds": Axis("time", "s"),
        "joules": Axis("energy of all devices", "J"),
        "bytes": Axis("bytes sent", "MiB"),
    }
    for budget in BUDGETS:
        pairs = [
            (float(cost.of(budget) or 0) / (MIB if budget == "bytes" else 1), one.metrics[metric])
            for one, cost in zip(record.rounds, costs, strict=True)
            if metric in one.metrics and cost.of(budget) is not None
        ]
        if len(pairs) > 1 and (budget != "joules" or pairs[-1][0] > 0):
            drawn.append(
                charts.lines(
                    f"{metric} over {axes[budget].label}",
                    [Series(metric, [y for _, y in pairs], [x for x, _ in pairs])],
                    axes[budget],
                    Axis(metric),
                )
            )
    yield beside(*drawn) if drawn else text("There is no round with a measured result yet.")
    if all(cost.joules in (None, 0.0) for cost in costs):
        yield text("Energy was not measured: a device of this training has no power sensor that can be read.")


def _by_class(record: Record, metric: str) -> Iterator[Block]:
    """The metric against what each kind of device had spent, one line per kind."""
    rounds = [one for one in record.rounds if metric in one.metrics]
    spending = {one.number: by_device(record, one.number) for one in rounds}
    kinds = list(by_device(record))
    axes = {"seconds": Axis("training time", "s"), "joules": Axis("energy", "J"), "bytes": Axis("bytes sent", "MiB")}
    drawn = []
    for budget, axis in axes.items():
        lines = []
        for kind in kinds:
            pairs = [
                (float(value) / (MIB if budget == "bytes" else 1), one.metrics[metric])
                for one in rounds
                if (value := spending[one.number].get(kind, {}).get(budget)) is not None
            ]
            if len(pairs) > 1:
                lines.append(Series(kind, [y for _, y in pairs], [x for x, _ in pairs]))
        if lines:
            drawn.append(charts.lines(f"{metric} over {axis.label}", lines, axis, Axis(metric)))
    if len(kinds) < 2 or not drawn:
        return
    yield text("Against what each kind of device had spent until then, summed over its devices.")
    yield beside(*drawn)


def _targets(record: Record, metric: str) -> Iterator[Block]:
    """What each target took, and which part of it each kind of device spent."""
    rows: list[list[Cell]] = []
    parts: list[list[Cell]] = []
    for level, cost in costs(record, metric).items():
        rows.append([f"{level:g}", float(cost.rounds), cost.seconds, cost.joules, cost.bytes / MIB])
        for device, facts in by_device(record, cost.rounds).items():
            parts.append(
                [f"{level:g}", device, facts["updates"], facts["seconds"], facts["joules"], (facts["bytes"] or 0) / MIB]
            )
    if not rows:
        yield text("No target was reached yet.")
        return
    spending = [Column("time", "s"), Column("energy", "J"), Column("sent", "MiB")]
    yield table([Column(metric), Column("rounds"), *spending], rows, note="A dash: not measured.")
    if len({part[1] for part in parts}) > 1:
        yield text("Of that, by kind of device. Its time is that of training, summed over its devices.")
        yield table([Column(metric), Column("device"), Column("updates"), *spending], parts)


def _budgets(record: Record, metric: str) -> Iterator[Block]:
    """The best that was reached for a quarter, a half, three quarters and all of what was spent."""
    units = {"rounds": ("rounds", 1), "seconds": ("s", 1), "joules": ("J", 1), "bytes": ("MiB sent", MIB)}
    tables = []
    for budget, amounts in qualities(record, metric).items():
        unit, size = units[budget]
        rows: list[list[Cell]] = [[f"{amount / size:,.4g} {unit}", value] for amount, value in amounts.items()]
        tables.append(table([Column("for at most"), Column(metric)], rows))
    if not tables:
        yield text("Nothing was spent yet.")
        return
    yield text("The best that was reached for a quarter, a half, three quarters and all of what the training spent.")
    yield beside(*tables)


def _devices(record: Record) -> Block:
    rows: list[list[Cell]] = []
    for device, facts in by_device(record).items():
        samples, seconds, peak = facts["samples"] or 0, facts["seconds"], facts["peak_bytes"]
        rows.append(
            [
                device,
                float(facts["nodes"] or 0),
                float(facts["updates"] or 0),
                float(samples),
                None if not seconds else samples / seconds,
                seconds,
                facts["joules"],
                None if peak is None else peak / MIB,
                facts["celsius"],
            ]
        )
    columns = [
        Column("device"),
        Column("nodes"),
        Column("updates"),
        Column("samples"),
        Column("speed", "samples/s"),
        Column("training", "s"),
        Column("energy", "J"),
        Column("memory", "MiB"),
        Column("hottest", "°C"),
    ]
    return table(columns, rows, note="A dash: not measured.") if rows else text("No device has trained yet.")


def _rounds(record: Record) -> Block:
    names = sorted({name for one in record.rounds for name in one.metrics})
    rows: list[list[Cell]] = []
    for one, cost in zip(record.rounds, spent(record), strict=True):
        trained = sum(visit.trained for visit in one.visits)
        rows.append(
            [
                str(one.number),
                *(one.metrics.get(name) for name in names),
                float(trained),
                float(len(one.visits) - trained),
                float(sum(visit.samples for visit in one.visits if visit.trained)),
                cost.seconds,
                one.joules,
                one.bytes / MIB,
            ]
        )
    columns = [
        Column("round"),
        *map(Column, names),
        Column("updates"),
        Column("dropped"),
        Column("samples"),
        Column("until", "s"),
        Column("energy", "J"),
        Column("sent", "MiB"),
    ]
    return table(columns, rows)


def _problems(record: Record) -> Iterator[Block]:
    lost = [
        f"round {one.number}, node {visit.node}: {visit.outcome}"
        for one in record.rounds
        for visit in one.visits
        if not visit.trained
    ]
    over = [f"round {one.number}, node {node}: {why}" for one in record.rounds for node, why in one.passed_over.items()]
    refused = [f"node {node}: {why}" for node, why in record.refused.items()]
    for title, items in (
        ("Updates that were not averaged", lost),
        ("Devices that were not asked", over),
        ("Devices that cannot take part", refused),
        ("Notes", record.notes),
    ):
        if items:
            yield text(title + ":")
            yield listing(items)

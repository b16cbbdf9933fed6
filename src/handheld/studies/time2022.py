"""Two sections of the 2022 study's page: where the time of a step goes, and the cost of transfers and launches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from handheld.report import charts
from handheld.report.charts import Axis, Series
from handheld.report.page import Block, Cell, Column, beside, group, section, table
from handheld.studies import derived2022 as derived
from handheld.studies import paper2022 as paper
from handheld.studies.ways2022 import APART, OPTIMISED

US = 1e6
Row = dict[str, Any]


def where(result: Row) -> Block:
    """Where the time of a step goes, with tensors that are moved for every op and with tensors that stay."""
    names = [name for name in paper.BACKWARD_US if name in result["models"]]
    return section(
        "Where the time goes", beside(_apart(result, names), _resident(result, names)), _shares(result, names)
    )


def _apart(result: Row, names: Sequence[str]) -> Block:
    lines = derived.fits(result)
    cuts = {
        name: derived.parts(result["models"][name]["ways"][APART[1]], lines)
        for name in names
        if APART[1] in result["models"][name]["ways"]
    }
    known = all(cut and cut["latency"] is not None for cut in cuts.values())
    parts = (
        [("transfers: latency", "latency", 1), ("transfers: bandwidth", "bandwidth", 4)]
        if known
        else [("transfers", "transfers", 1)]
    )
    shown = [name for name in names if cuts.get(name)]
    return charts.bars(
        "Per-op: the tensors of every op are moved",
        [name.upper() for name in shown],
        [
            Series(label, _us(cuts, shown, key), colour=colour)
            for label, key, colour in (*parts, ("launch latency", "launch", 7), ("kernels", "kernels", 2))
        ],
        Axis("step", "µs"),
        stacked=True,
        note=f"In the paper transfers take {paper.TRANSFER_SHARE:.0%} of the time, "
        f"{paper.TRANSFERS_TO_COMPUTE[0]:.0f} to {paper.TRANSFERS_TO_COMPUTE[1]:.0f} times "
        "the compute time.",
    )


def _resident(result: Row, names: Sequence[str]) -> Block:
    stay = {
        name: derived.resident_parts(result["models"][name]["ways"][OPTIMISED])
        for name in names
        if OPTIMISED in result["models"][name]["ways"]
    }
    kept = [name for name in names if stay.get(name)]
    return charts.bars(
        "Resident: everything stays on the device",
        [name.upper() for name in kept],
        [
            Series("transfers", _us(stay, kept, "transfers"), colour=1),
            Series("launches and host", _us(stay, kept, "launch"), colour=7),
            Series("kernels", _us(stay, kept, "kernels"), colour=2),
        ],
        Axis("step", "µs"),
        stacked=True,
        note="Transfers are the batch and the loss. Kernels and transfers by the device's clock.",
    )


def _shares(result: Row, names: Sequence[str]) -> Block:
    shares = derived.shares(result)
    rows = [
        [
            name.upper(),
            *_facts(result["models"][name]["ways"]),
            _percent(shares[name]["per_op"]),
            shares[name]["to_compute"],
            _percent(shares[name]["resident"]),
            _percent(shares[name]["omitted"]),
        ]
        for name in names
    ]
    return table(
        [
            Column("model"),
            Column("transfers", "per step", "per-op"),
            Column("moved", "kB", "per-op"),
            Column("launches", "per step", "per-op"),
            Column("share of transfers", "%", "per-op"),
            Column("transfers over kernels", "times", "per-op"),
            Column("share of transfers", "%", "resident"),
            Column("gain if nothing moved", "%", "resident"),
        ],
        rows,
        caption="Share of transfers in a step",
        note=f"Paper: {paper.TRANSFER_SHARE:.0%}. Goal of the resident placement: at most {paper.GOAL_SHARE:.0%}.",
    )


def _us(rows: Mapping[str, Row | None], names: Sequence[str], key: str) -> list[float | None]:
    return [None if row is None else row[key] * US for row in (rows[name] for name in names)]


def _facts(ways: Mapping[str, Row]) -> list[Cell]:
    if APART[1] not in ways:
        return [None, None, None]
    facts = ways[APART[1]]["facts"]
    return [
        facts["uploads"] + facts["downloads"],
        (facts["upload_bytes"] + facts["download_bytes"]) / 1e3,
        facts["launches"],
    ]


def _percent(share: float | None) -> float | None:
    return None if share is None else share * 100


def transfers(result: Row) -> Block:
    """Time by size of single transfers, the fitted lines, and the cost of a launch."""
    tables = group(_fitted(result), _launches(result))
    return section("Latency or bandwidth?", beside(_times(result), tables))


def _times(result: Row) -> Block:
    series = []
    for colour, (name, words) in enumerate(derived.DIRECTIONS.items()):
        rows = result["transfers"].get(name, ())
        sizes = [float(row["bytes"]) for row in rows]
        series.append(
            Series(
                words,
                [row["median"] * US for row in rows],
                x=sizes,
                low=[row["p25"] * US for row in rows],
                high=[row["p75"] * US for row in rows],
                colour=colour,
            )
        )
        line = derived.fits(result)[name]
        if line:
            inside = [size for size in sizes if size <= line["to_bytes"]]
            series.append(
                Series(
                    f"{words}, fitted",
                    [(line["latency_s"] + size / line["bytes_s"]) * US for size in inside],
                    x=inside,
                    pale=True,
                    colour=colour,
                )
            )
    return charts.lines(
        "Time of a transfer, with waiting for it",
        series,
        Axis("size", "B", log=True),
        Axis("time", "µs", log=True),
        note="Fitted: latency + bytes / bandwidth, by relative error.",
    )


def _fitted(result: Row) -> Block:
    fitted = [
        (f"{words}, up to {line['to_bytes'] / 2**20:.3g} MiB", line)
        for lines in (derived.fits(result), derived.whole_fits(result))
        for name, words in derived.DIRECTIONS.items()
        if (line := lines[name])
    ]
    return table(
        [
            Column("transfer"),
            Column("latency", "µs"),
            Column("±", "µs"),
            Column("bandwidth", "GB/s"),
            Column("±", "GB/s"),
            Column("off by", "% rms"),
        ],
        [
            [
                words,
                line["latency_s"] * US,
                line["latency_error_s"] * US,
                line["bytes_s"] * 1e-9,
                line["bytes_s_error"] * 1e-9,
                line["rms_error"] * 100,
            ]
            for words, line in dict(fitted).items()
        ],
        caption="The fit, with its standard errors",
        note="A line with a large error is not a good description: caches and the driver's copies bend the curve.",
    )


def _launches(result: Row) -> Block:
    launches = result["launches"]
    names = {
        "enqueue": "for the host to enqueue it",
        "device": "to run it after another",
        "round_trip": "to enqueue it and wait for it",
    }
    return table(
        [Column("an empty kernel"), Column("time", "µs"), Column("spread", "%")],
        [[names[name], cost["median"] * US, cost["spread"] * 100] for name, cost in launches.items()],
        caption="Launches",
    )

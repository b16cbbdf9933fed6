"""Prints the result of `handheld plan`, and says what is known about its time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.text import Text

from handheld.cli import output
from handheld.cli.tables import Column, table
from handheld.device import DeviceCaps
from handheld.measure.ceilings import stored
from handheld.profile.need import Need
from handheld.run.fitting import MOST

CELL = 12  # The width of a column with its gap: `1,023.9 MiB`.
NAME = 24  # The width of the names with their gap.


def times(caps: DeviceCaps, needs: Sequence[Need]) -> dict[str, Any] | None:
    """The measured ceilings of the device and the least time of a step that follows from them, or None."""
    known = stored(caps)
    if known is None:
        return None
    rate, bandwidth = known.fp32.median, known.bandwidth
    return {
        "measured": known.date,
        "flops_per_s": rate,
        "bytes_per_s": bandwidth,
        "disturbed": known.disturbed or None,
        # Ceilings that are too low give no bound.
        "at_least_s": {}
        if known.disturbed
        else {need.batch: max(need.flops / rate, need.moved_bytes / bandwidth) for need in needs},
    }


def present(result: dict[str, Any], step_file: bool) -> None:
    available = output.size(result["available_bytes"])
    lines = [
        ("model", result["model"]),
        ("device", f"{result['name']}, {available} may be used"),
        ("graphs", f"{', '.join(result['graphs'])}, {result['precision']}"),
    ]
    output.out.print(output.grid(lines))
    for part in _parts(result["batches"]):
        output.out.print()
        output.out.print(_table(part))
    for row in result["batches"]:
        if not row["fits"]:
            style = "yellow" if row["fitted"] else "red"
            output.out.print(Text(f"batch {row['batch']} {_misfit(row)}", style=style), soft_wrap=True)
    output.out.print()
    output.out.print(Text(_largest(result, step_file), style="bold"))
    output.out.print(Text(_time(result["time"])))


def _parts(rows: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """As many batches per table as the terminal has room for."""
    room = max((output.out.width - NAME) // CELL, 1)
    for first in range(0, len(rows), room):
        yield rows[first : first + room]


def _table(rows: list[dict[str, Any]]) -> Any:
    columns = [Column("batch", name_of=True), *(Column(f"{row['batch']:,}") for row in rows)]
    names = [name for name in rows[0]["by_category"] if any(row["by_category"][name] for row in rows)]
    lines = [(name, *(output.size(row["by_category"][name]) for row in rows)) for name in names]
    lines += [
        ("total", *(output.size(row["bytes"]) for row in rows)),
        ("fits", *("yes" if row["fits"] else "no" for row in rows)),
        *([("to fit", *map(_again, rows))] if any(row["fitted"] for row in rows) else []),
        ("launches per step", *(f"{row['launches']:,}" for row in rows)),
        *([("tuned ops", *(f"{row['tuned']:,}" for row in rows))] if any(row["tuned"] for row in rows) else []),
        ("operations per step", *(_operations(row["flops"]) for row in rows)),
    ]
    styles = ["bold" if line[0] == "total" else "" for line in lines]
    return table(columns, lines, styles=styles)


def _misfit(row: dict[str, Any]) -> str:
    """Why a batch does not fit as it is, and what fitting costs."""
    if row["fitted"]:
        return f"does not fit as it is: {row['why']}. To fit: {row['fitted']['text']}"
    return f"does not fit: {row['why']}" + (f". {row['why_never']}" if row["why_never"] else "")


def _again(row: dict[str, Any]) -> str:
    if row["fits"] or not row["fitted"]:
        return "-" if row["fits"] else "does not"
    parts, values = row["fitted"]["micro_batches"], output.count(row["fitted"]["values"], "value")
    return output.count(parts, "part") if parts > 1 else f"{values} again"


def _operations(count: float) -> str:
    for unit in ("", "k", "M", "G"):
        if count < 1000:
            return f"{count:.3g} {unit}FLOP"
        count /= 1000
    return f"{count:,.3g} TFLOP"


def _largest(result: dict[str, Any], step_file: bool) -> str:
    found = result["largest"]
    if found is None:
        return "The largest batch that fits was not looked for (--seconds 0)"
    plans = output.count(len(found["tried"]), "plan")
    if step_file:
        batch = found["batch"]
        fits = f"the largest that fits is {batch}" if batch else "none fits"
        return f"A step file has only the batches that it was packaged with: {fits}. Try: handheld package --batch N,N"
    grows = "" if found["grows"] else ". A larger batch needed less memory than a smaller one, so others may fit too"
    if not found["batch"]:
        return f"No batch fits ({plans}){grows}. Try: --precision half, or a smaller model"
    if found["exact"]:
        more = "" if all(row["fits"] for row in result["batches"]) else ". handheld fit looks for larger ones"
        return f"The largest batch that fits is {found['batch']:,} as it is ({plans}){grows}{more}"
    if found["batch"] >= MOST:
        return f"A batch of {found['batch']:,} fits, and no larger one is tried ({plans})"
    above = min((p["batch"] for p in found["tried"] if not p["fits"] and p["batch"] > found["batch"]), default=None)
    more = "larger ones were not tried" if above is None else f"{above:,} does not; those between were not tried"
    return f"A batch of {found['batch']:,} fits; {more} ({plans}){grows}. Try: --seconds with more time"


def _time(known: dict[str, Any] | None) -> str:
    if known is None:
        return "No time is predicted: this device's ceilings have not been measured here (handheld doctor --ceilings)"
    if known["disturbed"]:
        return f"No time is predicted: the measured ceilings of this device are {known['disturbed']}"
    bounds = ", ".join(f"{seconds * 1e3:,.3g} ms at batch {batch:,}" for batch, seconds in known["at_least_s"].items())
    return (
        f"A step takes at least {bounds}: its operations at {known['flops_per_s'] / 1e9:,.3g} GFLOP/s or its bytes at "
        f"{known['bytes_per_s'] / 1e9:,.3g} GB/s, the ceilings measured on {known['measured'][:10]}. A real step takes "
        "longer; handheld profile measures it"
    )

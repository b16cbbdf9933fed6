"""The page of a results folder: what trains here, how fast, with how much memory and energy, and what does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from handheld.bench.compare import disturbed
from handheld.bench.folder import Results
from handheld.bench.shapes import Line, Row
from handheld.report import charts
from handheld.report.charts import Axis, Series
from handheld.report.document import Payload
from handheld.report.page import Block, Cell, Column, Tile, beside, busy, listing, page, section, table, text, tiles
from handheld.units import count

PAGE = "bench.html"
MIB = 2**20


def bench_page(results: Results, lines: Sequence[Line]) -> Payload:
    """The payload of the page. `lines` is the report card of the rows."""
    # Runs are in random order; the page is in that of workloads and batches.
    ordered = sorted(results.rows, key=lambda row: (row["workload"], row["batch"] or 0, row["device"]))
    info, rows = results.info, [row for row in ordered if row["status"] == "trained"]
    failed = [row for row in ordered if row["status"] != "trained"]
    machine, devices = info.get("machine") or {}, info.get("devices") or {}
    trains = sum(bool(line["trains"]) for line in lines)
    return page(
        "What trains on this machine",
        [
            busy(disturbed(results)),
            tiles(
                Tile("workloads that train", f"{trains} of {len(lines)}"),
                Tile("runs", float(len(results.rows))),
                Tile("runs that did not train", float(len(failed))),
            ),
            section("Speed", *_by_batch(rows, "Samples per second", "samples_s", Axis("samples", "1/s", log=True))),
            section("Memory and energy", *_costs(rows)),
            section("Every run", _runs(rows), *_failed(failed)),
            *([section("Notes", listing(results.notes))] if results.notes else []),
        ],
        device=", ".join(f"{spec} ({caps.get('name', 'not known')})" for spec, caps in devices.items()) or "not known",
        date=str(info.get("created", "not known"))[:16].replace("T", " "),
        about=f"{count(len(rows), 'run')} that trained, each in a process of its own, in random order.",
        facts={
            "machine": count(int(machine.get("cores") or 1), "core"),
            "handheld": str(info.get("handheld", "not known")),
            "versions": ", ".join(f"{name} {version}" for name, version in (info.get("versions") or {}).items()),
        },
    )


def _batch(row: Row) -> str:
    return "own batch" if row["batch"] is None else f"batch {row['batch']}"


def _by_batch(
    rows: Sequence[Row], title: str, key: str, y: Axis, value: Callable[[float], float] = lambda v: v
) -> Iterator[Block]:
    """A chart per batch size: a bar per workload and device."""
    drawn = []
    for batch in dict.fromkeys(_batch(row) for row in sorted(rows, key=lambda row: row["batch"] or 0)):
        chosen = [row for row in rows if _batch(row) == batch and row.get(key) is not None]
        names = list(dict.fromkeys(row["workload"] for row in chosen))
        devices = list(dict.fromkeys(row["device"] for row in rows))
        at = {(row["workload"], row["device"]): value(float(row[key])) for row in chosen}  # type: ignore[literal-required]
        series = [
            Series(device, [at.get((name, device)) for name in names], colour=n)
            for n, device in enumerate(devices)
            if any((name, device) in at for name in names)
        ]
        if series:
            drawn.append(charts.bars(f"{title}, {batch}", names, series, y))
    yield beside(*drawn) if drawn else text("Not measured: no run trained long enough.")


def _costs(rows: Sequence[Row]) -> Iterator[Block]:
    yield from _by_batch(rows, "Memory", "planned_bytes", Axis("planned", "MiB"), lambda v: v / MIB)
    if any(row.get("joules_sample") is not None for row in rows):
        yield from _by_batch(rows, "Energy per sample", "joules_sample", Axis("energy", "J", log=True))
    else:
        yield text("Energy was not measured: no power sensor could be read.")


def _runs(rows: Sequence[Row]) -> Block:
    cells: list[list[Cell]] = [
        [
            row["workload"],
            row["device"],
            str(row["batch"] or "own"),
            row.get("samples_s"),
            row.get("step_ms"),
            _mib(row.get("planned_bytes") or row.get("peak_bytes")),
            row.get("joules_sample"),
            None if (busy := row.get("device_busy")) is None else 100 * busy,
            row.get("gflops"),
            row.get("others_cores"),
            row.get("arithmetic") or "",
        ]
        for row in rows
    ]
    columns = [
        *(Column(name) for name in ("workload", "on", "batch")),
        Column("speed", "samples/s"),
        Column("step", "ms"),
        Column("memory", "MiB"),
        Column("energy", "J per sample"),
        Column("device busy", "%"),
        Column("work", "GFLOP/s"),
        Column("others", "cores"),
        Column("arithmetic"),
    ]
    return table(columns, cells, note="A dash: not measured. Others: cores that other processes held.")


def _mib(nbytes: float | None) -> float | None:
    return None if nbytes is None else nbytes / MIB


def _failed(rows: Sequence[Row]) -> Iterator[Block]:
    if rows:
        cells = [[row["workload"], row["device"], _batch(row), row["status"], row["reason"]] for row in rows]
        yield table(["workload", "on", "batch", "status", "reason"], cells, caption="What did not train")

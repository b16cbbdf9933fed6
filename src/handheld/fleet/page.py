"""The page of a fleet: which devices train what, and how they rank by time, energy and memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from handheld.bench.compare import disturbed
from handheld.bench.shapes import Row
from handheld.fleet.figures import Part
from handheld.fleet.folder import Summary
from handheld.fleet.run import DONE
from handheld.report import charts
from handheld.report.charts import Axis, Series
from handheld.report.document import Payload
from handheld.report.page import (
    NOTHING,
    Block,
    Cell,
    Column,
    Tile,
    beside,
    callout,
    listing,
    page,
    section,
    table,
    text,
    tiles,
)
from handheld.units import count

MIB = 2**20
#: What the page says for each way in which a run may end.
WORDS = {"trained": "ok", "does not fit": "does not fit", "out of memory": "does not fit"}
TITLES = {"profile": "A profile", "tune": "Tuning", "doctor": "Op cases", "study das2022": "The study das2022"}

Key = tuple[str, str, int | None]
NOT_RUN = "–"


def fleet_page(summary: Summary, parts: Sequence[Part]) -> Payload:
    """The payload of the page."""
    rows = {(part.name, _key(row)): row for part in parts for row in part.rows}
    keys = sorted({key for _, key in rows}, key=lambda key: (key[0], key[1], key[2] or 0))
    done = sum(part.state == DONE for part in parts)
    everywhere = sum(
        all((row := rows.get((part.name, key))) is not None and row["status"] == "trained" for part in parts)
        for key in keys
    )
    what = summary.get("what", "bench")
    shown = [Tile("devices", float(len(parts))), Tile("devices that are done", f"{done} of {len(parts)}")]
    if keys:
        shown.append(Tile("workloads that train on all", f"{everywhere} of {len(keys)}"))
    return page(
        f"{TITLES.get(what, 'What trains where')}, on {count(len(parts), 'device')}",
        [
            _busy(parts),
            tiles(*shown),
            *([section("What trains where", _where(keys, parts, rows), *_reasons(parts))] if keys else []),
            *([section("Ranking", *_ranking(keys, parts, rows))] if keys else []),
            *_figures(parts),
            section("Devices", _devices(parts), *_notes(parts)),
        ],
        device=", ".join(part.name for part in parts),
        date=str(summary.get("created", "not known"))[:16].replace("T", " "),
        about="Each device ran the same command in its own process. A dash: not measured.",
        facts={
            "handheld": str(summary.get("handheld", "not known")),
            **({"command": " ".join(["handheld", *summary["command"]])} if summary.get("command") else {}),
        },
    )


def _busy(parts: Sequence[Part]) -> Block:
    """A warning, if other processes held cores while a device was measured: also another device of the fleet."""
    busy = [part.name for part in parts if part.results is not None and disturbed(part.results)]
    if not busy:
        return NOTHING
    return callout(
        "bad",
        "Other processes were busy",
        f"While {', '.join(busy)} worked, other processes held more than a tenth of the cores, so times are too long. "
        "Devices of one machine disturb each other, unless they share a slot in the fleet file.",
    )


def _key(row: Row) -> Key:
    return row["workload"], row["size"], row["batch"]


def _title(key: Key) -> str:
    workload, size, batch = key
    return f"{workload}{'' if size in ('own', 'small') else f' ({size})'}, batch {batch or 'own'}"


def _where(keys: Sequence[Key], parts: Sequence[Part], rows: dict[tuple[str, Key], Row]) -> Block:
    cells: list[list[Cell]] = [[_title(key), *(_word(rows.get((part.name, key))) for part in parts)] for key in keys]
    return table(["workload", *(part.name for part in parts)], cells, note="A dash: did not run there.")


def _word(row: Row | None) -> str:
    return NOT_RUN if row is None else WORDS.get(row["status"], "failed")


def _reasons(parts: Sequence[Part]) -> Iterator[Block]:
    cells = [
        [part.name, _title(_key(row)), row["status"], row["reason"]]
        for part in parts
        for row in part.rows
        if row["status"] != "trained"
    ]
    if cells:
        yield table(["device", "workload", "status", "reason"], cells, caption="What did not train, and why")


# ── the ranking ───────────────────────────────────────────────────────────────────────────────


def _ranking(keys: Sequence[Key], parts: Sequence[Part], rows: dict[tuple[str, Key], Row]) -> Iterator[Block]:
    yield text(
        "One line per workload, batch and device, the fastest device first. Ranks are among the devices that were "
        "measured; equal figures share a rank. Memory is what the plan needs on the device, or for plain PyTorch the "
        "peak that it allocated."
    )
    cells: list[list[Cell]] = []
    for key in keys:
        found = [
            (part, row)
            for part in parts
            if (row := rows.get((part.name, key))) is not None and row["status"] == "trained"
        ]
        ms, joules, mib = ([read(row) for _, row in found] for read in (_ms, _joules, _mib))
        lines: list[list[Cell]] = [
            [
                _title(key),
                part.name,
                *(_rank(ms, n), ms[n], row.get("samples_s")),
                *(_rank(joules, n), joules[n]),
                *(_rank(mib, n), mib[n]),
            ]
            for n, (part, row) in enumerate(found)
        ]
        cells += sorted(lines, key=lambda line: (line[2] is None, line[2] or 0, str(line[1])))
    columns = [
        *(Column("workload"), Column("device")),
        *(Column("rank", group="time"), Column("step", "ms", "time"), Column("speed", "samples/s", "time")),
        *(Column("rank", group="energy"), Column("energy", "J per sample", "energy")),
        *(Column("rank", group="memory"), Column("memory", "MiB", "memory")),
    ]
    if not cells:
        yield text("No device has trained a workload yet.")
        return
    if all(line[6] is None for line in cells):
        kept = [n for n, column in enumerate(columns) if column.group != "energy"]
        columns, cells = [columns[n] for n in kept], [[line[n] for n in kept] for line in cells]
        yield text("Energy was not measured: no power sensor could be read.")
    yield table(columns, cells)
    yield beside(*_charts(keys, parts, rows))


def _rank(values: Sequence[float | None], n: int) -> float | None:
    """The place among the known values, 1 for the smallest."""
    seen = [None if value is None else float(f"{value:.3g}") for value in values]  # as the page shows them
    own = seen[n]
    return None if own is None else 1.0 + sum(value is not None and value < own for value in seen)


def _ms(row: Row) -> float | None:
    return row.get("step_ms")


def _joules(row: Row) -> float | None:
    return row.get("joules_sample")


def _mib(row: Row) -> float | None:
    known = row.get("planned_bytes")
    nbytes = row.get("peak_bytes") if known is None else known
    return None if nbytes is None else nbytes / MIB


def _charts(keys: Sequence[Key], parts: Sequence[Part], rows: dict[tuple[str, Key], Row]) -> Iterator[Block]:
    names = [_title(key) for key in keys]
    for title, read, axis in (
        ("Time of a step", _ms, Axis("step", "ms", log=True)),
        ("Energy per sample", _joules, Axis("energy", "J", log=True)),
        ("Memory", _mib, Axis("memory", "MiB")),
    ):
        series = []
        for colour, part in enumerate(parts):
            found = [rows.get((part.name, key)) for key in keys]
            values = [read(row) if row is not None and row["status"] == "trained" else None for row in found]
            if any(value is not None for value in values):
                series.append(Series(part.name, values, colour=colour))
        if series:
            yield charts.bars(title, names, series, axis)


# ── devices ───────────────────────────────────────────────────────────────────────────────────


def _figures(parts: Sequence[Part]) -> Iterator[Block]:
    """Figures of commands that measure something else than workloads."""
    names = list(dict.fromkeys(name for part in parts for name in part.facts))
    if names:
        cells: list[list[Cell]] = [[part.name, *(part.facts.get(name) for name in names)] for part in parts]
        yield section("Figures", table(["device", *names], cells))


def _devices(parts: Sequence[Part]) -> Block:
    cells: list[list[Cell]] = [
        [
            part.name,
            part.state,
            part.reason,
            str(part.caps.get("name") or "not known"),
            part.record.get("seconds"),
            part.record.get("hottest_celsius"),
            _battery(part.record.get("battery_percent") or []),
            ", ".join(part.pages),
            str(part.caps.get("driver") or ""),
        ]
        for part in parts
    ]
    columns = [
        *(Column(name) for name in ("device", "state", "reason", "processor")),
        *(Column("worked", "s"), Column("hottest", "°C"), Column("battery", "%")),
        *(Column("its page"), Column("driver")),
    ]
    return table(columns, cells)


def _battery(charges: Sequence[float]) -> str | None:
    return " → ".join(f"{percent:.0f}" for percent in charges) or None


def _notes(parts: Sequence[Part]) -> Iterator[Block]:
    notes = [f"{part.name}: {note}" for part in parts for note in part.record.get("notes", [])]
    if notes:
        yield listing(notes)

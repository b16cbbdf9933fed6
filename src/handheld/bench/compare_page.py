"""The page of a comparison of results folders: each row with its ratio and interval, and the ops that differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from handheld.analyse.compare import FASTER, SAME, SLOWER
from handheld.bench.folder import Results
from handheld.bench.judged import RUN_FILES, Rows
from handheld.bench.shapes import Pair, Side
from handheld.report.document import Payload
from handheld.report.page import Block, Cell, Column, Spread, Tile, busy, listing, page, section, table, tiles
from handheld.units import count

COLUMNS = (
    *(Column(name) for name in ("workload", "on", "batch")),
    Column("a", "samples/s", "speed"),
    Column("b", "samples/s", "speed"),
    Column("b/a", "", "time per sample"),
    Column("verdict", "", "time per sample"),
    Column("interval from"),
    Column("memory", "b/a"),
    Column("energy", "b/a"),
)
OPS = ("row", "op or module", "a ms", "b ms", "b/a", "verdict")


def compare_page(compared: Sequence[Rows], folders: Sequence[Results]) -> Payload:
    """The payload of the page. All folders were compared with the first one."""
    verdicts = [row["judged"]["verdict"] for rows in compared for row in rows.comparison["rows"] if row["judged"]]
    gaps = sum(len(rows.gaps()) for rows in compared)
    # The names of the folders without the folders around them: a page may be given away.
    base = Path(compared[0].comparison["a"]).name
    return page(
        f"{base} and {', '.join(Path(rows.comparison['b']).name for rows in compared)}",
        [
            tiles(
                Tile("rows that are slower", float(verdicts.count(SLOWER)), note="by more than noise"),
                Tile("rows that are faster", float(verdicts.count(FASTER)), note="by more than noise"),
                Tile("rows within noise", float(verdicts.count(SAME))),
                Tile("rows that cannot be compared", float(gaps)),
            ),
            *(section(f"{Path(rows.comparison['b']).name} (b) beside {base} (a)", *_blocks(rows)) for rows in compared),
        ],
        device=", ".join(dict.fromkeys(row["device"] for rows in compared for row in rows.comparison["rows"])),
        date=" / ".join(str(each.info.get("created", "not known"))[:16].replace("T", " ") for each in folders),
        about=f"{count(len(compared), 'folder')} compared with {base}. Ratios are b divided by a, with an interval.",
    )


def _blocks(rows: Rows) -> Iterator[Block]:
    for warning in rows.comparison["warnings"]:
        yield busy(warning)
    note = "Interval from run files: 95%. From spread: the steps of both rows from 5% to 95%. A dash: not compared."
    yield table(COLUMNS, map(_cells, rows.comparison["rows"]), caption="Every row", note=note)
    if gaps := rows.gaps():
        yield table(("row", "why it cannot be compared"), [list(gap) for gap in gaps])
    if ops := list(_ops(rows)):
        yield table(OPS, ops, caption="Ops and modules that differ by more than noise")
    if rows.unread:
        read = [f"{key}: {why}" for key, why in rows.unread.items()]
        yield section("Rows whose run files were not compared", listing(read))
    if rows.comparison["differences"]:
        yield section("What else is different", listing(rows.comparison["differences"]))


def _cells(row: Pair) -> list[Cell]:
    judged = row["judged"]
    source = None if judged is None else judged["by"] if judged["by"] == RUN_FILES else "spread of the steps"
    return [
        row["workload"],
        row["device"],
        str(row["batch"] or "own"),
        _speed(row["a"]),
        _speed(row["b"]),
        None if judged is None else Spread(judged["ratio"], judged["low"], judged["high"]),
        row["why"] or (judged and judged["verdict"]),
        source,
        row["ratios"].get("planned_bytes"),
        row["ratios"].get("joules_sample"),
    ]


def _speed(side: Side | None) -> float | None:
    return None if side is None else side["samples_s"]


def _ops(rows: Rows) -> Iterator[list[Cell]]:
    for key, pair in rows.runs.items():
        differ = [*((op.title, op) for op in pair.ops), *((f"module {one.path}", one) for one in pair.modules)]
        for name, timing in differ:
            if timing.differs:
                between = Spread(timing.beyond, timing.low, timing.high)
                yield [key, name, timing.a_ms, timing.b_ms, between, timing.verdict]

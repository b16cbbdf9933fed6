"""Pages of blocks, for studies, benchmarks and trainings: sections, texts, tables, callouts and charts.

    write_document(page("A study", [section("Question", text("..."), table(...), charts.lines(...))],
                        device="opencl:...", date="2026-11-15"), path)

A block is plain data; web/src/pages/blocks.js draws it and says what each type holds. All texts are text: nothing in
them becomes markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from handheld.report.document import Payload

KINDS = ("good", "bad", "note")  # kinds of callouts

#: What a page consists of. An empty one is left out.
Block: TypeAlias = Mapping[str, object]
NOTHING: Block = {}


@dataclass(frozen=True)
class Column:
    """The name and unit of a column. Numbers are aligned right, text left."""

    name: str
    unit: str = ""
    group: str = ""  # Adjacent columns of one group share a heading.


@dataclass(frozen=True)
class Spread:
    """A median with its quartiles."""

    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Tile:
    """One number of the answer, at the top of a page."""

    name: str
    value: float | str | None
    unit: str = ""
    note: str = ""


#: A cell holds a number, a number with its spread, text, or None, which is shown as a dash.
Cell: TypeAlias = Spread | str | float | bool | None


def page(
    title: str,
    blocks: Iterable[Block],
    *,
    device: str,
    date: str,
    about: str = "",
    facts: Mapping[str, str] | None = None,
) -> Payload:
    """The payload of the page. `device` and `date` say what was measured, and when."""
    return {
        "kind": "blocks",
        "title": title,
        "about": about,
        "facts": [["device", device], ["measured", date], *(list(pair) for pair in (facts or {}).items())],
        "made": f"{device}, {date}. Made by Handheld.",
        "blocks": _kept(blocks),
    }


def _kept(blocks: Iterable[Block]) -> list[Block]:
    return [block for block in blocks if block]


def section(title: str, *blocks: Block) -> Block:
    return {"type": "section", "title": title, "blocks": _kept(blocks)}


def group(*blocks: Block) -> Block:
    """Blocks that stay together, below each other."""
    return {"type": "group", "blocks": _kept(blocks)}


def beside(*blocks: Block) -> Block:
    """The blocks side by side where there is room, below each other on a phone."""
    return {"type": "beside", "blocks": _kept(blocks)}


def text(*paragraphs: str) -> Block:
    return {"type": "text", "paragraphs": list(paragraphs)}


def listing(items: Iterable[str]) -> Block:
    return {"type": "list", "items": list(items)}


def callout(kind: str, title: str, *paragraphs: str) -> Block:
    """A highlighted conclusion; `kind` is `good`, `bad` or `note`."""
    assert kind in KINDS, kind
    return {"type": "callout", "tone": kind, "title": title, "paragraphs": list(paragraphs)}


def busy(warning: str) -> Block:
    """The warning that other processes disturbed a measurement, for the top of a page. Nothing without a warning."""
    if not warning:
        return NOTHING
    return callout("bad", "Other processes were busy", f"{warning[0].upper()}{warning[1:]}.")


def tiles(*shown: Tile) -> Block:
    return {
        "type": "tiles",
        "tiles": [{"name": t.name, "value": t.value, "unit": t.unit, "note": t.note} for t in shown],
    }


def table(
    columns: Sequence[Column | str], rows: Iterable[Sequence[Cell]], *, caption: str = "", note: str = ""
) -> Block:
    """A table whose first column names the rows. It can be sorted, and scrolls if the screen is too narrow."""
    heads = [Column(column) if isinstance(column, str) else column for column in columns]
    kept = [[_cell(value) for value in row] for row in rows]
    assert all(len(row) == len(heads) for row in kept), "each row needs one cell per column"
    return {
        "type": "table",
        "caption": caption,
        "note": note,
        "columns": [{"name": head.name, "unit": head.unit, "group": head.group} for head in heads],
        "rows": kept,
    }


def _cell(value: Cell) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Spread):
        return {"value": value.value, "low": value.low, "high": value.high}
    return value

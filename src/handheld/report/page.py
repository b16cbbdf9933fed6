"""An HTML page in one file that loads no script, font or picture.

    page("A study", [section("Question", text("..."), table(...), charts.lines(...))],
         device="opencl:...", date="2026-11-15")

Blocks are `Markup`, made by the functions here and in `charts`. Everything else is treated as text and escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from handheld.report.markup import Markup, join, tag
from handheld.report.scale import number

KINDS = ("good", "bad", "note")  # kinds of callouts


@dataclass(frozen=True)
class Column:
    """The name and unit of a column. Numbers are aligned right, text left."""

    name: str
    unit: str = ""
    group: str = ""  # Adjacent columns of one group share a heading.

    @property
    def title(self) -> str:
        return f"{self.name} ({self.unit})" if self.unit and self.name else self.name or self.unit


#: A cell holds a number, a number with its spread, text, or None, which is shown as a dash.
Cell = object


def page(
    title: str,
    blocks: Iterable[Markup],
    *,
    device: str,
    date: str,
    about: str = "",
    facts: Mapping[str, str] | None = None,
) -> str:
    """The text of the whole file. `device` and `date` say what was measured, and when."""
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Markup(style)),
    )
    header = tag(
        "header",
        tag("h1", title),
        tag("p", about, class_="about") if about else "",
        _facts({"device": device, "measured": date, **(facts or {})}),
    )
    body = tag(
        "body",
        header,
        tag("main", *blocks),
        tag(
            "footer", tag("p", f"{device}, {date}. Made by Handheld: one file, nothing in it is loaded from elsewhere.")
        ),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def section(title: str, *blocks: object) -> Markup:
    return tag("section", tag("h2", title), *blocks)


def text(*paragraphs: object) -> Markup:
    return join(*(tag("p", paragraph) for paragraph in paragraphs))


def strong(what: object) -> Markup:
    return tag("b", what)


def beside(*blocks: Markup) -> Markup:
    """The blocks side by side where there is room, below each other on a phone."""
    return tag("div", *blocks, class_="beside")


def callout(kind: str, title: str, *paragraphs: object) -> Markup:
    """A highlighted conclusion; `kind` is `good`, `bad` or `note`."""
    assert kind in KINDS, kind
    return tag("aside", tag("h3", title), *(tag("p", paragraph) for paragraph in paragraphs), class_=f"callout {kind}")


def busy(warning: str) -> Markup:
    """The warning that other processes disturbed a measurement, for the top of a page."""
    return callout("bad", "Other processes were busy", f"{warning[0].upper()}{warning[1:]}.")


def listing(items: Iterable[object]) -> Markup:
    return tag("ul", *(tag("li", item) for item in items))


def table(
    columns: Sequence[Column | str], rows: Iterable[Sequence[Cell]], *, caption: str = "", note: object = ""
) -> Markup:
    """A table whose first column names the rows. It scrolls if the screen is too narrow."""
    heads = [Column(column) if isinstance(column, str) else column for column in columns]
    kept = [list(row) for row in rows]
    assert all(len(row) == len(heads) for row in kept), "each row needs one cell per column"
    sides = [
        "left" if kept and all(isinstance(row[n], str) and not isinstance(row[n], Spread) for row in kept) else None
        for n in range(len(heads))
    ]
    names = [tag("th", column.title, scope="col", class_=side) for column, side in zip(heads, sides, strict=True)]
    body = [
        tag(
            "tr",
            *(
                tag("td" if n else "th", _cell(value), scope=None if n else "row", class_=sides[n])
                for n, value in enumerate(row)
            ),
        )
        for row in kept
    ]
    return tag(
        "div",
        tag(
            "table",
            tag("caption", caption) if caption else "",
            tag("thead", _groups(heads), tag("tr", *names)),
            tag("tbody", *body),
        ),
        tag("p", note, class_="note") if note else "",
        class_="wide",
    )


def _groups(heads: Sequence[Column]) -> Markup:
    """A row above the column names with the headings of groups, or nothing if there is no group."""
    if not any(column.group for column in heads):
        return Markup()
    groups: list[tuple[str, int]] = []
    for column in heads:
        if groups and groups[-1][0] == column.group:
            groups[-1] = (column.group, groups[-1][1] + 1)
        else:
            groups.append((column.group, 1))
    return tag(
        "tr",
        *(
            tag("th", name, colspan=count, scope="colgroup", class_="over") if name else tag("td", colspan=count)
            for name, count in groups
        ),
    )


def _cell(value: Cell) -> object:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return number(value) if isinstance(value, float) else value


class Spread(Markup):
    """A number with its spread."""

    __slots__ = ()


def spread(value: float | None, low: float | None = None, high: float | None = None) -> Spread:
    """A median with its quartiles in small letters."""
    around = (
        ""
        if value is None or low is None or high is None
        else tag("small", f" {number(low)}–{number(high)}", class_="spread")
    )
    return Spread(join(number(value), around))


def _facts(pairs: Mapping[str, str]) -> Markup:
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs.items()), class_="facts")

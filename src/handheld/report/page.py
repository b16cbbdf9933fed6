"""A page in one file: no script, no font, no picture from elsewhere.

    page("A study", [section("Question", text("..."), table(...), charts.lines(...))],
         device="opencl:...", date="2026-11-15")

Blocks are `Markup`, made by the functions here and in `charts`; whatever else is put into them is
text, and escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from handheld.report.markup import Markup, join, tag
from handheld.report.scale import number

KINDS = ("good", "bad", "note")  # of callouts


@dataclass(frozen=True)
class Column:
    """A column's name and unit. Numbers stand at the right, text at the left."""

    name: str
    unit: str = ""
    group: str = ""  # columns side by side of one group share a heading

    @property
    def title(self) -> str:
        return f"{self.name} ({self.unit})" if self.unit and self.name else self.name or self.unit


#: what a cell may hold: a number, a number and its spread, text, or nothing, which is a dash
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
    """The whole file. `device` and `date` say what was measured, and when."""
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
    return join(*(tag("p", one) for one in paragraphs))


def strong(what: object) -> Markup:
    return tag("b", what)


def beside(*blocks: Markup) -> Markup:
    """Side by side where there is room, one below the other on a phone."""
    return tag("div", *blocks, class_="beside")


def callout(kind: str, title: str, *paragraphs: object) -> Markup:
    """What a reader should take with them: `good`, `bad` or `note`."""
    assert kind in KINDS, kind
    return tag("aside", tag("h3", title), *(tag("p", one) for one in paragraphs), class_=f"callout {kind}")


def listing(items: Iterable[object]) -> Markup:
    return tag("ul", *(tag("li", one) for one in items))


def table(
    columns: Sequence[Column | str], rows: Iterable[Sequence[Cell]], *, caption: str = "", note: object = ""
) -> Markup:
    """The first column names its rows. It scrolls by itself where a screen is too narrow."""
    heads = [Column(one) if isinstance(one, str) else one for one in columns]
    kept = [list(row) for row in rows]
    assert all(len(row) == len(heads) for row in kept), "a cell for every column"
    sides = [
        "left" if kept and all(isinstance(row[n], str) and not isinstance(row[n], Spread) for row in kept) else None
        for n in range(len(heads))
    ]
    names = [tag("th", one.title, scope="col", class_=side) for one, side in zip(heads, sides, strict=True)]
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
    """A row above the names, where columns belong together."""
    if not any(one.group for one in heads):
        return Markup()
    made: list[tuple[str, int]] = []
    for one in heads:
        if made and made[-1][0] == one.group:
            made[-1] = (one.group, made[-1][1] + 1)
        else:
            made.append((one.group, 1))
    return tag(
        "tr",
        *(
            tag("th", name, colspan=count, scope="colgroup", class_="over") if name else tag("td", colspan=count)
            for name, count in made
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
    """A number with what is around it."""

    __slots__ = ()


def spread(value: float | None, low: float | None = None, high: float | None = None) -> Spread:
    """A median, and in small letters the quarters around it."""
    around = (
        ""
        if value is None or low is None or high is None
        else tag("small", f" {number(low)}–{number(high)}", class_="spread")
    )
    return Spread(join(number(value), around))


def _facts(pairs: Mapping[str, str]) -> Markup:
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs.items()), class_="facts")

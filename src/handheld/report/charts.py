"""Small charts as inline SVG: lines, steps over time, grouped or stacked bars, areas, points.

Each function takes plain data and returns a complete figure: title, legend, drawing, a sentence about what it
shows, and its numbers as a table that can be opened. Charts are drawn for a width of 480 pixels, so that a phone
shrinks the letters by a quarter at most. Colours come from page.css, light or dark. Each series has its own marker
and dash, for readers who print or do not see colours. A missing value is a gap or a dash, never zero.

     y title (unit)
    100 ┤            ────○  reference
     50 ┤      ○───○
      0 ┼──────────────────
         x title (unit)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from handheld.report.markup import Markup, join, tag
from handheld.report.plot import SVG, Guide, Plot, Reference, Series, classes, shape, spread_text
from handheld.report.scale import Axis, number

__all__ = ["Axis", "Guide", "Reference", "Series", "areas", "bars", "lines", "points"]

MOST_ROWS = 64  # the most rows of the table below a figure


def lines(
    title: str,
    series: Sequence[Series],
    x: Axis,
    y: Axis,
    *,
    note: object = "",
    step: bool = False,
    references: Sequence[Reference] = (),
    guides: Sequence[Guide] = (),
) -> Markup:
    """Lines with markers. With `step`, each value holds until the next, as for samples over time."""
    plot = Plot(
        x.fitted([*(v for s in series for v in s.x), *(g.x for g in guides)]),
        y.fitted([*_heights(series), *(r.value for r in references)]),
    )
    drawn = [plot.line(line, place, step) for place, line in enumerate(series)]
    below = (plot.frame(), plot.guides(guides), plot.references(references))
    return _figure(title, plot.svg(title, (*below, *drawn)), _legend(series, "line"), note, _points_table(series, x, y))


def points(title: str, series: Sequence[Series], x: Axis, y: Axis, *, note: object = "") -> Markup:
    """Two measurements of the same things plotted against each other, with their spreads. Both axes have the same
    scale, and a line shows where both are equal. Values that are not positive cannot be drawn on a logarithmic
    axis; the note says how many there are."""
    both = [*_heights(series), *(v for s in series for v in (*s.x, *s.x_low, *s.x_high))]
    x, y = x.fitted(both), y.fitted(both)
    plot = Plot(x, y)
    drawn = [plot.points(group, place) for place, group in enumerate(series)]
    svg = plot.svg(title, (plot.frame(), plot.diagonal(), *drawn))
    hidden = sum(x.log and (at <= 0 or (v or 0) <= 0) for s in series for at, v in zip(s.x, s.values, strict=True))
    if hidden:
        note = join(note, " " if note else "", f"Values not above zero, which are not shown: {hidden}.")
    return _figure(title, svg, _legend(series, "line"), note, _points_table(series, x, y))


def areas(
    title: str,
    series: Sequence[Series],
    x: Axis,
    y: Axis,
    *,
    note: object = "",
    step: bool = False,
    references: Sequence[Reference] = (),
    guides: Sequence[Guide] = (),
) -> Markup:
    """Series over the same x, stacked."""
    where = series[0].x if series else ()
    assert all(list(layer.x) == list(where) for layer in series), "areas need the same x"
    tops = _stack(series, len(where))
    plot = Plot(x.fitted(where), y.fitted([*tops[-1], *(r.value for r in references)], zero=True))
    drawn = [plot.frame(), plot.guides(guides)]
    for place, layer in enumerate(series):
        drawn.append(plot.area(layer, place, where, tops[place], tops[place + 1], step))
    drawn.append(plot.references(references))
    return _figure(title, plot.svg(title, drawn), _legend(series, "box"), note, _points_table(series, x, y))


def bars(
    title: str,
    groups: Sequence[str],
    series: Sequence[Series],
    y: Axis,
    *,
    note: object = "",
    stacked: bool = False,
    references: Sequence[Reference] = (),
) -> Markup:
    """One bar per group and series, side by side or `stacked`."""
    assert not (stacked and y.log), "stacked bars cannot have a logarithmic axis"
    tops = _stack(series, len(groups))
    heights = tops[-1] if stacked else _heights(series)
    values = [*heights, *(r.value for r in references)]
    if y.log and y.low is None:  # The bar of the smallest value must be visible too.
        least = min((v for v in values if v is not None and v > 0), default=1.0)
        y = Axis(y.label, y.unit, True, 10.0 ** math.floor(math.log10(least * 0.7)), y.high)
    plot = Plot(None, y.fitted(values, zero=True), groups)
    drawn = [plot.frame()]
    for group in range(len(groups)):
        drawn.append(plot.group(group, groups[group], series, tops if stacked else None))
    drawn.append(plot.references(references))
    rows = [[name, *(_value(s, n) for s in series)] for n, name in enumerate(groups)]
    return _figure(
        title,
        plot.svg(title, drawn),
        _legend(series, "box"),
        note,
        _table(["", *(_headed(s.name, y.unit) for s in series)], rows),
    )


def _heights(series: Iterable[Series]) -> list[float | None]:
    return [v for s in series for v in (*s.values, *s.low, *s.high)]


def _stack(series: Sequence[Series], count: int) -> list[list[float]]:
    """The lower and upper edges of the stacked series, from the bottom up. A missing value adds nothing."""
    tops = [[0.0] * count]
    for layer in series:
        tops.append([at + (v or 0.0) for at, v in zip(tops[-1], layer.values, strict=True)])
    return tops


def _legend(series: Sequence[Series], kind: str) -> Markup:
    """The names of the series with their marks. A single series needs no legend."""
    if len(series) < 2:
        return Markup()
    items = []
    for place, entry in enumerate(series):
        if kind == "line":
            mark = join(
                tag("line", x1=1.0, x2=23.0, y1=6.0, y2=6.0, class_=classes(entry, place, "line")),
                tag("g", shape(entry.number(place), 12.0, 6.0), class_=classes(entry, place, "mark")),
            )
        else:
            mark = tag("g", tag("rect", x=0.5, y=0.5, width=11.0, height=11.0), class_=classes(entry, place, "bar"))
        wide = 24 if kind == "line" else 12
        items.append(
            tag(
                "li",
                tag("svg", mark, viewBox=f"0 0 {wide} 12", width=wide, height=12, aria_hidden="true", xmlns=SVG),
                entry.name,
            )
        )
    return tag("ul", *items, class_="legend")


def _figure(title: str, svg: Markup, legend: Markup, note: object, numbers: Markup) -> Markup:
    opened = tag("details", tag("summary", "The numbers"), numbers) if numbers else Markup()
    return tag(
        "figure",
        tag("figcaption", tag("b", title)),
        legend,
        svg,
        tag("p", note, class_="note") if note else "",
        opened,
        class_="chart",
    )


def _value(one: Series, n: int) -> str:
    return f"{number(one.values[n])}{spread_text(one, n, '')}"


def _headed(name: str, unit: str) -> str:
    return f"{name} ({unit})" if unit else name


def _points_table(series: Sequence[Series], x: Axis, y: Axis) -> Markup:
    places = sorted({v for one in series for v in one.x})
    if len(places) > MOST_ROWS:
        return Markup()
    at = [{v: n for n, v in enumerate(one.x)} for one in series]
    rows = [
        [
            number(place),
            *(_value(one, where[place]) if place in where else "–" for one, where in zip(series, at, strict=True)),
        ]
        for place in places
    ]
    return _table([x.title, *(_headed(one.name, y.unit) for one in series)], rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    body = [tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:])) for row in rows]
    return tag(
        "div",
        tag("table", tag("thead", tag("tr", *(tag("th", h, scope="col") for h in head))), tag("tbody", *body)),
        class_="wide",
    )

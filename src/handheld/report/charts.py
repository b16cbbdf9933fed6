"""Charts as blocks of a page: lines, steps over time, grouped or stacked bars, areas, points.

Each function takes plain data and returns a complete figure: title, legend, drawing, a sentence about what it shows,
and its numbers as a table that can be opened. The page's script draws them (web/src/parts/chart.js). A missing value
is a gap or a dash, never zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from handheld.report.page import Block

__all__ = ["Axis", "Guide", "Reference", "Series", "areas", "bars", "lines", "points"]


@dataclass(frozen=True)
class Axis:
    """A quantity and its unit. `low` and `high` are kept if given. If `ticks` are given, only these are drawn; use
    them for example for the widths of a sweep. A linear axis of values starts at zero, unless `zero` is False."""

    label: str
    unit: str = ""
    log: bool = False
    low: float | None = None
    high: float | None = None
    ticks: Sequence[float] = ()
    zero: bool = True

    def spec(self) -> dict[str, object]:
        found: dict[str, object] = {"label": self.label, "zero": self.zero}
        if self.unit:
            found["unit"] = self.unit
        if self.log:
            found["log"] = True
        if self.low is not None:
            found["low"] = self.low
        if self.high is not None:
            found["high"] = self.high
        if self.ticks:
            found["ticks"] = list(self.ticks)
        return found


@dataclass(frozen=True)
class Series:
    """One line, or one bar in each group. `low` and `high` are its spread, drawn as whiskers. `pale` marks figures of
    another study, to distinguish them from those measured here. Series with the same `colour` belong together, in this
    figure or in another."""

    name: str
    values: Sequence[float | None]
    x: Sequence[float] = ()
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()
    x_low: Sequence[float] = ()  # for `charts.points`: the spread of x
    x_high: Sequence[float] = ()
    pale: bool = False
    colour: int | None = None

    def spec(self) -> dict[str, object]:
        found: dict[str, object] = {"name": self.name, "x": list(self.x), "y": list(self.values)}
        for name in ("low", "high", "x_low", "x_high"):
            if getattr(self, name):
                found[name] = list(getattr(self, name))
        if self.pale:
            found["pale"] = True
        if self.colour is not None:
            found["colour"] = self.colour
        return found


@dataclass(frozen=True)
class Reference:
    """A horizontal line at a value: a goal, a limit, a figure from a paper."""

    value: float
    label: str


@dataclass(frozen=True)
class Guide:
    """A vertical line: where a step begins, where two curves cross."""

    x: float
    label: str = ""


def lines(
    title: str,
    series: Sequence[Series],
    x: Axis,
    y: Axis,
    *,
    note: str = "",
    step: bool = False,
    references: Sequence[Reference] = (),
    guides: Sequence[Guide] = (),
) -> Block:
    """Lines with markers. With `step`, each value holds until the next, as for samples over time."""
    more = {"step": True} if step else {}
    return _chart("lines", title, series, x.spec(), y, note, references, guides, more)


def points(title: str, series: Sequence[Series], x: Axis, y: Axis, *, note: str = "") -> Block:
    """Two measurements of the same things plotted against each other, with their spreads. Both axes have the same
    range, and a line shows where both are equal. Values that are not positive cannot be drawn on a logarithmic
    axis; the note says how many there are."""
    pairs = [(at, v or 0) for one in series for at, v in zip(one.x, one.values, strict=True)]
    hidden = sum((x.log and at <= 0) or (y.log and v <= 0) for at, v in pairs)
    if hidden:
        note = f"{note} Values not above zero, which are not shown: {hidden}.".strip()
    return _chart("points", title, series, x.spec(), y, note, more={"equal": True})


def areas(
    title: str,
    series: Sequence[Series],
    x: Axis,
    y: Axis,
    *,
    note: str = "",
    step: bool = False,
    references: Sequence[Reference] = (),
    guides: Sequence[Guide] = (),
) -> Block:
    """Series over the same x, stacked."""
    assert all(list(layer.x) == list(series[0].x) for layer in series), "areas need the same x"
    more = {"step": True} if step else {}
    return _chart("areas", title, series, x.spec(), y, note, references, guides, more)


def bars(
    title: str,
    groups: Sequence[str],
    series: Sequence[Series],
    y: Axis,
    *,
    note: str = "",
    stacked: bool = False,
    references: Sequence[Reference] = (),
) -> Block:
    """One bar per group and series, side by side or `stacked`."""
    assert not (stacked and y.log), "stacked bars cannot have a logarithmic axis"
    assert all(len(one.values) == len(groups) for one in series), "each series needs one value per group"
    more = {"stacked": True} if stacked else {}
    return _chart("bars", title, series, {"label": "", "categories": list(groups)}, y, note, references, more=more)


def _chart(
    kind: str,
    title: str,
    series: Sequence[Series],
    x: dict[str, object],
    y: Axis,
    note: str,
    references: Sequence[Reference] = (),
    guides: Sequence[Guide] = (),
    more: Mapping[str, bool] = MappingProxyType({}),
) -> Block:
    spec: dict[str, object] = {
        "type": kind,
        "title": title,
        "x": x,
        "y": y.spec(),
        "series": [one.spec() for one in series],
        "lines": [{"y": line.value, "label": line.label} for line in references],
        "guides": [{"x": guide.x, "label": guide.label} for guide in guides],
        **more,
    }
    return {"type": "chart", "title": title, "note": note, "spec": spec}

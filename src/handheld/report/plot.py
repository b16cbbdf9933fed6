"""The drawing area of a chart: axes, reference lines and all kinds of marks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from handheld.report.markup import Markup, tag
from handheld.report.scale import Axis, apart, number, quantity, spread_out, width

SVG = "http://www.w3.org/2000/svg"
WIDTH, HEIGHT = 480.0, 270.0
FONT = 12.0
TOP, RIGHT, BOTTOM = 32.0, 14.0, 40.0
COLOURS = 8  # page.css defines .s0 to .s7
MOST_MARKERS = 40  # A line with more points is drawn without markers, because they would overlap.


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

    def number(self, place: int) -> int:
        """The number of its colour and marker; `place` is its position among the series."""
        return place if self.colour is None else self.colour

    def spread(self, n: int) -> tuple[float, float] | None:
        low, high = (side[n] if n < len(side) else None for side in (self.low, self.high))
        return None if low is None or high is None else (low, high)


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


class Plot:
    """The drawing area, its axes, and methods that draw into it."""

    def __init__(self, x: Axis | None, y: Axis, groups: Sequence[str] = ()) -> None:
        self.x, self.y, self.groups = x, y, groups
        marks = y.marks()
        self.left = max((width(number(m), FONT) for m in marks), default=20.0) + 12
        self.tilted, self.bottom = False, BOTTOM
        self.labels = [self._wrapped(name) for name in groups]
        if groups:
            room = self._slot() - 4
            lines = max(map(len, self.labels))
            longest = max(width(line, FONT) for label in self.labels for line in label)
            self.tilted = longest > room
            self.bottom = 14 + FONT * 1.25 * lines
            if self.tilted:
                longest = max(width(name, FONT) for name in groups)
                self.bottom = min(16 + 0.6 * longest, 100.0)
        self.floor = HEIGHT - self.bottom
        self.right = WIDTH - RIGHT
        #: Points of everything drawn so far. Labels are put where there are fewest.
        self.taken: list[tuple[float, float]] = []

    def _slot(self) -> float:
        return (WIDTH - RIGHT - self.left) / max(len(self.groups), 1)

    def _wrapped(self, name: str) -> list[str]:
        """The name in at most three lines, which fit below a group if its words are short enough."""
        room, lines = self._slot() - 4, [""]
        for word in name.split():
            longer = f"{lines[-1]} {word}".strip()
            if width(longer, FONT) <= room or not lines[-1] or len(lines) == 3:
                lines[-1] = longer
            else:
                lines.append(word)
        return lines

    def px(self, value: float) -> float:
        assert self.x is not None
        return self.x.at(value, self.left + 4, self.right - 4)

    def py(self, value: float) -> float:
        return self.y.at(value, self.floor, TOP)

    def svg(self, title: str, drawn: Iterable[Markup]) -> Markup:
        return tag(
            "svg",
            tag("title", title),
            *drawn,
            viewBox=f"0 0 {WIDTH:.0f} {HEIGHT:.0f}",
            role="img",
            aria_label=title,
            xmlns=SVG,
        )

    # ── axes ──────────────────────────────────────────────────────────────────────────────────

    def frame(self) -> Markup:
        made = [tag("text", self.y.title, x=2.0, y=13.0, class_="axis")]
        for value in self.y.marks():
            at = self.py(value)
            made += [
                tag("line", x1=self.left, x2=self.right, y1=at, y2=at, class_="grid"),
                tag("text", number(value), x=self.left - 6, y=at + 4, class_="tick end"),
            ]
        made.append(tag("line", x1=self.left, x2=self.right, y1=self.floor, y2=self.floor, class_="ground"))
        made += self._below() if self.x is None else self._ticks(self.x)
        return tag("g", *made)

    def _ticks(self, x: Axis) -> list[Markup]:
        marks = [(self.px(value), number(value)) for value in x.marks(7)]
        made = [tag("line", x1=at, x2=at, y1=self.floor, y2=self.floor + 4, class_="ground") for at, _ in marks]
        for n in apart(marks, FONT):
            at, text = marks[n]
            made.append(tag("text", text, x=at, y=self.floor + 16, class_="tick middle"))
        made.append(tag("text", x.title, x=(self.left + self.right) / 2, y=HEIGHT - 6, class_="axis middle"))
        return made

    def _below(self) -> list[Markup]:
        """The names of the groups, tilted if they would touch."""
        made = []
        for n, label in enumerate(self.labels):
            at = self.left + (n + 0.5) * self._slot()
            if self.tilted:
                y = self.floor + 14
                made.append(
                    tag(
                        "text",
                        self.groups[n],
                        x=at + 4,
                        y=y,
                        class_="tick end",
                        transform=f"rotate(-36 {at + 4:.1f} {y:.1f})",
                    )
                )
            else:
                made += [
                    tag("text", line, x=at, y=self.floor + 16 + row * FONT * 1.25, class_="tick middle")
                    for row, line in enumerate(label)
                ]
        return made

    def references(self, references: Sequence[Reference]) -> Markup:
        """Horizontal lines with labels above them. A label is at the end where it covers less of the drawing; labels do
        not overlap."""
        places = spread_out([self.py(r.value) - 5 for r in references], FONT + 3, TOP + 10, self.floor - 4)
        made = [
            tag("line", x1=self.left, x2=self.right, y1=self.py(r.value), y2=self.py(r.value), class_="reference")
            for r in references
        ]
        for reference, place in zip(references, places, strict=True):
            wide = width(reference.label, FONT) + 6
            at = min(
                (self.right - wide, self.left + 2), key=lambda x: self._covered(x, place - FONT - 2, wide, FONT + 10)
            )
            made += [
                tag("rect", x=at, y=place - FONT + 0.5, width=wide, height=FONT + 2.5, rx=2.0, class_="under"),
                tag("text", reference.label, x=at + 3, y=place, class_="note"),
            ]
        return tag("g", *made)

    def _covered(self, x: float, y: float, wide: float, high: float) -> int:
        return sum(x <= a <= x + wide and y <= b <= y + high for a, b in self.taken)

    def _take(self, points: Iterable[tuple[float, float]]) -> None:
        """Remember a line, as points a few pixels apart."""
        for (a, b), (c, d) in itertools.pairwise(points):
            count = max(int(max(abs(c - a), abs(d - b)) / 5), 1)
            self.taken += [(a + (c - a) * n / count, b + (d - b) * n / count) for n in range(count + 1)]

    def guides(self, guides: Sequence[Guide]) -> Markup:
        """Vertical lines, and above the plot those of their labels that fit."""
        made = [
            tag("line", x1=self.px(g.x), x2=self.px(g.x), y1=TOP - 1, y2=self.floor, class_="guide") for g in guides
        ]
        marks = [
            (
                min(max(self.px(g.x), self.left + width(g.label, FONT) / 2), self.right - width(g.label, FONT) / 2),
                g.label,
            )
            for g in guides
            if g.label
        ]
        made += [tag("text", marks[n][1], x=marks[n][0], y=TOP - 4, class_="note middle") for n in apart(marks, FONT)]
        return tag("g", *made)

    # ── marks ─────────────────────────────────────────────────────────────────────────────────

    def line(self, one: Series, place: int, step: bool) -> Markup:
        made, markers = [], []
        for run in _runs(one, self.x is not None and self.x.log, self.y.log):
            points = [(self.px(one.x[n]), self.py(float(one.values[n] or 0))) for n in run]
            if step:
                points = _held(points)
            self._take(points)
            if len(points) > 1:
                made.append(tag("polyline", points=_path(points), class_=classes(one, place, "line")))
            if len(one.values) <= MOST_MARKERS and not step:
                markers += [self._marker(one, place, n) for n in run]
        return tag("g", *made, *markers)

    def _marker(self, one: Series, place: int, n: int) -> Markup:
        value = one.values[n]
        assert self.x is not None and value is not None
        at = self.px(one.x[n])
        text = (
            f"{one.name}: {quantity(value, self.y.unit)} at "
            f"{quantity(one.x[n], self.x.unit)}{spread_text(one, n, self.y.unit)}"
        )
        return tag(
            "g",
            self._whisker(one, n, at),
            shape(one.number(place), at, self.py(value)),
            tag("title", text),
            class_=classes(one, place, "mark"),
        )

    def points(self, one: Series, place: int) -> Markup:
        """Markers without a line, each with its spread in both directions."""
        made = []
        for n in itertools.chain.from_iterable(_runs(one, self.x is not None and self.x.log, self.y.log)):
            made.append(self._marker(one, place, n))
            if n < len(one.x_low):
                x1, x2, at = self.px(one.x_low[n]), self.px(one.x_high[n]), self.py(float(one.values[n] or 0))
                whisker = tag("line", x1=x1, x2=x2, y1=at, y2=at, class_="whisker")
                made.append(tag("g", whisker, class_=classes(one, place, "mark")))
        return tag("g", *made)

    def diagonal(self) -> Markup:
        """The line on which x and y are equal. Both axes must have the same scale."""
        low, high = float(self.y.low or 0), float(self.y.high or 0)
        return tag("line", x1=self.px(low), y1=self.py(low), x2=self.px(high), y2=self.py(high), class_="guide")

    def _whisker(self, one: Series, n: int, at: float) -> Markup:
        spread = one.spread(n)
        if spread is None:
            return Markup()
        return tag("line", x1=at, x2=at, y1=self.py(spread[0]), y2=self.py(spread[1]), class_="whisker")

    def area(
        self, one: Series, place: int, x: Sequence[float], below: Sequence[float], above: Sequence[float], step: bool
    ) -> Markup:
        over, under = ([(self.px(at), self.py(v)) for at, v in zip(x, side, strict=True)] for side in (above, below))
        if step:
            over, under = _held(over), _held(under)
        self._take(over)
        return tag(
            "polygon",
            tag("title", one.name),
            points=_path([*over, *reversed(under)]),
            class_=classes(one, place, "area"),
        )

    def group(self, n: int, name: str, series: Sequence[Series], tops: list[list[float]] | None) -> Markup:
        """The bars of one group."""
        slot = self._slot()
        count = 1 if tops else max(len(series), 1)
        wide = min(slot * 0.82 / count, 46.0)
        begin = self.left + (n + 0.5) * slot - wide * count / 2
        made = []
        for place, one in enumerate(series):
            value = one.values[n]
            at = begin if tops else begin + place * wide
            if value is None or (self.y.log and value <= 0):
                if not tops:
                    made.append(tag("text", "–", x=at + wide / 2, y=self.floor - 3, class_="tick middle"))
                continue
            low, high = (
                (tops[place][n], tops[place + 1][n]) if tops else (float(self.y.low or 0) if self.y.log else 0.0, value)
            )
            y = sorted((self.py(low), self.py(high)))
            self._take([(at, y[0]), (at + wide, y[0]), (at + wide / 2, y[1])])
            title = f"{name}, {one.name}: {quantity(value, self.y.unit)}{spread_text(one, n, self.y.unit)}"
            made.append(
                tag(
                    "g",
                    tag("rect", x=at + 0.5, y=y[0], width=max(wide - 1, 0.5), height=max(y[1] - y[0], 0.5)),
                    Markup() if tops else self._whisker(one, n, at + wide / 2),
                    tag("title", title),
                    class_=classes(one, place, "bar"),
                )
            )
            text = number(value)
            if not tops and width(text, 10) < wide:
                made.append(
                    tag(
                        "text",
                        text,
                        x=at + wide / 2,
                        y=min(y[0], *(self.py(v) for v in one.spread(n) or (value,))) - 3,
                        class_="value middle",
                    )
                )
        return tag("g", *made)


def classes(one: Series, place: int, kind: str) -> str:
    return f"{kind} s{one.number(place) % COLOURS}{' pale' if one.pale else ''}"


def _runs(one: Series, log_x: bool, log_y: bool) -> list[list[int]]:
    """Runs of adjacent points that can be drawn. A missing point ends a line."""
    runs: list[list[int]] = [[]]
    for n, (x, y) in enumerate(zip(one.x, one.values, strict=True)):
        if y is None or not math.isfinite(y) or (log_x and x <= 0) or (log_y and y <= 0):
            runs.append([])
        else:
            runs[-1].append(n)
    return [run for run in runs if run]


def _held(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points of a step line: each value holds until the next one."""
    held = points[:1]
    for (_, before), (x, y) in itertools.pairwise(points):
        held += [(x, before), (x, y)]
    return held


def _path(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def shape(number_of: int, x: float, y: float) -> Markup:
    """A marker: disc, square, triangle or diamond, so that series differ not only in colour."""
    r = 3.6
    shapes: tuple[Callable[[], Markup], ...] = (
        lambda: tag("circle", cx=x, cy=y, r=r),
        lambda: tag("rect", x=x - r, y=y - r, width=2 * r, height=2 * r),
        lambda: tag("polygon", points=_path([(x, y - 4.6), (x + 4.2, y + r), (x - 4.2, y + r)])),
        lambda: tag("polygon", points=_path([(x, y - 5), (x + 5, y), (x, y + 5), (x - 5, y)])),
    )
    return shapes[number_of % len(shapes)]()


def spread_text(one: Series, n: int, unit: str) -> str:
    spread = one.spread(n)
    return f" ({number(spread[0])} to {quantity(spread[1], unit)})" if spread else ""

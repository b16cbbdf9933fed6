"""Pages: well-formed, escaped, complete, and with labels that do not touch."""

from __future__ import annotations

import itertools
import math
import re
from xml.etree import ElementTree

import pytest

from handheld.report.charts import Guide, Reference, Series, areas, bars, lines, points
from handheld.report.markup import Markup, escape, tag
from handheld.report.page import Column, beside, callout, page, section, spread, table, text
from handheld.report.scale import Axis, apart, number, quantity, spread_out, width

SVG = "{http://www.w3.org/2000/svg}"


def parsed(markup: str) -> ElementTree.Element:
    return ElementTree.fromstring(f"<root>{markup}</root>")


def drawing(figure: str) -> ElementTree.Element:
    return parsed(figure).find(f"figure/{SVG}svg")


def of_class(tree: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    return [one for one in tree.iter() if name in one.get("class", "").split()]


def test_what_is_not_markup_is_escaped():
    assert tag("p", "<b>", tag("i", "&"), class_='"') == ('<p class="&quot;">&lt;b&gt;<i>&amp;</i></p>')
    assert escape(Markup("<b/>")) == "<b/>"
    assert escape("a\x00\x1b[31mb\ud800") == "a\ufffd\ufffd[31mb\ufffd"  # A device's name may contain anything.


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (math.nan, "–"),
        (0, "0"),
        (12345.6, "12,346"),
        (1.5, "1.5"),
        (0.01234, "0.0123"),
        (2e-7, "2e-7"),
        (99.95, "100"),
        (1e9, "1e9"),
        (-3.25, "-3.25"),
    ],
)
def test_numbers_have_three_digits(value, shown):
    assert number(value) == shown


def test_a_quantity_has_its_unit():
    assert (quantity(3.0, "ms"), quantity(50.0, "%"), quantity(None, "W")) == ("3 ms", "50%", "–")


@pytest.mark.parametrize(
    ("axis", "values"),
    [
        (Axis("a"), [0.0, 7.3]),
        (Axis("a"), [5.0]),
        (Axis("a"), []),
        (Axis("a"), [-3.0, 4.0]),
        (Axis("a", log=True), [0.0, 1e-6, 1e3]),
        (Axis("a", log=True), [5.0]),
        (Axis("a", log=True), []),
        (Axis("a", log=True), [1.0, 3.0]),
        (Axis("a"), [1e-9, 2e-9]),
        (Axis("a"), [100.0, 101.0]),
    ],
)
def test_axes_hold_their_values_and_few_ticks(axis, values):
    axis = axis.fitted(values)
    marks = axis.marks(6)
    assert 1 <= len(marks) <= 7 and all(axis.low * (1 - 1e-6) <= m or math.isclose(axis.low, m) for m in marks if m > 0)
    for value in values:
        if value > 0 or not axis.log:
            assert axis.low <= value <= axis.high
    places = [axis.at(m, 0.0, 100.0) for m in marks]
    assert places == sorted(places) and all(0 <= p <= 100 for p in places)


def test_labels_keep_apart():
    places = [(float(x), f"{x:,}") for x in range(0, 2000, 7)]
    kept = apart(places, 12.0)
    assert kept[0] == 0 and kept[-1] == len(places) - 1 and 5 < len(kept) < len(places)
    for one, other in itertools.pairwise(kept):
        half = (width(places[one][1], 12) + width(places[other][1], 12)) / 2
        assert places[other][0] - places[one][0] >= half
    assert spread_out([50.0, 51.0, 90.0], 10.0, 0.0, 95.0) == [50.0, 60.0, 90.0]
    at = spread_out([94.0, 95.0, 95.0], 10.0, 0.0, 95.0)
    assert at == [75.0, 85.0, 95.0]


def test_a_line_has_its_points_whiskers_gaps_and_numbers():
    made = lines(
        "Speed <1>",
        [
            Series(
                "a & b",
                [1.0, None, 3.0, 4.0],
                x=[1.0, 2.0, 3.0, 4.0],
                low=[0.5, None, 2.0, None],
                high=[2.0, None, 4.0, None],
            ),
            Series("paper", [2.0, 2.0], x=[1.0, 4.0], pale=True),
        ],
        Axis("width"),
        Axis("speed", "GFLOP/s"),
        references=[Reference(5.0, "ceiling: 5 GFLOP/s")],
        guides=[Guide(3.0, "here")],
        note="Quarters <around>",
    )
    svg = drawing(made)
    assert svg.get("role") == "img" and svg.find(f"{SVG}title").text == "Speed <1>"
    assert len(of_class(svg, "mark")) == 5 and len(of_class(svg, "whisker")) == 2
    assert len(of_class(svg, "line")) == 2  # A point between gaps has no line.
    assert len(of_class(svg, "reference")) == len(of_class(svg, "guide")) == 1
    told = [one.text for one in svg.iter(f"{SVG}title")]
    assert "a & b: 3 GFLOP/s at 3 (2 to 4 GFLOP/s)" in told
    assert [li.text or li[0].tail for li in of_class(parsed(made), "legend")[0]] == ["a & b", "paper"]
    rows = [[cell.text for cell in row] for row in parsed(made).iter("tr")]
    assert rows[0] == ["width", "a & b (GFLOP/s)", "paper (GFLOP/s)"]
    assert rows[2] == ["2", "–", "–"]


@pytest.mark.parametrize(("values", "left"), [((1.0, 9.0), True), ((9.0, 1.0), False)])
def test_a_label_goes_where_it_covers_less(values, left):
    svg = drawing(
        lines(
            "t",
            [Series("a", values, x=[0.0, 1.0])],
            Axis("x"),
            Axis("y", high=10.0),
            references=[Reference(9.0, "a limit")],
        )
    )
    (label,) = [one for one in of_class(svg, "note") if one.text == "a limit"]
    assert (float(label.get("x")) < 240) == left


def test_coordinates_stay_in_the_drawing():
    made = lines(
        "t",
        [Series("a", [1e-9, 1e9], x=[1.0, 1e6])],
        Axis("x", log=True),
        Axis("y", log=True, high=1e3),
        references=[Reference(1e12, "far above")],
    )
    svg = drawing(made)
    for one in svg.iter():
        for name in ("x", "y", "x1", "x2", "y1", "y2", "cx", "cy"):
            if one.get(name):
                assert 0 <= float(one.get(name)) <= 480


def test_samples_over_time_are_steps_without_markers():
    svg = drawing(
        lines("t", [Series("a", [1.0, 5.0, 2.0], x=[0.0, 1.0, 2.0])], Axis("time", "s"), Axis("load", "%"), step=True)
    )
    (line,) = of_class(svg, "line")
    points = [tuple(map(float, p.split(","))) for p in line.get("points").split()]
    assert len(points) == 5 and not of_class(svg, "mark")
    assert all(a[0] == b[0] or a[1] == b[1] for a, b in itertools.pairwise(points))


def test_bars_are_as_high_as_they_are_large():
    svg = drawing(bars("t", ["M1", "M2"], [Series("a", [10.0, 20.0]), Series("b", [None, 40.0])], Axis("time", "µs")))
    heights = [float(one.find(f"{SVG}rect").get("height")) for one in of_class(svg, "bar")]
    assert heights[1] == pytest.approx(2 * heights[0], abs=0.05) and len(heights) == 3
    assert heights[2] == pytest.approx(4 * heights[0], abs=0.05)
    assert [t.text for t in of_class(svg, "tick") if t.text == "–"] == ["–"]  # a missing value


def test_bars_on_a_log_axis_begin_at_a_power():
    svg = drawing(bars("t", ["M1", "M2"], [Series("a", [10.0, 1000.0])], Axis("t", "µs", log=True)))
    heights = [float(one.find(f"{SVG}rect").get("height")) for one in of_class(svg, "bar")]
    assert 5 < heights[0] < heights[1]


def test_stacked_bars_stand_on_one_another():
    svg = drawing(bars("t", ["M1"], [Series("a", [10.0]), Series("b", [30.0])], Axis("t", "µs"), stacked=True))
    one, other = (bar.find(f"{SVG}rect") for bar in of_class(svg, "bar"))
    assert one.get("x") == other.get("x")
    assert float(other.get("y")) + float(other.get("height")) == pytest.approx(float(one.get("y")), abs=0.02)


def test_points_are_compared_on_one_scale():
    spread = {
        "low": [0.5, 80.0, -2.0],
        "high": [2.0, 120.0, 1.0],
        "x_low": [1.0, 40.0, 2.0],
        "x_high": [4.0, 60.0, 4.0],
    }
    one = Series("a", [1.0, 100.0, -1.0], [2.0, 50.0, 3.0], **spread)
    figure = points("two methods", [one], Axis("slope", "mJ", log=True), Axis("alone", "mJ", log=True))
    tree = drawing(figure)
    (equal,) = of_class(tree, "guide")
    first, second = (mark for mark in tree.iter(f"{SVG}circle"))
    slope = [(float(equal.get(f"{k}2")) - float(equal.get(f"{k}1"))) for k in "xy"]
    for mark, above in ((first, False), (second, True)):  # y < x lies below the line, y > x above it
        on_line = float(equal.get("y1")) + (float(mark.get("cx")) - float(equal.get("x1"))) * slope[1] / slope[0]
        assert (float(mark.get("cy")) < on_line) == above
    assert len(of_class(tree, "whisker")) == 4  # two each: horizontal and vertical
    assert "Values not above zero, which are not shown: 1." in figure


def test_areas_stand_on_one_another():
    x = [1.0, 4.0, 16.0]
    svg = drawing(
        areas(
            "t",
            [Series("a", [1.0, 2.0, 3.0], x=x), Series("b", [1.0, None, 1.0], x=x)],
            Axis("batch", log=True, ticks=x),
            Axis("memory", "MiB"),
        )
    )
    one, other = (area.get("points").split() for area in of_class(svg, "area"))
    assert one[:3] == other[:2:-1]


def test_long_names_are_tilted_and_do_not_touch():
    names = [f"Inception-v{n} of {n} layers" for n in range(12)]
    svg = drawing(bars("t", names, [Series("a", [1.0] * 12)], Axis("t", "s")))
    assert all("rotate" in one.get("transform", "") for one in of_class(svg, "tick") if one.text in names)
    few = drawing(bars("t", ["deep reinforcement", "M2"], [Series("a", [1.0] * 2)], Axis("t", "s")))
    assert not any(one.get("transform") for one in few.iter())


def test_a_page_is_one_well_formed_file():
    made = page(
        "A <study>",
        [
            section(
                "One",
                text("a < b"),
                beside(bars("c", ["M1"], [Series("a", [1.0])], Axis("t", "s"))),
                callout("bad", "No", "x & y"),
                table(
                    ["model", Column("time", "µs", "paper"), Column("here", "µs", "paper"), "says"],
                    [["M1", 22, spread(1234.5, 1000.0, 2000.0), "slow <"], ["M2", None, 1.5, ""]],
                    caption="Backward",
                    note="±3%",
                ),
            )
        ],
        device="opencl:a & b",
        date="2026-11-15",
        facts={"steps": "100"},
    )
    assert made.startswith("<!DOCTYPE html>")
    root = ElementTree.fromstring(made.partition("\n")[2])
    assert root.find("head/title").text == "A <study>"
    shown = "".join(root.find("body").itertext())
    for part in ("opencl:a & b", "2026-11-15", "slow <", "1,234 1,000–2,000", "±3%", "time (µs)"):
        assert part in shown, part
    assert not re.search(r"(?:src|href)=|url\(|@import|<script", made)  # The page loads nothing.
    cells = {cell.text: cell.get("class") for cell in root.iter("td")}
    assert cells["slow <"] == "left" and cells["22"] is None and "–" in cells
    assert [th.get("colspan") for th in root.iter("th") if th.text == "paper"] == ["2"]

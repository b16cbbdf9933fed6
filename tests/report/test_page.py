"""Pages of blocks: what the functions make. tests/browser/test_blocks_page.py sees it drawn."""

from __future__ import annotations

import json
import math

import pytest

from handheld.report.charts import Axis, Guide, Reference, Series, areas, bars, lines, points
from handheld.report.document import document
from handheld.report.numbers import number
from handheld.report.page import (
    NOTHING,
    Column,
    Spread,
    Tile,
    beside,
    busy,
    callout,
    group,
    page,
    section,
    table,
    text,
    tiles,
)
from helpers.blocks import found, words


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


def test_a_line_keeps_points_spreads_gaps_and_helping_lines():
    series = [
        Series("a & b", [1.0, None], x=[1.0, 2.0], low=[0.5, None], high=[2.0, None]),
        Series("paper", [2.0], x=[4.0], pale=True, colour=3),
    ]
    chart = lines(
        "Speed <1>",
        series,
        Axis("width", ticks=[1.0, 2.0]),
        Axis("speed", "GFLOP/s", log=True, low=0.1),
        references=[Reference(5.0, "ceiling")],
        guides=[Guide(3.0, "here")],
        note="Quarters <around>",
        step=True,
    )
    spec = chart["spec"]
    assert spec["series"] == [
        {"name": "a & b", "x": [1.0, 2.0], "y": [1.0, None], "low": [0.5, None], "high": [2.0, None]},
        {"name": "paper", "x": [4.0], "y": [2.0], "pale": True, "colour": 3},
    ]
    assert spec["x"] == {"label": "width", "ticks": [1.0, 2.0], "zero": True}
    assert spec["y"] == {"label": "speed", "unit": "GFLOP/s", "log": True, "low": 0.1, "zero": True}
    assert spec["lines"] == [{"y": 5.0, "label": "ceiling"}] and spec["guides"] == [{"x": 3.0, "label": "here"}]
    assert Axis("load", "%", low=0, high=100).spec()["low"] == 0  # zero is a limit too
    assert spec["step"] is True and chart["note"] == "Quarters <around>"


def test_points_say_how_many_a_logarithmic_axis_cannot_show():
    both = Axis("a", "J", log=True)
    chart = points("t", [Series("s", [1.0, 0.0, None, 2.0], x=[1.0, 2.0, 3.0, -1.0])], both, both, note="Note.")
    assert chart["note"] == "Note. Values not above zero, which are not shown: 3." and chart["spec"]["equal"] is True
    assert points("t", [Series("s", [0.0], x=[0.0])], Axis("a"), Axis("a"))["note"] == ""


def test_bars_and_areas_refuse_what_cannot_be_drawn():
    assert bars("t", ["x", "y"], [Series("a", [1.0, 2.0])], Axis("y"), stacked=True)["spec"]["stacked"] is True
    with pytest.raises(AssertionError, match="logarithmic"):
        bars("t", ["x"], [Series("a", [1.0])], Axis("y", log=True), stacked=True)
    with pytest.raises(AssertionError, match="one value per group"):
        bars("t", ["x"], [Series("a", [1.0, 2.0])], Axis("y"))
    with pytest.raises(AssertionError, match="same x"):
        areas("t", [Series("a", [1.0], x=[1.0]), Series("b", [1.0], x=[2.0])], Axis("x"), Axis("y"))


def test_a_table_keeps_numbers_as_numbers():
    made = table(["name", Column("time", "ms", "here")], [["a", 1.5], ["b", None], ["c", Spread(2.0, 1.0, 3.0)]])
    assert made["rows"] == [["a", 1.5], ["b", None], ["c", {"value": 2.0, "low": 1.0, "high": 3.0}]]
    assert made["columns"][1] == {"name": "time", "unit": "ms", "group": "here"}
    assert table(["x"], [[True], [False]])["rows"] == [["yes"], ["no"]]
    with pytest.raises(AssertionError, match="one cell per column"):
        table(["a", "b"], [["only one"]])


def test_a_page_says_what_and_when_and_leaves_out_nothing_blocks():
    made = page(
        "Title",
        [section("One", NOTHING, text("words"), group(NOTHING)), NOTHING, beside(callout("good", "Yes", "Because."))],
        device="opencl:x (Made <Up>)",
        date="2026-11-15",
        about="About.",
        facts={"batch": "32"},
    )
    assert made["facts"] == [["device", "opencl:x (Made <Up>)"], ["measured", "2026-11-15"], ["batch", "32"]]
    assert [block["type"] for block in made["blocks"]] == ["section", "beside"]
    assert [block["type"] for block in made["blocks"][0]["blocks"]] == ["text", "group"]
    assert found(made, "callout")[0]["tone"] == "good" and "Made <Up>" in words(made)


def test_a_busy_machine_is_a_sentence_and_a_quiet_one_nothing():
    assert busy("") == NOTHING
    assert busy("other processes held 50%")["paragraphs"] == ["Other processes held 50%."]


def test_the_file_has_all_texts_as_data_and_none_as_markup():
    hostile = '</script><img src=x onerror="alert(1)">'
    text_of_file = document(
        page(
            hostile,
            [section(hostile, table([hostile], [[hostile]]), tiles(Tile(hostile, 1.0)))],
            device=hostile,
            date="today",
        )
    )
    assert "<img" not in text_of_file
    data = text_of_file.split('id="data">')[1].split("</script>")[0]
    assert json.loads(data)["blocks"][0]["title"] == hostile

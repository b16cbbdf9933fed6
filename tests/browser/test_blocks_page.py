"""Pages of blocks in a real browser: every kind of chart and the pages of both studies draw."""

from __future__ import annotations

import pytest

from handheld.report.charts import Axis, Guide, Reference, Series, areas, bars, lines, points
from handheld.report.document import write_document
from handheld.report.page import Column, Spread, Tile, beside, callout, listing, page, section, table, text, tiles
from helpers import chromium

HOSTILE = '<img src=x onerror="window.bad=1">'


@pytest.fixture(scope="module")
def browser():
    with chromium.browser() as started:
        yield started


def drawings():
    """Every kind of chart, with gaps, spreads, empty series and names that are markup."""
    many = [f"workload number {n}" for n in range(12)]
    x = [float(2**n) for n in range(8)]
    return [
        lines(
            "Lines",
            [Series("a", [1.0, None, 3.0], x=[1.0, 2.0, 3.0]), Series(HOSTILE, [2.0], x=[2.0])],
            Axis("x"),
            Axis("y", "ms"),
            guides=[Guide(2.0, "here")],
            references=[Reference(2.5, "limit")],
        ),
        lines(
            "Logarithmic",
            [Series("a", [v**2 for v in x], x=x, low=[v for v in x], high=[v**3 for v in x])],
            Axis("width", log=True, ticks=x),
            Axis("time", "µs", log=True),
        ),
        lines(
            "Steps", [Series("a", [1.0, 5.0, 5.0], x=[0.0, 1.0, 2.0])], Axis("t"), Axis("y", low=0, high=10), step=True
        ),
        areas(
            "Areas",
            [Series("a", [1.0, 2.0], x=[0.0, 1.0]), Series("b", [None, 2.0], x=[0.0, 1.0])],
            Axis("x"),
            Axis("y"),
        ),
        bars(
            "Bars",
            many,
            [Series("here", [float(n) for n in range(12)]), Series("paper", [5.0] * 12, pale=True)],
            Axis("y"),
        ),
        bars(
            "Logarithmic bars",
            ["a", "b"],
            [Series("s", [0.001, 1000.0], low=[0.0, 900.0], high=[0.002, 1100.0])],
            Axis("y", log=True),
        ),
        bars("Stacked", ["a", "b"], [Series("s", [1.0, None]), Series("t", [2.0, 3.0])], Axis("y"), stacked=True),
        points(
            "Points",
            [Series("p", [1.0, 2.0, 0.0], x=[1.1, 1.1, 5.0], x_low=[1.0, 1.0, 4.0], x_high=[1.2, 1.2, 6.0])],
            Axis("a", log=True),
            Axis("b", log=True),
        ),
        lines("Empty", [Series("nothing", [None], x=[1.0])], Axis("x"), Axis("y")),
    ]


@pytest.fixture(scope="module")
def every(tmp_path_factory):
    """A page with every type of block."""
    rows = [[f"row {n}", float(n), Spread(n * 2.0, n * 1.5, n * 3.0), HOSTILE] for n in range(30)]
    columns = ["name", Column("time", "ms", "here"), Column("spread", "ms", "here"), "text"]
    payload = page(
        f"All blocks {HOSTILE}",
        [
            section("First", tiles(Tile("steps", 12.0, "ms", "fast")), callout("bad", HOSTILE, HOSTILE), text(HOSTILE)),
            section("Charts", beside(*drawings())),
            section("Table", table(columns, rows, caption="A table", note=HOSTILE), listing([HOSTILE, "b"])),
        ],
        device="made up",
        date="today",
    )
    path = tmp_path_factory.mktemp("blocks") / "all.html"
    write_document(payload, path)
    return path


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
def test_every_chart_draws_without_errors(browser, every, width, theme):
    with chromium.watched(browser, width, theme) as seen:
        opened = seen.open(every)
        assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth")
        colours = chromium.colours(opened)
        assert len(colours) == 9 and all(count > 20 for count in colours[:-1]), colours
        assert opened.evaluate("window.bad === undefined") and seen.problems == []


def test_tables_sort_and_search_and_charts_show_their_numbers(browser, every):
    with chromium.watched(browser) as seen:
        opened = seen.open(every)
        first = ".words tbody tr:first-child td:first-child"
        assert opened.inner_text(first) == "row 0"
        opened.click('.words [data-sort="1"]')
        assert opened.inner_text(first) == "row 29"
        opened.fill(".words input", "row 29")
        assert opened.locator(".words tbody tr").count() == 1
        assert opened.inner_text(".groups th:nth-child(2)") == "here"
        numbers = opened.locator("#stacked details")
        numbers.locator("summary").click()
        assert [cell.strip() for cell in numbers.locator("tbody td").all_inner_texts()] == ["1", "2", "–", "3"]
        assert seen.problems == []


def test_a_figure_is_saved_as_svg_and_png(browser, every):
    with chromium.watched(browser) as seen:
        opened = seen.open(every)
        for kind, begin in (("svg", b"<svg"), ("png", b"\x89PNG")):
            with opened.expect_download() as saved:
                opened.click(f"#bars [data-save={kind}]")
            content = saved.value.path().read_bytes()
            assert content.lstrip()[:5].startswith(begin) and len(content) > 3000
        assert seen.problems == []


def test_numbers_beside_an_axis_differ_from_each_other(browser, tmp_path):
    """Losses that hardly change need more digits than others: 1.1001, not 1.1 at each tick."""
    losses = Series("loss", [1.1001, 1.1009, 1.1013], [1.0, 2.0, 3.0])
    figure = lines("Loss", [losses], Axis("epoch"), Axis("loss", zero=False))
    write_document(page("A page", [section("One", figure)], device="", date="", about=""), tmp_path / "a.html")
    with chromium.watched(browser) as seen:
        seen.page.add_init_script(
            "window.drawn = []; const fill = CanvasRenderingContext2D.prototype.fillText;"
            "CanvasRenderingContext2D.prototype.fillText = function (text, ...at) {"
            " window.drawn.push(String(text)); return fill.call(this, text, ...at); };"
        )
        drawn = seen.open(tmp_path / "a.html").evaluate("window.drawn")
    beside = {text for text in drawn if text.startswith("1.1")}
    assert len(beside) >= 3, drawn

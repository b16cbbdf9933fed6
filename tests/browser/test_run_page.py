"""The page of a run in a real browser: it draws, reacts, prints, saves, and asks nobody for anything."""

from __future__ import annotations

import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from handheld.analyse.run import open_run
from handheld.report.document import write_document
from handheld.report.pack import columns
from handheld.report.run_payload import run_payload
from handheld.sensors.base import Channel
from helpers import chromium
from helpers.large_runs import NASTY, large_run
from helpers.run_files import MadeRun

FIGURES = (
    "breakdown-train",
    "timeline",
    "memory",
    "roofline",
    "energy-rails",
    "variance-train",
    "spread-train",
    "cores",
)
#: How many different colours a canvas has: one that was not drawn has a single one.
COLOURS = """id => [...document.querySelectorAll(`#${id} canvas`)].map(canvas => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    return new Set(new Uint32Array(data.buffer)).size;
})"""


@pytest.fixture(scope="module")
def browser():
    with chromium.browser() as started:
        yield started


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """1,000 ops and 100 steps, with sensors."""
    folder = tmp_path_factory.mktemp("large")
    with large_run(folder / "one.run") as run:
        write_document(run_payload(run), folder / "one.html")
    return folder / "one.html"


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Two ops, no sensors."""
    folder = tmp_path_factory.mktemp("plain")
    made = MadeRun(folder / "one.run")
    made.steps(60)
    with made.open() as run:
        write_document(run_payload(run), folder / "one.html")
    return folder / "one.html"


@pytest.fixture
def page(browser, large):
    """The large page, open. The test fails if the console has an error or a request leaves the page."""
    with chromium.watched(browser) as seen:
        yield seen.open(large)
        assert seen.problems == []


def test_it_is_small_and_loads_quickly(browser, large):
    assert large.stat().st_size < 15_000_000
    with chromium.watched(browser) as seen:
        begun = time.monotonic()
        page = seen.open(large)
        page.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
        assert time.monotonic() - begun < 3
        assert seen.problems == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
def test_every_figure_draws_and_nothing_scrolls_sideways(browser, large, width, theme):
    with chromium.watched(browser, width, theme) as seen:
        page = seen.open(large)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.evaluate("document.documentElement.dataset.theme") == theme
        drawn = {name: page.evaluate(COLOURS, name) for name in FIGURES}
        assert all(counts and min(counts) > 3 for counts in drawn.values()), drawn
        assert seen.problems == []


def test_html_in_names_stays_text(page):
    assert page.evaluate("window.hurt") is None and page.locator("#page img, #page script").count() == 0
    page.fill("#op-table input", "onerror")
    assert page.inner_text("#op-table tbody tr:first-child td:first-child") == NASTY
    assert f"made up {NASTY}" in page.inner_text("header")


def test_the_table_of_ops_is_sorted_and_searched(page):
    def times() -> list[float]:
        cells = page.locator("#op-table tbody tr td:nth-child(4)").all_inner_texts()
        return [float(cell) for cell in cells]

    assert times() == sorted(times(), reverse=True) and len(times()) == 50
    page.click("#op-table [data-sort=ms]")
    assert times() == sorted(times())
    page.click("#op-table [data-sort=path]")
    paths = page.locator("#op-table tbody tr td:first-child").all_inner_texts()
    assert paths[:2] == [NASTY, NASTY] and paths[2].startswith("stage0.")
    page.fill("#op-table input", "stage3 CONV2 backward")
    found = page.locator("#op-table tbody tr").all_inner_texts()
    assert found and all("stage3" in row and "conv2" in row and "backward" in row for row in found)
    page.fill("#op-table input", "")
    page.click("#op-table [data-more]")
    assert page.locator("#op-table tbody tr").count() == 1000


def until(true) -> None:
    """Wait for a condition. Playwright's own waiting evaluates text, which the page's policy forbids."""
    deadline = time.monotonic() + 5
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def view(page) -> tuple[float, float]:
    begin, end = page.get_attribute("#timeline .range", "data-range").split()
    return float(begin), float(end)


def surface(page) -> dict[str, float]:
    """Where the timeline is in the window, after scrolling to it."""
    page.evaluate("document.querySelector('#timeline .surface').scrollIntoView({ behavior: 'instant' })")
    return page.locator("#timeline .surface").bounding_box()


def test_the_timeline_zooms_and_moves(page):
    first = view(page)
    page.click("#timeline [data-zoom=in]")
    near = view(page)
    assert near[1] - near[0] == pytest.approx((first[1] - first[0]) / 2)
    box = surface(page)
    page.mouse.move(box["x"] + 700, box["y"] + 90)
    page.mouse.down()
    page.mouse.move(box["x"] + 500, box["y"] + 90, steps=4)
    page.mouse.up()
    moved = view(page)
    assert moved[0] > near[0] and moved[1] - moved[0] == pytest.approx(near[1] - near[0])
    page.keyboard.down("Control")
    page.mouse.wheel(0, -300)
    page.keyboard.up("Control")
    until(lambda: view(page) != moved)
    assert view(page)[1] - view(page)[0] < moved[1] - moved[0]
    page.locator("#timeline .surface").focus()
    page.keyboard.press("0")
    until(lambda: view(page)[0] == 0)
    assert view(page)[1] > 100 * 10, "the whole run"
    page.select_option("[data-step-choice]", index=1)
    assert view(page)[1] - view(page)[0] < 40


def test_the_timeline_names_the_op_under_the_pointer(page):
    for _ in range(4):
        page.click("#timeline [data-zoom=in]")
    box = surface(page)
    page.mouse.move(box["x"] + 600, box["y"] + 95)
    text = page.inner_text(".tooltip")
    assert "mean of recorded steps" in text and "phase" in text and "stage" in text
    lanes = page.locator("#timeline [data-lane]").all_inner_texts()
    assert {"device", "memory alive", "power", "temperature"} <= set(lanes)
    before = page.locator("#timeline canvas").bounding_box()["height"]
    page.click("#timeline [data-lane=power]")
    assert page.locator("#timeline canvas").bounding_box()["height"] < before


def test_the_tree_opens_and_closes(page):
    rows = page.locator("#tree tbody tr")
    closed = rows.count()
    page.click("#tree [data-fold=stage1]")
    assert rows.count() == closed + 31
    page.click('#tree [data-fold="stage1.block0"]')
    page.click('#tree [data-fold="stage1.block0.conv0"]')
    assert page.locator("#tree tbody tr.leaf").count() > 0
    shares = page.locator('#tree tbody tr[aria-level="2"] td:nth-child(4)').all_inner_texts()
    whole = page.inner_text('#tree tbody tr[aria-level="1"] td:nth-child(4)')
    assert sum(float(share.rstrip("%")) for share in shares) == pytest.approx(float(whole.rstrip("%")), abs=0.5)
    page.click("#tree [data-tree=none]")
    assert rows.count() == closed
    page.click("#tree [data-tree=all]")
    assert rows.count() == 600 and "The first 600 of" in page.inner_text("#tree .more")


def test_the_theme_is_chosen(page):
    def paper() -> str:
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    light = paper()
    page.click("[data-theme-choice=dark]")
    assert paper() != light and page.get_attribute("[data-theme-choice=dark]", "aria-pressed") == "true"
    page.reload()
    page.wait_for_selector("html[data-drawn]")
    assert paper() != light, "the choice is kept"
    page.emulate_media(color_scheme="light")
    page.click("[data-theme-choice=system]")
    assert paper() == light
    page.emulate_media(color_scheme="dark")
    until(lambda: page.get_attribute("html", "data-theme") == "dark")


def test_it_prints_on_light_paper_without_cutting(page):
    page.click("[data-theme-choice=dark]")
    page.evaluate("""() => { window.printed = []; window.addEventListener("beforeprint", () => setTimeout(() => 0));
        new MutationObserver(() => window.printed.push(document.documentElement.dataset.theme))
            .observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] }); }""")
    pdf = page.pdf(format="A4", print_background=True)
    assert pdf.startswith(b"%PDF") and len(pdf) > 20_000
    assert "light" in page.evaluate("window.printed") and page.get_attribute("html", "data-theme") == "dark"
    page.set_viewport_size({"width": 720, "height": 900})
    page.emulate_media(media="print")
    assert not page.is_visible(".switch") and not page.is_visible(".tools >> nth=0")
    wide = "[...document.querySelectorAll('.wide, .plot, .canvas')].filter(e => e.scrollWidth > e.clientWidth + 1)"
    assert page.evaluate(f"{wide}.map(e => e.parentElement.id || e.className)") == []


def test_a_table_prints_200_rows_and_counts_the_rest(page):
    page.evaluate("""() => { window.addEventListener("beforeprint", () => {
        const table = document.querySelector("#op-table");
        window.printed = [table.querySelectorAll("tbody tr").length, table.querySelector(".more").innerText];
    }); }""")
    page.pdf(format="A4")
    rows, text = page.evaluate("window.printed")
    assert rows == 200 and "The first 200 of 1,000 rows; 800 more are not shown." in text
    assert page.locator("#op-table tbody tr").count() == 50
    page.fill("#op-table input", "stage3")
    found = int(page.inner_text("#op-table .found").split(" of ")[0])
    page.pdf(format="A4")
    rows, text = page.evaluate("window.printed")
    assert 50 < found < 200 and rows == found and f"All {found} rows." in text


@pytest.mark.parametrize("figure", FIGURES)
def test_figures_are_saved(page, figure):
    for kind in ("svg", "png"):
        with page.expect_download() as waiting:
            page.click(f"#{figure} [data-save={kind}]")
        saved = waiting.value
        assert saved.suggested_filename == f"large-{figure}.{kind}"
        content = Path(saved.path()).read_bytes()
        if kind == "png":
            assert content.startswith(b"\x89PNG") and len(content) > 4000
        else:
            tree = ElementTree.fromstring(content)
            names = [element.tag.rpartition("}")[2] for element in tree.iter()]
            assert names.count("text") > 3 and len(names) > 10 and names.count("image") == 0


def test_what_limits_the_step_comes_first(page, large):
    with open_run(large.with_name("one.run")) as run:
        known = run.bound()
    assert page.inner_text("#answer .lead") == known.text
    shares = page.locator("#answer .limits i").evaluate_all("bars => bars.map(bar => parseFloat(bar.style.width))")
    assert sum(shares) == pytest.approx(100, abs=0.5)


def test_joules_per_op_are_drawn(browser, tmp_path):
    """The figure and the columns of energy, from rows of joules per op."""
    with large_run(tmp_path / "one.run", ops=30, steps=20) as run:
        payload = run_payload(run)
    rows = {"id": list(range(30)), "rail": ["board/gpu energy"] * 30, "joules": [0.001 * (n + 1) for n in range(30)]}
    rows |= {"low": [0.0009 * (n + 1) for n in range(30)], "high": [0.0011 * (n + 1) for n in range(30)]}
    payload["energy"]["ops"] = columns({**rows, "source": ["model"] * 30}, ["rail", "source"])
    write_document(payload, tmp_path / "one.html")
    with chromium.watched(browser) as seen:
        page = seen.open(tmp_path / "one.html")
        assert "465 mJ in all ops" in page.inner_text("#energy-ops-board-gpu-energy h3")
        assert min(page.evaluate(COLOURS, "energy-ops-board-gpu-energy")) > 3
        page.click("#op-table [data-sort=joules]")
        assert "30 mJ" in page.inner_text("#op-table tbody tr:first-child")
        assert "465 mJ" in page.inner_text("#tree tbody tr:first-child")
        assert "≥" not in page.inner_text("#tree")
        assert seen.problems == []


def test_joules_of_some_ops_are_no_total(browser, tmp_path):
    """Windows of --energy may cover some ops only; a sum over these is marked."""
    made = MadeRun(tmp_path / "one.run")
    made.steps(40)
    for method, extra in (("slope", 0), ("alone", 1)):
        for _ in range(3):
            made.window(method, "sig0" if extra else "", [0] if extra else [], extra, 50, 1.0)
    made.source("board", [Channel("rail", "energy", counter=True, covers=("system",))], 10, lambda s: [20 * (s + 5)])
    with made.open() as run:
        rows = run.joules()
        assert {row.id for row in rows} == {0} and len(run.op_rows) == 2
        write_document(run_payload(run), tmp_path / "one.html")
    with chromium.watched(browser) as seen:
        page = seen.open(tmp_path / "one.html")
        assert "in 1 of 2 ops" in page.inner_text("#energy-ops-board-rail h3")
        assert "≥" in page.inner_text("#tree tbody tr:first-child") and "1 of 2 ops" in page.inner_text("#tree")
        assert seen.problems == []


def test_a_run_without_sensors_says_what_is_missing(browser, plain):
    with chromium.watched(browser) as seen:
        page = seen.open(plain)
        assert "No power sensor was read" in page.inner_text("#energy-part") or "No sensor" in page.inner_text(
            "#energy-part"
        )
        assert page.locator("#energy-part figure").count() == 0 and page.locator("#cores").count() == 0
        assert "does not report the time of its cores" in page.inner_text("#variance-part")
        assert "ceilings of this device were not measured" in page.inner_text("#roofline-part")
        assert seen.problems == []


def test_a_run_without_op_times_says_why(browser, tmp_path):
    made = MadeRun(tmp_path / "one.run")
    made.steps(40, first=4, every=1000)
    made.writer.note("no op times", "the driver has no profiling queue")
    with made.open() as run:
        write_document(run_payload(run), tmp_path / "one.html")
    with chromium.watched(browser) as seen:
        page = seen.open(tmp_path / "one.html")
        for part in ("#time", "#timeline-part", "#roofline-part", "#model"):
            assert "the driver has no profiling queue" in page.inner_text(part), part
        assert page.locator("#time figure, #timeline-part figure, #roofline-part figure").count() == 0
        assert page.locator("#variance-part figure").count() == 2
        assert seen.problems == []


def test_a_run_without_steps(browser, tmp_path):
    with MadeRun(tmp_path / "one.run", status="running").open() as run:
        write_document(run_payload(run), tmp_path / "one.html")
    with chromium.watched(browser, 400) as seen:
        page = seen.open(tmp_path / "one.html")
        assert "running" in page.inner_text("header") and page.locator("#op-table tbody tr").count() == 2
        assert seen.problems == []

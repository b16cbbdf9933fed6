"""The page of a run in a real browser."""

from __future__ import annotations

import pytest

from handheld.report.document import write_document
from handheld.report.run_payload import run_payload
from helpers import chromium
from helpers.run_files import MadeRun


@pytest.fixture(scope="module")
def browser():
    with chromium.browser() as started:
        yield started


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The page of a run without sensors."""
    folder = tmp_path_factory.mktemp("plain")
    made = MadeRun(folder / "one.run")
    made.steps(60)
    with made.open() as run:
        write_document(run_payload(run), folder / "one.html")
    return folder / "one.html"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
def test_it_draws_without_errors_and_without_scrolling_sideways(browser, plain, width, theme):
    with chromium.watched(browser, width, theme) as seen:
        page = seen.open(plain)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.evaluate("document.documentElement.dataset.theme") == theme
        assert seen.problems == []


def test_the_table_of_ops_is_sorted_and_searched(browser, plain):
    with chromium.watched(browser) as seen:
        page = seen.open(plain)
        first = "#op-table tbody tr:first-child td:nth-child(2)"
        assert page.inner_text(first) == "conv"
        page.click("#op-table [data-sort=ms]")
        assert page.inner_text(first) == "conv_input"
        page.fill("#op-table input", "FORWARD conv")
        assert page.locator("#op-table tbody tr").count() == 1 and page.inner_text(first) == "conv"
        assert seen.problems == []

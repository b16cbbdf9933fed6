"""The pages of `handheld serve` in a real browser: the list, a run that goes on, and a comparison."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import psutil
import pytest

from handheld.analyse.compare import compare_files
from handheld.report.compare_payload import compare_payload
from handheld.report.document import write_document
from handheld.serve.server import Server
from handheld.store.rows import OpRow
from handheld.store.writer import RunWriter
from helpers import chromium
from helpers.noisy_runs import network, noisy_run


@pytest.fixture(scope="module")
def browser():
    with chromium.browser() as started:
        yield started


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("served")
    noisy_run(path / "a.run", 1, settings={"what": "<script>alert(1)</script>"})
    noisy_run(path / "b.run", 2, slower={6: 1.2}, ops=[("<img src=x>", "conv", "forward", 0.5), *network()[1:]])
    (path / "other.run").write_bytes(b"mine")
    (path / "notes.txt").write_text("mine")
    return path


@pytest.fixture(scope="module")
def server(folder):
    with Server(folder, 0) as started:
        threading.Thread(target=started.serve_forever, daemon=True).start()
        yield started
        started.shutdown()


@pytest.fixture
def page(browser, server):
    """A page on the server. The test fails if the console has an error or a request goes elsewhere."""
    with chromium.watched(browser) as seen:
        seen.page.goto(server.address)
        seen.page.wait_for_selector("html[data-drawn]", timeout=20_000)
        yield seen.page
        assert [text for text in seen.problems if server.address not in text] == []


def test_the_list(page):
    assert page.locator("#runs tbody tr").count() == 2
    assert page.locator("#runs tbody").inner_text().count("<script>alert(1)</script>") == 1
    assert "1 files named .run cannot be read" in page.locator("#unread").inner_text()
    assert "1 other file in this folder is not shown" in page.locator("main").inner_text()
    page.fill("input[type=search]", "b.run")
    assert page.locator("#runs tbody tr").count() == 1


def test_a_new_run_appears_and_is_live(page, folder, server):
    writer = RunWriter(folder / "now.run")
    try:
        own = psutil.Process()
        writer.meta(
            status="running", device="opencl", caps={"name": "made up"}, settings={"what": "now"},
            process={"pid": os.getpid(), "created": own.create_time()},
        )  # fmt: skip
        writer.add(OpRow(0, "train", 0, "conv", "aten.conv", "forward", "layer", "s", "", 1, 1, 1, {}))
        for step in range(20):
            writer.put("step", step, "train", 8, 10**9 + step * 10**7, 10**9 + step * 10**7 + 9 * 10**6, None, None)
        writer.commit()
        page.wait_for_selector("#runs a:text('now.run')", timeout=20_000)
        assert "running" in page.locator("#runs tr", has_text="now.run").inner_text()
        page.click("#runs a:text('now.run')")
        page.wait_for_selector(".live")
        assert "20 steps" in page.locator(".facts").inner_text()
        for step in range(20, 50):
            writer.put("step", step, "train", 8, 10**9 + step * 10**7, 10**9 + step * 10**7 + 9 * 10**6, None, None)
        writer.commit()
        page.wait_for_selector(".facts:has-text('50 steps')", timeout=20_000)
        writer.meta(status="complete")
    finally:
        writer.close()
    page.wait_for_selector(".live", state="detached", timeout=20_000)
    page.click(".back")
    page.wait_for_selector("#runs")
    (folder / "now.run").unlink()


def test_two_runs_are_picked_and_compared(page, server):
    assert page.get_attribute("#compare", "href") is None
    page.check("input[aria-label='Pick a.run']")
    assert page.get_attribute("#compare", "href") is None
    page.check("input[aria-label='Pick b.run']")
    page.click("#compare")
    page.wait_for_selector("#pair-0")
    assert "Slower: layers.1 conv_weight" in page.locator(".lead").inner_text()
    assert page.locator("#pair-0-only-b td", has_text="<img src=x>").count() == 1
    colours = page.evaluate(
        """() => { const canvas = document.querySelector("#pair-0-intervals canvas");
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        return new Set(new Uint32Array(data.buffer)).size; }"""
    )
    assert colours > 5
    rows = page.locator("#pair-0-op-table tbody tr")
    page.fill("#pair-0-op-table input", "conv_weight layers.1")
    assert rows.count() == 1 and "slower" in rows.first.inner_text()
    page.click(".back")
    page.wait_for_selector("#runs")


@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_of_a_comparison_needs_no_server(browser, folder, tmp_path, width, theme):
    write_document(compare_payload(compare_files([folder / "a.run", folder / "b.run"])), tmp_path / "c.html")
    with chromium.watched(browser, width, theme) as seen:
        page = seen.open(tmp_path / "c.html")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.locator("#pair-0-intervals canvas").count() == 1
        assert "a.run" in page.inner_text("header") and str(folder) not in (tmp_path / "c.html").read_text()
        cut = "[...document.querySelectorAll('.wide')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
        assert page.evaluate(cut) == 0, "the verdict is seen without scrolling"
        said = page.locator("#pair-0-op-table .narrow")
        assert said.is_visible() == (width == 400) == page.locator("#pair-0-op-table th.minor").first.is_hidden()
        assert "95% interval" in said.text_content()
        assert seen.problems == []

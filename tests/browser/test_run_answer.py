"""The answer of a run's page in a browser: advice, its command, and why two times of a step differ."""

from __future__ import annotations

import pytest

from handheld.report.document import write_document
from handheld.report.run_payload import run_payload
from helpers import chromium
from helpers.advised_runs import launch_bound
from helpers.run_files import MadeRun


@pytest.fixture(scope="module")
def browser():
    with chromium.browser() as started:
        yield started


def written(run, path):
    payload = run_payload(run)
    write_document(payload, path)
    return payload


@pytest.mark.parametrize("width", [400, 1400])
def test_the_advice_follows_what_limits_the_step(browser, tmp_path, width):
    with launch_bound(tmp_path / "one.run") as run:
        payload = written(run, tmp_path / "one.html")
    with chromium.watched(browser, width) as seen:
        page = seen.open(tmp_path / "one.html")
        item = payload["answer"]["advice"]["items"][0]
        text = page.inner_text("#answer .piece >> nth=0")
        for part in (f"{item['factor']:.2f}×", item["gain"], item["spread"], item["change"], item["values"]):
            assert part in text, part
        assert item["seen"] in text and "per step" in text
        assert page.inner_text("#answer .piece code >> nth=0") == item["command"]
        below = page.locator("#answer .piece").first.bounding_box()["y"]
        assert page.locator("#answer .lead").first.bounding_box()["y"] < below
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert seen.problems == []


def test_the_command_is_copied(browser, tmp_path):
    with launch_bound(tmp_path / "one.run") as run:
        written(run, tmp_path / "one.html")
    with chromium.watched(browser) as seen:
        page = seen.open(tmp_path / "one.html")
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.click("#answer [data-copy] >> nth=0")
        page.wait_for_selector("#answer [data-copy]:text('Copied')")
        assert page.evaluate("navigator.clipboard.readText()") == "handheld advise one.run --try --rule launches"
        assert seen.problems == []


def test_a_command_is_selected_where_the_clipboard_is_forbidden(browser, tmp_path):
    with launch_bound(tmp_path / "one.run") as run:
        written(run, tmp_path / "one.html")
    with chromium.watched(browser) as seen:
        page = seen.open(tmp_path / "one.html")
        page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error('forbidden')); }")
        page.click("#answer [data-copy] >> nth=0")
        assert page.evaluate("getSelection().toString()") == "handheld advise one.run --try --rule launches"
        assert seen.problems == []


def test_no_advice_is_one_sentence(browser, tmp_path):
    made = MadeRun(tmp_path / "one.run")
    made.steps(60)
    with made.open() as run:
        written(run, tmp_path / "one.html")
    with chromium.watched(browser) as seen:
        page = seen.open(tmp_path / "one.html")
        assert page.inner_text("[data-advice=none]") == "There is no advice: no rule found something clear to gain."
        assert page.locator("#answer .piece").count() == 0
        assert seen.problems == []


@pytest.mark.parametrize(("factor", "word"), [(1.05, "slower"), (1.01, ""), (0.9, "faster")])
def test_two_times_of_a_step_are_explained(browser, tmp_path, factor, word):
    with launch_bound(tmp_path / "one.run", slower=factor) as run:
        payload = written(run, tmp_path / "one.html")
    with chromium.watched(browser) as seen:
        page = seen.open(tmp_path / "one.html")
        said = page.locator("#breakdown-train [data-slower]")
        assert said.count() == bool(word)
        if word:
            graph = payload["graphs"][0]
            change = abs(graph["parts_ms"] / graph["ms"] - 1)
            assert f"{change:.1%} {word}" in said.inner_text()
            tile = page.inner_text("#answer .tile:first-child .value")
            assert (
                tile in said.inner_text() and page.inner_text("#breakdown-train h3").split(": ")[1] in said.inner_text()
            )
        assert seen.problems == []


def test_tables_say_mean_and_share_of_the_step_and_low_ceilings(browser, tmp_path):
    made = MadeRun(tmp_path / "one.run")
    made.steps(60)
    with made.open() as run:
        payload, parts = run_payload(run), run.parts()
    low = "probably too low: other processes used 76% of the processors"
    payload["answer"] |= {"gflops": 35.2, "flops_share": 0.52, "ceilings_low": low}
    payload["ceilings"] = {"flops": 1e3, "bytes_s": 1e3, "low": low}
    write_document(payload, tmp_path / "one.html")
    with chromium.watched(browser, 400) as seen:
        page = seen.open(tmp_path / "one.html")
        for table in ("#op-table", "#tree"):
            head = page.inner_text(f"{table} thead")
            assert "Mean" in head and "Of the step" in head
        busy = (parts.forward + parts.backward + parts.update) / parts.ms
        assert f"{busy:.1%}" in page.inner_text("#tree tbody tr >> nth=0")
        assert "52% of the ceiling, which is probably too low" in page.inner_text("#answer .tiles")
        assert low in page.inner_text("#answer [data-low]") and low in page.inner_text("#roofline-part .callout")
        assert "above the roof: the ceilings are probably too low" in page.inner_text("#roofline .note")
        assert seen.problems == []

"""The page of a results folder."""

from __future__ import annotations

import handheld.bench as runner
from handheld.bench.page import bench_page
from handheld.report.document import write_document
from helpers import chromium
from helpers.bench_rows import folder, row
from helpers.blocks import found, words


def made(path, *rows):
    results = folder(path, list(rows))
    return bench_page(results, runner.card(results.rows))


def test_the_page_shows_every_run_and_why_others_did_not_train(tmp_path):
    rows = [
        row("mlp <i>", "opencl", 4, samples_s=100.0, joules_sample=0.5, planned_bytes=2 << 20),
        row("mlp <i>", "pytorch:cpu", 4, samples_s=50.0, arithmetic="float32", device_busy=0.5),
        row("gpt", "opencl", 16, samples_s=None, step_ms=None),
        row("vgg", "opencl", 4, status="does not fit", reason="the plan needs 3 GiB", samples_s=None),
    ]
    page = made(tmp_path / "results", *rows)
    speed, *others = found(page, "chart")
    assert speed["title"] == "Samples per second, batch 4" and speed["spec"]["x"]["categories"] == ["mlp <i>"]
    assert [(one["name"], one["y"]) for one in speed["spec"]["series"]] == [
        ("opencl", [100.0]),
        ("pytorch:cpu", [50.0]),
    ]
    assert {one["title"] for one in others} == {"Memory, batch 4", "Memory, batch 16", "Energy per sample, batch 4"}
    runs, failed = found(page, "table")
    assert [cells[0] for cells in runs["rows"]] == ["gpt", "mlp <i>", "mlp <i>"]
    assert runs["rows"][0][3] is None and runs["rows"][1][5] == 2.0 and runs["rows"][2][7] == 50.0
    assert [cells[2] for cells in runs["rows"]] == ["16", "4", "4"] and runs["rows"][2][-1] == "float32"
    assert failed["rows"] == [["vgg", "opencl", "batch 4", "does not fit", "the plan needs 3 GiB"]]
    write_document(page, tmp_path / "bench.html")
    with chromium.browser() as browser, chromium.watched(browser, 400) as seen:
        opened = seen.open(tmp_path / "bench.html")
        colours = chromium.colours(opened)
        assert len(colours) == 4 and min(colours) > 20
        assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth") and seen.problems == []


def test_without_a_power_sensor_and_without_trained_runs(tmp_path):
    page = made(tmp_path / "results", row("vgg", status="failed", reason="no", samples_s=None))
    text = words(page)
    assert not found(page, "chart") and "no run trained long enough" in text and "no power sensor" in text
    assert found(page, "tiles")[0]["tiles"][0]["value"] == "0 of 1"

"""The page of a fleet in a real browser: wide, dark, and on a phone."""

from __future__ import annotations

import pytest

from handheld.cache import write_json
from handheld.fleet.figures import parts
from handheld.fleet.folder import open_fleet
from handheld.fleet.page import fleet_page
from handheld.report.document import write_document
from helpers import bench_rows, chromium

HOSTILE = '<img src=x onerror="window.bad=1">'


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Three devices: one measured energy, on one a workload does not fit, and one failed before its first run."""
    folder = tmp_path_factory.mktemp("fleet")
    small = bench_rows.row("mlp", step_ms=4.0, samples_s=1000.0, joules_sample=0.002)
    fast = [small, bench_rows.row("vgg", step_ms=90.0, planned_bytes=2**27)]
    slow = [
        bench_rows.row("mlp", step_ms=8.0, samples_s=500.0),
        bench_rows.row("vgg", status="does not fit", reason=f"needs 128 MiB; there are 64 MiB {HOSTILE}", step_ms=None),
    ]
    bench_rows.folder(folder / "pixel", fast)
    bench_rows.folder(folder / "pi", slow)
    record = {"target": "adb", "reason": "", "seconds": 12.0, "hottest_celsius": 41.5, "battery_percent": [80.0, 78.0]}
    devices = {
        "pixel": {**record, "state": "done", "notes": ["thermal_limit is not checked: no zone"]},
        "pi": {**record, "state": "done", "hottest_celsius": None, "battery_percent": []},
        "jetson": {"target": "ssh", "state": "failed", "reason": HOSTILE, "seconds": 0.5},
    }
    summary = {"format": 1, "what": "bench", "command": ["bench", "mlp", "vgg"], "devices": devices}
    write_json(folder / "fleet.json", {**summary, "created": "2026-01-01T00:00:00+00:00", "handheld": "1"})
    path = folder / "index.html"
    write_document(fleet_page(open_fleet(folder), parts(folder)), path)
    return path


@pytest.mark.parametrize("width, theme", [(1400, "light"), (1400, "dark"), (400, "light")])
def test_the_page_ranks_and_says_what_trains_where(page, width, theme):
    with chromium.browser() as browser, chromium.watched(browser, width, theme) as watched:
        shown = watched.open(page)
        tables = [
            [row.split("\t") for row in table.inner_text().splitlines() if row.strip()]
            for table in shown.locator("table").all()
            if table.is_visible()
        ]
        cells = [[cell.strip() for cell in row] for table in tables for row in table]
        assert ["mlp, batch 4", "ok", "ok", "–"] in cells and ["vgg, batch 4", "ok", "does not fit", "–"] in cells
        (first,) = [row for row in cells if row[:2] == ["mlp, batch 4", "pixel"]]
        (second,) = [row for row in cells if row[:2] == ["mlp, batch 4", "pi"]]
        assert first[2] == "1" and second[2] == "2", "by time"
        assert first[5] == "1" and second[5] == "–", "energy was measured on one of them"
        assert not watched.problems and shown.evaluate("window.bad") is None
        assert shown.evaluate("document.documentElement.scrollWidth") <= width

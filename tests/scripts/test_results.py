"""docs/results.md is up to date with results/, and a benchmark's --json renews a file there."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    kept = list(sys.path)
    spec = importlib.util.spec_from_file_location("make_results", ROOT / "scripts" / "make_results.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = kept


@pytest.fixture(scope="module")
def result_file(script: ModuleType) -> ModuleType:
    return sys.modules["result_file"]


def test_the_page_is_fresh(script):
    stale = "docs/results.md is stale. Run: python scripts/make_results.py"
    assert script.PAGE.read_text(encoding="utf-8") == script.page(), stale


def test_the_page_is_short_on_top_and_not_wide(script):
    lines = script.page().splitlines()
    summary = lines[: lines.index("## Devices")]
    assert len([line for line in summary if line.startswith("- ")]) <= 10
    assert not [line for line in summary if line.startswith("  ")], "a summary of one line per fact"
    assert not [line for line in lines if len(line) > 120]


def test_every_figure_says_where_and_when(script):
    known = {device["id"] for device in json.loads(script.DEVICES.read_text(encoding="utf-8"))}
    for content in script.files():
        keys = [row.key for row in content.rows]
        assert len(keys) == len(set(keys)), f"{content.title}: two rows of one figure"
        for row in content.rows:
            assert row.device in known, f"{row.device} is not in results/devices.json"
            assert row.date and row.commit, row
            assert row.ratio is None or row.against, row


def test_misses_are_listed(script, result_file):
    row = result_file.Row
    content = result_file.ResultFile(
        "Steps",
        (
            row("a", "cpu", 3.0, "ms", 1.3, "PyTorch", goal="ratio <= 1.2"),
            row("b", "cpu", 3.0, "ms", 1.1, "PyTorch", goal="ratio <= 1.2"),
            row("c", "cpu", 50, "%", goal="walked % >= 80", details={"walked %": 70}),
            row("d", "cpu", "holds", goal="value >= 1"),
        ),
    )
    assert [r.met for r in content.rows] == [False, True, False, None]
    said = script.misses([content])
    assert "- Steps: a, cpu: 1.3, wanted ratio ≤ 1.2.\n- Steps: c, cpu: 70, wanted walked % ≥ 80." in said
    assert "Steps: b" not in said
    assert "| a | 3 | 1.30 | ratio ≤ 1.2 ✗ | cpu |" in script.tables(content.rows[:2])[0]


def test_a_summary_takes_its_figures_from_the_rows(script, result_file):
    content = result_file.ResultFile("Steps", (result_file.Row("a b", "cpu", 3.5, "ms", 0.756, "PyTorch"),))
    assert script.filled(content, "{ratio:a b|cpu} and {value:a b|cpu} ms") == "0.76 and 3.5 ms"
    with pytest.raises(KeyError, match="no row 'c' on 'cpu'"):
        script.filled(content, "{ratio:c|cpu}")


def test_a_new_run_replaces_its_own_rows(result_file, tmp_path, monkeypatch):
    path, row = tmp_path / "steps.json", result_file.Row
    old = (
        row("a", "cpu", 3.0, "ms", date="2020-01-01", commit="abc1234", goal="value <= 4"),
        row("b", "cpu", 5.0, "ms", date="2020-01-01", commit="abc1234"),
    )
    result_file.write(path, result_file.ResultFile("Steps", old, 7, ("About.",), "Summary."))
    monkeypatch.setattr(sys, "argv", ["/x/bench/peers.py", "--only", "a", "--json", str(path), "--rounds", "3"])
    result_file.save(path, "Other", [row("a", "cpu", 9.0, "ms"), row("a", "gpu", 1.0, "ms")])
    after = result_file.read(path)
    assert (after.title, after.order, after.about, after.summary) == ("Steps", 7, ("About.",), "Summary.")
    a, b, new = after.rows
    assert (a.value, a.goal, a.met) == (9.0, "value <= 4", False)
    assert a.command == "python bench/peers.py --only a --rounds 3"
    assert a.date > "2026" and a.commit != "abc1234"
    assert b == old[1]
    assert (new.device, new.goal) == ("gpu", "")


def test_a_row_with_a_field_that_nobody_knows_is_an_error(result_file, tmp_path):
    path = tmp_path / "steps.json"
    path.write_text('{"title": "x", "rows": [{"what": "a", "device": "b", "value": 1, "units": "ms"}]}')
    with pytest.raises(ValueError, match=r"unknown fields \['units'\]"):
        result_file.read(path)


def test_a_benchmark_writes_such_a_file(result_file, tmp_path):
    """Runs the fastest benchmark: it plans a step and runs one step in PyTorch."""
    path = tmp_path / "memory.json"
    command = [sys.executable, str(ROOT / "bench" / "memory.py"), "--only", "a", "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    (row,) = result_file.read(path).rows
    assert row.what == "a lenet5 b64" and row.unit == "MiB"
    assert row.value == pytest.approx(row.ratio * row.details["PyTorch"])
    assert row.command == "python bench/memory.py --only a"


def test_the_commands_exist(script):
    for content in script.files():
        for row in content.rows:
            for word in row.command.split():
                if word.startswith(("bench/", "scripts/", "coverage/", "tests/")):
                    assert (ROOT / word).exists(), f"{content.title}: {row.command}"


def test_the_parts_of_a_first_step_are_those_that_are_timed():
    """A part with another name would be missing from the table."""
    parts = (ROOT / "bench" / "first_step.py").read_text(encoding="utf-8").split("PARTS = (")[1].split(")")[0]
    for name in ("imports", "load"):
        assert f'"{name}"' in parts and f'"{name}"' in (ROOT / "bench" / "warm_start.py").read_text(encoding="utf-8")


def test_predictions_agree_with_the_errors_that_come_with_handheld():
    """results/predict.json, docs/cost.md and forecast/errors.json have the same figures."""
    root = Path(__file__).resolve().parents[2]
    rows = json.loads((root / "results" / "predict.json").read_text(encoding="utf-8"))["rows"]
    found = {(row["what"], row["device"]): row for row in rows}
    kinds = {"next_steps": "later steps of a run", "other_batches": "other batches", "another_model": "another model"}
    shipped = json.loads((root / "src" / "handheld" / "forecast" / "errors.json").read_text(encoding="utf-8"))
    for device, kind in (("h200", "gpu"), ("pocl-3.0", "cpu")):
        for name, what in kinds.items():
            row, error = found[what, device], shipped[kind][name]
            assert row["details"]["cases"] == error["cases"]
            assert abs(row["value"] - 100 * error["median"]) < 0.06
            assert abs(row["details"]["90th percentile %"] - 100 * error["p90"]) < 0.06


def test_a_wide_table_is_taken_apart_by_its_details(script, result_file):
    def row(what: str, **details: object) -> object:
        return result_file.Row(what=what, device="cpu", value=1.0, date="2026", commit="abc", details=details)

    narrow = script.tables((row("a", bytes=1), row("b", loss=2)))
    assert len(narrow) == 1 and "| cpu | 2026 | abc |" in narrow[0]
    said, first, again, second = script.tables((row("a", bytes="x" * 100), row("b", loss=2)))
    assert said == again == "Measured: device cpu, date 2026, commit abc."
    assert "bytes" in first and "loss" not in first and "cpu" not in first
    assert "loss" in second and "bytes" not in second

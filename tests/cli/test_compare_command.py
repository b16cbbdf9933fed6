"""`handheld compare`: tables, JSON, the exit code for CI, run files and results folders, bad input."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest

from handheld.bench import compare, open_results
from handheld.bench.compare_page import compare_page
from handheld.bench.folder import Writer
from handheld.bench.judged import judge_rows
from helpers.bench_rows import folder, info, row
from helpers.blocks import found
from helpers.noisy_runs import network, noisy_run
from helpers.run_files import MadeRun


@pytest.fixture(scope="module")
def files(work) -> Path:
    noisy_run(work / "a.run", 1)
    noisy_run(work / "b.run", 2, slower={6: 1.15}, settings={"what": "net", "batch": 16})
    noisy_run(work / "c.run", 3, ops=[("stem", "conv", "forward", 1.0), *network()[4:]])
    noisy_run(work / "same.run", 4)
    return work


def test_a_slower_op_is_named_in_80_columns(run, files):
    shown = run("compare", "a.run", "b.run")
    assert shown.exit_code == 0, shown.output
    lines = shown.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    (line,) = [line for line in lines if "layers.1 conv_weight" in line]
    assert "slower" in line and "1.1" in line
    assert "1 op of 34 differ by more than noise; 1 are too short to judge" in shown.stdout
    assert any(line.split() == ["differs", "batch:", "not", "recorded", "/", "16"] for line in lines)


def test_two_equal_runs(run, files):
    shown = run("compare", "a.run", "same.run")
    assert "0 ops of 34 differ by more than noise" in shown.stdout and "within noise" in shown.stdout
    assert run("compare", "a.run", "same.run", "--fail-above", "5%").exit_code == 0


def test_too_few_windows_are_said_with_what_to_do(run, files):
    noisy_run(files / "few.run", 5, windows=2)
    shown = run("compare", "a.run", "few.run")
    text = " ".join(shown.stdout.split())
    assert "33 ops were not judged: few.run has 2 windows, 3 are needed. Try: handheld profile --steps 200" in text
    assert "no op could be judged" in text and "differ by more than noise" not in text


def test_different_batches_are_judged_per_sample(run, files):
    noisy_run(files / "large.run", 6, whole=3.0, batch=32)
    shown = run("compare", "a.run", "large.run", "--fail-above", "5%")
    assert shown.exit_code == 0, shown.output
    assert max(map(len, shown.stdout.splitlines())) <= 80
    text = " ".join(shown.stdout.split())
    assert "batches differ (8 / 32): all times below are per sample" in text
    assert ": other batch" in text and "per sample" in text
    failed = run("compare", "large.run", "a.run", "--fail-above", "5%")
    assert failed.exit_code == 3 and "per sample is slower by" in " ".join(failed.stderr.split())


def test_names_are_whole_in_80_columns_beside_other_shapes_and_variants(run, files):
    with sqlite3.connect(shutil.copy(files / "a.run", files / "shapes.run")) as file:
        file.execute("UPDATE op SET signature = 'larger' WHERE op = 'conv_weight'")
        file.execute("UPDATE op SET variant = 'tiled' WHERE op = 'conv_input'")
    shown = run("compare", "a.run", "shapes.run").stdout
    assert max(map(len, shown.splitlines())) <= 80
    assert "conv_weight *" in shown and "* the shapes of this op differ" in shown and "other shapes" not in shown
    assert "default / tiled" in shown or "not shown in 80 columns: " in shown


def test_ops_of_one_run_are_listed(run, files):
    shown = run("compare", "a.run", "c.run").stdout
    assert "only in a" in shown and "only in b" in shown and "stem conv" in shown and "layers.0 conv" in shown


def test_ops_without_times_have_no_sum_of_times(run, files):
    made = MadeRun(files / "untimed.run", ops=[{"path": f"own{i}"} for i in range(9)])
    made.steps(30, every=10**6, first=4)  # no step is recorded
    made.open().close()
    shown = run("compare", "untimed.run", "a.run").stdout
    (line,) = [line for line in shown.partition("only in a")[2].splitlines() if "4 more ops" in line]
    assert line.split() == ["4", "more", "ops"]


def test_json(run, files):
    found = json.loads(run("compare", "a.run", "b.run", "c.run", "--json").stdout)
    assert found["runs"] == ["a.run", "b.run", "c.run"] and len(found["pairs"]) == 2
    slower = [op for op in found["pairs"][0]["ops"] if op["verdict"] == "slower"]
    assert [op["path"] for op in slower] == ["layers.1"] and slower[0]["low"] < slower[0]["beyond"] < slower[0]["high"]


def test_fail_above_is_for_slowdowns_beyond_noise(run, files):
    failed = run("compare", "a.run", "b.run", "--fail-above", "5%")
    assert failed.exit_code == 3
    assert "b.run: layers.1 conv_weight is slower by" in failed.stderr.replace("\n", " ")
    assert "--fail-above allows 5.0%" in failed.stderr.replace("\n", " ")
    assert run("compare", "a.run", "b.run", "--fail-above", "40 %").exit_code == 0
    assert run("compare", "b.run", "a.run", "--fail-above", "5%").exit_code == 0  # It became faster.
    document = run("compare", "a.run", "b.run", "--fail-above", "5%", "--json")
    assert document.exit_code == 3 and len(json.loads(document.stdout)["pairs"]) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("a.run",), "a comparison needs two run files or two results folders. Try: handheld compare A B"),
        (("a.run", "nothing.run"), "there is no run file nothing.run"),
        (("a.run", "block"), "block is a folder and a.run is not. Try: two run files"),
        (("block", "block"), "block is not a results folder"),
        (("a.run", "mine.py"), "mine.py is not a run file of Handheld"),
        (("a.run", "b.run", "--fail-above", "much"), "--fail-above 'much' is not a percentage. Try: --fail-above 5%"),
        (("a.run", "b.run", "--fail-above", "5"), "is not a percentage"),
    ],
)
def test_bad_input(run, files, words, message):
    failed = run("compare", *words)
    assert failed.exit_code == 1 and message in failed.stderr.replace("\n", " ")


def test_a_page_replaces_only_a_page(run, files):
    before = (files / "a.run").read_bytes()
    for name in ("a.run", "mine.py"):
        failed = run("compare", "a.run", "b.run", "--out", name)
        assert failed.exit_code == 1 and f"{name} exists and is no page of Handheld" in failed.stderr, failed.output
    assert (files / "a.run").read_bytes() == before
    for _ in range(2):
        assert run("compare", "a.run", "b.run", "--out", "compared.html").exit_code == 0


def test_runs_without_steps(run, files):
    MadeRun(files / "empty.run").open().close()
    shown = run("compare", "a.run", "empty.run")
    assert shown.exit_code == 0 and "the run has no steps" in shown.stdout.replace("\n", " ")


def test_results_folders(run, files):
    for name, source in (("first", "a.run"), ("second", "b.run")):
        writer = Writer(name)
        writer.open()
        writer.describe(info())
        for workload, content in (("lenet5", (files / source).read_bytes()), ("mlp", b"cut short")):
            path = writer.run_file(workload)
            (Path(name) / path).write_bytes(content)
            writer.append({**row(workload), "run": path})
        writer.close()
    shown = run("compare", "first", "second")
    assert shown.exit_code == 0, shown.output
    assert max(map(len, shown.stdout.splitlines())) <= 80
    text = " ".join(shown.stdout.split())
    assert "layers.1 conv_weight slower by" in text and "not compared: " in text and "is not a run file" in text
    assert run("compare", "first", "second", "--fail-above", "5%").exit_code == 3
    found = json.loads(run("compare", "first", "second", "--json").stdout)["folders"][0]
    assert len(found["rows"]) == 2 and list(found["runs"]) and list(found["unread"])


def test_rows_of_folders_are_judged_by_their_spread_and_missing_ones_are_findings(run, files):
    """Rows without run files: one is slower beyond its spread, one within it, one too short, one stopped training."""
    calm, wide = {"step_p5_ms": 39.0, "step_p95_ms": 41.0}, {"step_p5_ms": 20.0, "step_p95_ms": 80.0}
    kept = [row("mlp", **calm), row("vit", **wide)]
    later = [row("mlp", step_ms=60.0, step_p5_ms=59.0, step_p95_ms=61.0), row("vit", **{**wide, "step_ms": 60.0})]
    folder(files / "base", [*kept, row("gpt", **calm), row("unet"), row("lstm", status="hung")])
    folder(files / "now", [*later, row("gpt", status="hung", reason="x"), row("unet"), row("lstm", status="hung")])
    judged = {one["workload"]: one["judged"] for one in rows_of(run("compare", "base", "now", "--json"))}
    assert judged["mlp"]["verdict"] == "slower" and judged["vit"]["verdict"] == "same" and judged["unet"] is None
    assert (judged["mlp"]["low"], judged["mlp"]["high"]) == pytest.approx((59 / 41, 61 / 39))
    failed = run("compare", "base", "now", "--fail-above", "5%")
    text = " ".join(failed.stderr.split())
    assert failed.exit_code == 3 and "now mlp/small/4/opencl: step is slower by 50.0%" in text and "vit" not in text
    assert "gpt/small/4/opencl cannot be compared: b hung" in text and "lstm" not in text
    assert "unet/small/4/opencl cannot be compared: too few steps to judge" in text
    assert "unet/small/4/opencl not compared: no run file in a and b" in " ".join(failed.stdout.split())
    folder(files / "less", [kept[0]])
    gone = run("compare", "base", "less", "--fail-above", "90%")
    assert gone.exit_code == 3 and "vit/small/4/opencl cannot be compared: only in a" in " ".join(gone.stderr.split())
    assert run("compare", "less", "less", "--fail-above", "5%").exit_code == 0


def rows_of(result):
    return json.loads(result.stdout)["folders"][0]["rows"]


def test_the_page_of_folders(run, files):
    folder(files / "one", [row("mlp", step_p5_ms=39.0, step_p95_ms=41.0)])
    folder(files / "two", [row("mlp", step_ms=20.0, step_p5_ms=19.0, step_p95_ms=21.0), row("gpt")])
    shown = run("compare", "one", "two", "--out", "folders.html")
    assert shown.exit_code == 0 and "folders.html" in shown.stdout, shown.output
    assert "slower" in (files / "folders.html").read_text()
    a, b = open_results("one"), open_results("two")
    page = compare_page([judge_rows(a, b, compare(a, b))], [a, b])
    (every,) = [block for block in found(page, "table") if block["caption"] == "Every row"]
    assert every["rows"][0][5] == {"value": 0.5, "low": 19 / 41, "high": 21 / 39} and every["rows"][0][6] == "faster"
    assert every["rows"][1][6] == "only in b"

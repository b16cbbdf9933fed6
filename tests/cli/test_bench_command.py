"""The output and errors of `handheld bench`; tests/bench tests the code behind it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from typer.testing import CliRunner

import handheld
from handheld.bench import Results, Settings
from handheld.cli import bench, bench_tables, output
from handheld.cli.main import app
from helpers.bench_rows import CAPS, folder, row


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for console in (output.out, output.err):
        monkeypatch.setattr(console, "_width", 80)

    def call(*words: str):
        result = CliRunner().invoke(app, ["bench", *words], prog_name="handheld")
        assert max(map(len, result.stdout.splitlines()), default=0) <= 80 or "--json" in words
        return result

    return call


def small_step() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    batch = (torch.randn(4, 6), torch.zeros(4, dtype=torch.int64))
    handheld.capture(model, F.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1), batch).save("small.step")


def test_the_output(run):
    small_step()
    words = ("small.step", "--on", "opencl", "--steps", "8", "--cool", "0", "--out", "out")
    result = run(*words)
    assert result.exit_code == 0, result.output
    for text in (
        "samples/s",
        "what trains here",
        "1 of 1 workload",
        "not measured",
        "small.step",
        "results",
        "out",
        "synthetic, or random",
    ):
        assert text in result.stdout, text
    again = run(*words, "--json")
    found = json.loads(again.stdout)
    assert again.exit_code == 0 and found["ran"] == 0, "it was done already"
    assert found["card"][0]["trains"] and found["rows"][0]["status"] == "trained"
    assert run("--resume", "out").exit_code == 0
    other = run(*words[:3], "--steps", "9", "--out", "out")
    assert other.exit_code == 1 and "steps=8" in other.stderr


@pytest.mark.parametrize(
    "words, text",
    [
        (["lenett"], "Try: lenet5"),
        (["mlp", "--batch", "1,x"], "1,4,16"),
        (["mlp", "--batch", "0"], "1,4,16"),
        (["mlp", "--size", "big"], "small or paper"),
        (["mlp", "--limit-memory", "lots"], "512MiB"),
        (["mlp", "--cool", "warm"], "or auto"),
        (["mlp", "--on", ","], "no device"),
        (["mlp", "--on", "gpu"], "unknown device 'gpu'"),
        (["mlp", "--seconds", "0"], "more than 0"),
        (["mlp", "--resume", "out"], "takes no names"),
        (["--resume", "nowhere"], "nothing to resume"),
        (["--compare", "a"], "not a results folder"),
        (["--merge"], "two results folders or more"),
        (["--compare", "--merge"], "cannot be combined"),
    ],
)
def test_what_makes_no_sense(run, tmp_path, words, text):
    result = run(*words)
    assert not list(tmp_path.iterdir()), "no folder is made in vain"
    assert result.exit_code == 1 and text in result.stderr.replace("\n", " "), result.output


def test_sizes_of_memory():
    from handheld.cli.options import nbytes

    assert [nbytes(text, "--limit-memory") for text in ("512MiB", "2g", "1.5GB", "1000", "64 k", None)] == [
        2**29,
        2**31,
        3 * 2**29,
        1000,
        2**16,
        None,
    ]


def test_compare_warns_of_chance_and_of_a_busy_machine(run, tmp_path):
    spread = {"step_p5_ms": 35.0, "step_p95_ms": 45.0}
    rows = [row("mlp", **spread), row("lenet5", **spread), row("gpt")]
    folder(tmp_path / "a", [{**one, "others_cores": 0.1, "others_top": ""} for one in rows])
    faster = {"step_p5_ms": 18.0, "step_p95_ms": 22.0, "samples_s": 200.0}
    rows = [row("mlp", samples_s=110.0, step_p5_ms=33.0, step_p95_ms=39.0), row("lenet5", **faster), row("gpt")]
    folder(tmp_path / "b", [{**one, "others_cores": 1.2, "others_top": "ffmpeg, process 7"} for one in rows])
    lines = run("--compare", "a", "b").stdout.splitlines()
    text = " ".join(" ".join(lines).split())
    assert (
        "warning: b (b): other processes held 60% of the 2 cores during 3 of 3 runs (most: ffmpeg, process 7)" in text
    )
    assert "warning: a (a)" not in text
    marks = {line.split()[0]: line.split()[5] for line in lines if line.startswith(("mlp", "lenet5", "gpt"))}
    assert marks == {"mlp": "1.10x~", "lenet5": "2.00x", "gpt": "1.00x?"}
    assert "1 row: the range holds 1, so it may be chance" in text and "1 row: too few steps" in text
    assert "0.90 to 1.36" in text and "the spread of the steps (5% to 95%) of 2 rows" in text
    found = json.loads(run("--compare", "a", "b", "--json").stdout)
    assert [line["within_spread"] for line in found["rows"]] == [True, False, None] and len(found["warnings"]) == 1


def test_compare_and_merge(run, tmp_path):
    folder(tmp_path / "a", [row(), row("vgg16", status="hung", reason="x", samples_s=None)])
    folder(tmp_path / "b", [row(samples_s=150.0), row("lenet5")], devices={"opencl": {**CAPS, "driver": "2"}})
    result = run("--compare", "a", "b")
    (head,) = [line.split() for line in result.stdout.splitlines() if line.startswith("workload")]
    assert head[-1] == "memory", "the table is not wrapped at 80 columns"
    assert result.exit_code == 0, result.output
    for text in ("1.50x", "no row", "hung", "geometric mean of 1 row", "opencl: 1 / 2"):
        assert text in result.stdout, text
    found = json.loads(run("--compare", "a", "b", "--json").stdout)
    assert found["means"]["samples_s"]["rows"] == 1
    assert "3 rows from 2 folders" in run("--merge", "a", "b", "--out", "c").stdout
    assert run("--compare", "a", "c").exit_code == 0


def test_a_model_whose_file_has_changed(run, tmp_path):
    small_step()
    words = ("small.step", "--on", "opencl", "--steps", "8", "--cool", "0", "--out", "out")
    assert run(*words).exit_code == 0
    small_step()
    changed = run(*words)
    assert changed.exit_code == 1 and "small.step has changed since out was" in changed.stderr
    (tmp_path / "mine.py").write_text("def make():\n    raise ValueError('not yet')\n")
    mine = ("mine.py:make", *words[1:-1], "mine")
    assert run(*mine).exit_code == 1
    (tmp_path / "mine.py").write_text("def make():\n    raise ValueError('still not')\n")
    again = run(*mine, "--retry")
    assert "still not" in again.stdout, "what did not train may be mended"
    (tmp_path / "small.step").unlink()
    assert "small.step is missing; out was" in run("--resume", "out").stderr


def test_the_list_of_workloads(run):
    result = run("--list")
    assert "lenet5" in result.stdout and max(map(len, result.stdout.splitlines())) <= 80
    texts = json.loads(run("text", "--list", "--json").stdout)["workloads"]
    assert {one["domain"] for one in texts} == {"text"} and len(texts) > 3


def test_rows_that_did_not_train(capsys, monkeypatch):
    from handheld.cli import bench_tables

    reason = "the factory raised " + "a long story, " * 12 + "and its end"
    bench_tables.say_row(row(status="does not build", reason=reason, batch=4), 2)
    said = capsys.readouterr().out
    assert " ".join(said.split()).endswith(reason) and max(map(len, said.splitlines())) <= 80

    text = bench_tables.why(row(status="does not fit", planned_bytes=9 << 30, available_bytes=8 << 30))
    assert text == "does not fit, needs 9.0 GiB, available 8.0 GiB"
    assert bench_tables.why(row(status="out of memory", reason="held", planned_bytes=2048)) == (
        "out of memory (planned 2.0 KiB): held"
    )
    assert [bench_tables.joules(j) for j in (None, 2.5, 0.0025, 2.5e-6)] == [
        "not measured",
        "2.5 J",
        "2.5 mJ",
        "2.5 µJ",
    ]


def test_a_lost_device_is_no_result(capsys):
    rows = [row(), row(status="failed", error="TargetLost"), row(status="device lost"), row(status="failed")]
    for n, each in enumerate(rows):
        each["key"] = str(n)
    bench.note_lost(Results(Path(), {}, rows, []))
    assert capsys.readouterr().err == (
        "note: 2 runs have no result, because the device was lost. Try: the same command with --retry\n"
    )
    bench.note_lost(Results(Path(), {}, [rows[0], rows[3]], []))
    assert not capsys.readouterr().err


def test_each_other_device_has_its_own_ratio() -> None:
    line = {"others": [{"device": "reference:cuda", "ratio": 0.26}, {"device": "pytorch:cpu", "ratio": 0.41}]}
    first, second = bench_tables._others(line)
    assert first.endswith(" 0.26x") and second == "pytorch:cpu 0.41x" and max(len(first), len(second)) <= 17


def test_a_resumed_folder_keeps_its_limits(run, tmp_path):
    results = folder(tmp_path / "out", [row()])
    info = json.loads((tmp_path / "out" / "bench.json").read_text())
    info["settings"] = {"seconds": 3.0, "steps": None, "seed": 0, "cool_s": 0.0, "limit_bytes": 5, "silence_s": 7.0}
    (tmp_path / "out" / "bench.json").write_text(json.dumps(info))
    kept = bench._as_begun(tmp_path / "out", Settings())
    assert (kept.cool_s, kept.limit_bytes, kept.silence_s) == (0.0, 5, 7.0), results

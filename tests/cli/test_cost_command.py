"""`handheld cost`: predictions for models, runs and checkpoints, learning from runs, and what is reported instead."""

from __future__ import annotations

import json

import pytest

from handheld.forecast import store
from helpers.commands import fails

PLAIN = ("cost", "mine.py:with_batch", "--batch", "4,16")
RATES = {"flops": 1e11, "memory": [[1 << 20, 5e10], [1 << 30, 1e10]], "source": "test"}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HANDHELD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(store, "SHIPPED", tmp_path / "none")


@pytest.fixture
def ceilings(tmp_path):
    path = tmp_path / "ceilings.json"
    path.write_text(json.dumps(RATES))
    return ("--ceilings", str(path))


def parsed(result):
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_described_device_is_predicted_and_marked(run):
    result = run(*PLAIN, "--on", "adreno-740", "--epochs", "2", "--samples", "100", "--watts", "4", "--battery", "15")
    assert result.exit_code == 0, result.output
    for words in (
        "public figures",
        "nothing was measured on it",
        "held-out cases",
        "whole training",
        "from the given 4 W",
    ):
        assert words in result.stdout.replace("\n", " ")
    assert "no joules" not in result.stdout
    data = parsed(run(*PLAIN, "--on", "adreno-740", "--epochs", "2", "--samples", "100", "--json"))
    assert [row["batch"] for row in data["batches"]] == [4, 16] and data["derived"] == "description"
    assert [row["steps"] for row in data["trainings"]] == [50, 12]  # as `handheld train` counts them
    for row in data["batches"]:
        assert row["low_s"] < row["seconds"] < row["high_s"] and row["error"]["kind"] == "another_device"
        assert sum(op["cost"]["seconds"] for op in row["ops"]) == pytest.approx(row["ops_s"])


def test_the_memory_is_that_of_the_plan(run, ceilings):
    costs = parsed(run(*PLAIN, *ceilings, "--json"))["batches"]
    plans = parsed(run("plan", "mine.py:with_batch", "--batch", "4,16", "--seconds", "0", "--json"))["batches"]
    assert [row["bytes"] for row in costs] == [row["bytes"] for row in plans]


def test_runs_are_learned_and_used(run, ceilings, work):
    for batch in ("8", "32"):
        made = run(
            "profile", "mine.py:with_batch", "--batch", batch, "--steps", "30", "--out", f"{batch}.run", "--no-ceilings"
        )
        assert made.exit_code == 0, made.output
    data = parsed(run("cost", "mine.py:with_batch", "--batch", "16", *ceilings, "--json"))
    assert data["derived"] == "runs" and data["batches"][0]["derived"] == "batches"
    learned = parsed(run("cost", "--learn", "8.run", "--learn", "32.run", "--json"))["learned"][0]
    assert learned["ops"] > 3
    rest = parsed(run("cost", "8.run", "--steps", "1000", "--watts", "2", "--json"))["rest"]
    assert rest["count"] == 1000 and rest["rails"][0]["joules"] == pytest.approx(2 * rest["seconds"])
    fails(run("cost", "8.run"), "how long the training is", "Try: --steps N")
    fails(run("cost", "8.run", "--batch", "4"), "has its own batch size", "--from 8.run --batch 4")


def test_what_cannot_be_predicted_says_what_to_do(run, work):
    fails(run("cost"), "nothing to predict", "Try: handheld cost MODEL")
    fails(run("cost", "lenet6"), "lenet6", "Try: ", "lenet5")
    fails(run(*PLAIN, "--on", "toaster"), "there is no device 'toaster'", "Try: ")
    fails(run(*PLAIN, "--on", "reference:cpu"), "reference:cpu has none", "Try: --on opencl")
    fails(run(*PLAIN, "--on", "minimal-embedded"), "neither runs nor ceilings", "Try: handheld doctor --ceilings")
    fails(run(*PLAIN, "--on", "adreno-740", "--epochs", "2"), "number of training samples", "Try: --samples N")
    (work / "notes.txt").write_text("hello")
    fails(run("cost", "notes.txt"), "notes.txt")
    fails(run("cost", "--learn", "notes.txt"), "notes.txt")


def test_a_batch_that_does_not_fit_is_reported(run):
    data = parsed(run("cost", "lenet5", "--batch", "4,100000", "--on", "adreno-620", "--json"))
    assert [row["batch"] for row in data["batches"]] == [4] and data["failed"][0]["batch"] == 100000


def test_a_measured_step_names_its_runs_and_is_as_profile_said(run, ceilings, work):
    for name in ("a.run", "b.run"):
        made = run(
            "profile", "mine.py:with_batch", "--batch", "8", "--steps", "60", "--out", name, "--no-ceilings", "--json"
        )
        assert made.exit_code == 0, made.output
    named = parsed(run("cost", "mine.py:with_batch", "--batch", "8", *ceilings, "--from", "a.run", "--json"))
    row = named["batches"][0]
    rest = parsed(run("cost", "a.run", "--steps", "10", "--json"))["rest"]
    assert row["derived"] == "measured" and [each["run"] for each in row["runs"]] == ["a.run"]
    assert row["seconds"] == pytest.approx(rest["each_s"]) and rest["error"]["device"] != "NVIDIA H200"
    shown = run("cost", "mine.py:with_batch", "--batch", "8", *ceilings).stdout
    assert "this very step was measured (" in shown and ".run" in shown and "H200" not in shown
    assert max(map(len, shown.splitlines())) <= 80
    table = next(store.cache.folder().glob("costs/*.json"))
    data = json.loads(table.read_text())
    for step in data["steps"]:
        step.update(timed=[], disturbed=True)
    table.write_text(json.dumps(data))
    shown = run("cost", "mine.py:with_batch", "--batch", "8", *ceilings).stdout.replace("\n", " ")
    assert "in a table without the names of runs, fastest tenth" in shown


def test_energy_says_what_can_help(run, ceilings):
    away = run(*PLAIN, "--on", "raspberry-pi-5").stdout.replace("\n", " ")
    assert "no joules: " in away and "Try: --watts W" in away and "doctor --energy" not in away
    here = run(*PLAIN, *ceilings).stdout.replace("\n", " ")
    assert "Try: --watts W" in here and "handheld doctor --energy, if the device has a power sensor" in here
    small = run(*PLAIN, *ceilings, "--steps", "3", "--watts", "1", "--battery", "50").stdout
    assert "<0.1%" in small
    assert "Try: --steps N" in run(*PLAIN, *ceilings, "--watts", "1").stdout.replace("\n", " ")


def test_the_steps_of_an_epoch_are_those_of_train(run, ceilings):
    trained = parsed(run("train", "mine.py:make", "--data", "data.npz", "--batch", "30", "--epochs", "2", "--json"))
    used = trained["epochs"][0]["samples"] + trained["dropped_per_epoch"]
    asked = ("--epochs", "2", "--samples", str(used))
    data = parsed(run("cost", "mine.py:with_batch", "--batch", "30", *ceilings, *asked, "--json"))
    assert data["trainings"][0]["steps"] == trained["steps"] and trained["dropped_per_epoch"]
    fails(run(*PLAIN, *ceilings, "--epochs", "1", "--samples", "9"), "fewer than one batch of 16", "Try: --batch 9")


def test_ops_can_be_told_apart_in_80_columns(run, ceilings):
    shown = run("cost", "mobilenet_v2", "--batch", "8", *ceilings, "--size", "small").stdout
    assert max(map(len, shown.splitlines())) <= 80
    ops = shown[shown.index("ops of a step") :]
    assert "…" not in ops and "conv_weight" in ops and "features.4.conv.0 " in ops, ops

"""`--on auto` and `--for`: what commands choose by themselves, and how they say it.

Two real devices take part: the OpenCL device of this machine, and the runner on it.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from handheld.backends.base import describe
from handheld.backends.present import Present
from handheld.cli import placing
from handheld.cli.data_options import PLAIN
from handheld.cli.described import captured
from handheld.forecast import store
from handheld.placement import measured
from handheld.profile import energy_models
from handheld.resolve import open_model
from helpers.commands import fails
from helpers.energy import flat_model
from helpers.known_ceilings import store_ceilings

MODEL = "mine.py:with_batch"


@pytest.fixture(autouse=True)
def two_devices(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "SHIPPED", tmp_path / "none")  # The errors of the shipped samples take seconds.
    store_ceilings()
    monkeypatch.setattr(measured, "SECONDS", 0.1)
    found = [Present(name, describe(name)) for name in ("opencl", "runner")]
    monkeypatch.setattr(placing, "present_devices", lambda: found)
    return found


def test_devices_that_predictions_cannot_tell_apart_are_measured(run):
    result = run("train", MODEL, "--data", "data.npz", "--on", "auto", "--epochs", "1", "--no-record", "--json")
    assert result.exit_code == 0, result.output
    assert "steps were measured in turns: opencl" in result.stderr and "at batch 8" in result.stderr
    assert json.loads(result.stdout)["device"].startswith(("opencl:", "runner:"))


def test_verify_profile_and_bench_take_auto(run, monkeypatch, two_devices):
    monkeypatch.setattr(placing, "present_devices", lambda: two_devices[:1])
    only = "opencl is the only device here"
    for words in (
        ("verify", MODEL),
        ("profile", MODEL, "--steps", "5", "--no-ceilings", "--no-report"),
        ("bench", MODEL, "--steps", "2", "--cool", "0", "--no-page", "--out", "auto-results"),
    ):
        result = run(*words, "--on", "auto")
        assert result.exit_code == 0 and only in result.stderr, result.output
    fails(run("profile", "--like", "x.run", "--on", "auto"), "--on auto chooses for a model", "Try: WHAT")


def test_plan_says_what_it_chose_without_running_anything(run):
    result = run("plan", MODEL, "--on", "auto", "--seconds", "0", "--json")
    assert result.exit_code == 0, result.output
    assert "for least time per sample" in result.stderr and "not certain" in result.stderr
    assert "measured in turns" not in result.stderr
    memory = run("plan", MODEL, "--for", "memory", "--on", "adreno-740", "--seconds", "0", "--json")
    assert [row["batch"] for row in json.loads(memory.stdout)["batches"]] == [1]
    time = run("fit", MODEL, "--for", "time", "--on", "adreno-740", "--seconds", "0", "--json")
    assert json.loads(time.stdout)["batch"] > 1 and "per sample are predicted" in time.stderr


def test_train_does_not_choose_a_batch_that_the_data_cannot_fill(run, work):
    rng = np.random.default_rng(0)
    np.savez(work / "few.npz", x=rng.standard_normal((50, 6)).astype(np.float32), y=np.arange(50) % 3)
    result = run("train", MODEL, "--data", "few.npz", "--for", "time", "--epochs", "1", "--no-record", "--json")
    assert result.exit_code == 0, result.output
    assert 8 <= json.loads(result.stdout)["batch"] <= 32  # 40 samples train


def test_energy_is_never_replaced_by_something_else(run, two_devices):
    words = ("plan", MODEL, "--for", "energy", "--on", "auto", "--seconds", "0", "--json")
    fails_in_json = run(*words)
    assert fails_in_json.exit_code == 1 and "needs an energy model" in fails_in_json.stderr
    assert "Try: handheld doctor --energy --on opencl" in fails_in_json.stderr
    step = captured(open_model(MODEL), 8, None, PLAIN)
    stored = energy_models.store(flat_model(step.plan("opencl"), 5.0), two_devices[0].caps)
    try:  # The runner's device is the same, so it has this model too.
        result = run(*words)
    finally:
        stored.unlink()
    assert result.exit_code == 0, result.output
    assert "for least joules per sample" in result.stderr and "J per sample are predicted" in result.stderr


def test_what_leaves_nothing_to_choose_is_an_error(run):
    fails(run("plan", MODEL, "--for", "time", "--batch", "4"), "nothing to choose", "Try: --on auto")
    fails(run("plan", MODEL, "--for", "speed"), "is no goal", "Try: --for time")

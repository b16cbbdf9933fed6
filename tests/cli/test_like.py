"""`handheld profile --like RUN`: the same step, plan and variants again, and what is different now."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

import handheld
from handheld.backends.base import describe
from handheld.plan.lowering import candidates
from handheld.plan.signature import signature
from handheld.plan.tuning import Entry, TuningRecord
from helpers.run_files import MadeRun

WORDS = ("--steps", "6", "--no-ceilings", "--no-report", "--json")


def meta(path: str) -> dict:
    with handheld.open_run(path) as run:
        return run.meta


def changed(path: str, key: str, value: object) -> None:
    with sqlite3.connect(path) as db:
        db.execute("UPDATE meta SET value=? WHERE key=?", (json.dumps(value), key))
    db.close()


@pytest.fixture
def first(run, work):
    """A run of a tuned model with other settings than the defaults."""
    path = work / "first.run"
    if not path.exists():
        done = run(
            "profile", "mine.py:make", "--data", "data.npz", "--batch", "12", "--seed", "3", "--out", str(path), *WORDS
        )
        assert done.exit_code == 0, done.output
    return path


def test_the_plan_is_the_recorded_one(run, first, work):
    again = run("profile", "--like", "first.run", "--out", "again.run", *WORDS)
    assert again.exit_code == 0, again.output
    assert "repeating first.run: device, versions, code and plan are the same" in again.stderr.replace("\n", " ")
    old, new = meta("first.run"), meta("again.run")
    assert old["plan_hash"] == new["plan_hash"] and len(old["plan_hash"]) == 64
    assert new["settings"]["batch"] == 12 and new["settings"]["seed"] == 3 and new["settings"]["data"] == "data.npz"
    assert {**old["settings"], "like": "first.run"} == new["settings"]
    other = run("profile", "mine.py:make", "--data", "data.npz", "--batch", "16", "--out", "other.run", *WORDS)
    assert other.exit_code == 0 and meta("other.run")["plan_hash"] != old["plan_hash"]


def test_from_another_folder(run, first, work, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    again = run("profile", "--like", str(first), "--out", "again.run", *WORDS)
    assert again.exit_code == 0, again.output
    assert meta("again.run")["plan_hash"] == meta(str(first))["plan_hash"]


def test_recorded_variants_are_used_although_the_records_changed(run, first, work, monkeypatch, tmp_path):
    """The first run has a tuned product; then the record is gone."""
    monkeypatch.setenv("HANDHELD_CACHE", str(tmp_path / "cache"))
    caps = describe("opencl")
    record = TuningRecord.of(caps)
    step = handheld.load(_step(run, work))
    for node in step.graphs["train"].nodes:
        offered = candidates(node, step.graphs["train"], caps)
        if len(offered) > 1:
            record.entries[signature(node, step.graphs["train"])] = Entry(offered[-1], done=True)
    assert record.entries
    record.write(record.path())
    tuned = run("profile", "small.step", "--out", str(tmp_path / "tuned.run"), *WORDS)
    assert tuned.exit_code == 0, tuned.output
    record.path().unlink()
    plain = run("profile", "small.step", "--out", str(tmp_path / "plain.run"), *WORDS)
    again = run("profile", "--like", str(tmp_path / "tuned.run"), "--out", str(tmp_path / "again.run"), *WORDS)
    assert plain.exit_code == again.exit_code == 0, again.output
    hashes = {name: meta(str(tmp_path / f"{name}.run"))["plan_hash"] for name in ("tuned", "plain", "again")}
    assert hashes["tuned"] == hashes["again"] != hashes["plain"]
    assert meta(str(tmp_path / "tuned.run"))["tuned"]
    assert "plan are the same" in again.stderr.replace("\n", " ")


def _step(run, work) -> Path:
    path = work / "small.step"
    if not path.exists():
        assert run("package", "mine.py:with_batch", "--out", str(path)).exit_code == 0
    return path


def test_what_differs_is_said_before_the_run(run, first, work):
    target = work / "changed.run"
    target.write_bytes(first.read_bytes())
    now = meta("first.run")
    changed("changed.run", "versions", {**now["versions"], "numpy": "0.1"})
    changed("changed.run", "caps", {**now["caps"], "driver": "an older one"})
    changed("changed.run", "code", {"commit": "f" * 40, "changed": False})
    changed("changed.run", "kernels", {"contract": 77})
    changed("changed.run", "plan_hash", "0" * 64)
    again = run("profile", "--like", "changed.run", "--out", "differs.run", *WORDS)
    assert again.exit_code == 0, again.output
    text = " ".join(again.stderr.split())
    for expected in (
        "different now: numpy: 0.1 / ",
        "different now: driver: an older one / ",
        "different now: commit: ffffffffffff / ",
        "different now: kernels of contract: 77 / ",
        "different now: plan: 000000000000 / ",
    ):
        assert expected in text, text


def test_steps_and_device_may_be_others(run, first, work):
    again = run("profile", "--like", "first.run", "--on", "reference:cpu", "--out", "elsewhere.run", *WORDS)
    assert again.exit_code == 0, again.output
    assert "different now: device: opencl / reference:cpu" in again.stderr.replace("\n", " ")
    assert meta("elsewhere.run")["settings"]["steps"] == 6


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--like", "first.run", "--batch", "4"), "--batch cannot be combined with --like, which repeats a run"),
        (("--like", "first.run", "--label", "x"), "the options of data cannot be combined with --like"),
        (("lenet5", "--like", "first.run"), "says which model to measure. Try: without lenet5"),
        (("--like", "nothing.run"), "there is no run file nothing.run"),
        ((), "name a model to profile, or a run to repeat. Try: handheld profile lenet5"),
    ],
)
def test_bad_input(run, first, words, message):
    failed = run("profile", *words)
    assert failed.exit_code == 1 and message in " ".join(failed.stderr.split())


def test_a_run_that_does_not_say_how_it_was_measured(run, first, work):
    if not (work / "made.run").exists():
        MadeRun(work / "made.run").open().close()
    failed = run("profile", "--like", "made.run")
    assert failed.exit_code == 1 and "made.run does not say how it was measured" in " ".join(failed.stderr.split())
    (work / "bad.run").write_bytes(first.read_bytes())
    changed("bad.run", "settings", {"repeat": {"model": 3}})
    failed = run("profile", "--like", "bad.run")
    assert failed.exit_code == 1 and "bad.run is damaged: its settings cannot be read" in " ".join(
        failed.stderr.split()
    )


def test_a_model_that_is_gone(run, first, work, tmp_path, monkeypatch):
    (work / "lost.run").write_bytes(first.read_bytes())
    settings = meta("first.run")["settings"]
    settings["repeat"] = {**settings["repeat"], "model": "gone.py:make"}
    changed("lost.run", "settings", settings)
    failed = run("profile", "--like", "lost.run")
    assert failed.exit_code == 1 and "gone.py" in failed.stderr

"""The tuner: its choices, the failures it survives, and its records."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from handheld.backends import base
from handheld.backends.base import describe
from handheld.child import SILENCE_S
from handheld.errors import PlanError, TargetLost
from handheld.measure.jobs import find_jobs
from handheld.measure.process import WorkerProcess
from handheld.measure.tuner import Tuner
from handheld.measure.worker import Worker
from handheld.plan import lowering, make, tuning
from handheld.plan.codec import from_json, to_json
from handheld.plan.tuning import Entry, TuningRecord, load_tuning
from handheld.step import Step
from helpers import fake_family
from helpers.products import products

SIZES = (97, 64, 161)  # No work-group divides all of them evenly.


@pytest.fixture
def variants(monkeypatch, tmp_path):
    """Installs the fake family with the variants that a test names."""
    monkeypatch.setenv("HANDHELD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(make, "_told", set())
    monkeypatch.setattr(tuning, "SHIPPED", tmp_path / "shipped")  # The shipped records are for other families.
    monkeypatch.setattr(lowering, "FAMILIES", {**lowering.FAMILIES, "matmul": fake_family.lower_matmul})

    def offer(names: str) -> None:
        monkeypatch.setenv("FAKE_VARIANTS", names)

    return offer


def tuner_for(step: Step, **options) -> Tuner:
    caps = describe("opencl")
    record = TuningRecord.of(caps)
    path = record.path()
    if path.exists():
        record = TuningRecord.read(path)
    jobs = find_jobs(step.graphs.values(), caps)
    return Tuner("opencl", caps, jobs, record, path, WorkerProcess(fake_family.COMMAND), **options)


def only(tuner: Tuner) -> Entry:
    (entry,) = TuningRecord.read(tuner.path).entries.values()
    return entry


def reasons(entry: Entry) -> dict[int, str]:
    return {choice["VARIANT"]: why for choice, why in entry.failed}


def test_the_fastest_right_variant_wins(variants):
    variants("own empty partial fast twin")
    tuner = tuner_for(products(97))
    tuner.run(60)
    entry = only(tuner)
    assert entry.choice == {"VARIANT": fake_family.FAST} and entry.done and not entry.timed
    assert entry.best_ms < 0.7 * entry.default_ms
    assert set(reasons(entry)) == {fake_family.EMPTY, fake_family.PARTIAL}
    assert all("wrong result" in why for why in reasons(entry).values())
    (row,) = tuner.rows()
    assert row.count == 2
    assert row.saved_ms == pytest.approx(2 * (entry.default_ms - entry.best_ms))
    assert tuner.worker.starts == 1  # A wrong result does not end the process.


def test_bad_variants_take_down_the_child_only(variants):
    variants("own raises unbuilt dies hangs fast")
    tuner = tuner_for(products(64), timeout=8.0)
    tuner.run(120)
    entry = only(tuner)
    assert entry.choice == {"VARIANT": fake_family.FAST} and entry.done
    why = reasons(entry)
    assert "not on this device" in why[fake_family.RAISES]
    assert "could not build" in why[fake_family.UNBUILT]
    assert "crashed (signal 6, SIGABRT)" in why[fake_family.DIES]
    assert "no answer within " in why[fake_family.HANGS]
    assert tuner.worker.starts == 3 and not tuner.worker.running
    again = tuner_for(products(64))
    again.run(60)
    assert again.worker.starts == 0  # Nothing is left to try.


def test_a_slow_compiler_gives_variants_more_time(variants):
    variants("own fast")
    tuner = tuner_for(products(64), timeout=8.0)
    assert tuner.patience_s(None) == SILENCE_S and tuner.patience_s({"VARIANT": 1}) == 8.0
    tuner.slowest_s = 50.0
    assert tuner.patience_s({"VARIANT": 1}) == 200.0


def test_a_default_that_fails_needs_two_that_agree(variants):
    variants("unbuilt partial fast")
    tuner = tuner_for(products(64))
    tuner.run(60)
    entry = only(tuner)
    assert entry.choice is None and entry.default_ms is None  # Two variants that disagree decide nothing.
    tuner.path.unlink()
    variants("unbuilt fast twin")
    tuner = tuner_for(products(64))
    tuner.run(60)
    entry = only(tuner)
    assert entry.choice == {"VARIANT": fake_family.FAST} and entry.default_ms is None


def test_a_stopped_search_goes_on(variants):
    variants("own empty partial twin fast")
    tuner = tuner_for(products(64))

    def stop(now) -> None:
        if now.tried == 2:
            raise KeyboardInterrupt

    tuner.progress = stop
    with pytest.raises(KeyboardInterrupt):
        tuner.run(60)
    assert not tuner.worker.running
    entry = only(tuner)
    assert not entry.done and len(entry.failed) == 2
    tried = []
    again = tuner_for(products(64), progress=tried.append)
    again.run(60)
    assert next(now.tried for now in tried) == 2  # A failed variant is not tried again.
    entry = only(again)
    assert entry.done and entry.choice == {"VARIANT": fake_family.FAST}


KILLED = """
import sys
sys.path[:0] = {paths!r}
from helpers import fake_family
from test_tuner import products, tuner_for
fake_family.install()
tuner_for(products(64)).run(60)
"""


def test_a_killed_tuner_loses_one_candidate(variants):
    variants("own empty hangs fast")
    here = Path(__file__).parent
    code = KILLED.format(paths=[str(here), str(here.parent)])
    path = TuningRecord.of(describe("opencl")).path()
    with subprocess.Popen([sys.executable, "-W", "ignore", "-c", code]) as process:
        while not path.exists() or not any(e.failed for e in TuningRecord.read(path).entries.values()):
            assert process.poll() is None
            time.sleep(0.05)
        time.sleep(0.5)  # By now it runs the variant that hangs.
        (child,) = psutil.Process(process.pid).children()
        process.kill()
    psutil.wait_procs([child], timeout=10)
    assert not child.is_running()
    (entry,) = TuningRecord.read(path).entries.values()
    assert list(reasons(entry)) == [fake_family.EMPTY] and not entry.done
    variants("own empty fast")
    tuner = tuner_for(products(64))
    tuner.run(60)
    assert only(tuner).choice == {"VARIANT": fake_family.FAST}


def test_no_variant_is_blamed_for_a_lost_connection(monkeypatch):
    tried = Worker()
    tried.device = "ssh:me@box"
    assert tried.after_loss(TargetLost("the cable was pulled")) == {"lost": "the cable was pulled"}
    monkeypatch.setattr(base, "describe", lambda device: None)  # The target answers.
    assert tried.after_loss(TargetLost("it crashed", crashed=True)) == {"crashed": "it crashed"}


def test_a_budget_leaves_the_rest_for_later(variants):
    variants("own empty partial fast")
    step = products(*SIZES)
    tuner = tuner_for(step)
    assert [job.signature.split()[1] for job in tuner.jobs] == ["161x161", "97x97", "64x64"]
    tuner.run(0.01)
    first = TuningRecord.read(tuner.path).entries
    assert len(first) == 1 and not any(entry.done for entry in first.values())
    again = tuner_for(step)
    again.run(60)
    assert all(entry.done for entry in TuningRecord.read(tuner.path).entries.values())
    assert len(TuningRecord.read(tuner.path).entries) == 3


def test_a_node_that_cannot_be_opened_is_a_note(variants):
    variants("own fast")
    tuner = tuner_for(products(64))
    tuner.device = "opencl:no-such-device"
    tuner.run(10)
    assert "cannot be timed" in tuner.notes[0] and "no-such-device" in tuner.notes[0]


# ── plans ─────────────────────────────────────────────────────────────────────────────────────


def tuned_record(step: Step, **changes: str) -> TuningRecord:
    caps = describe("opencl")
    record = dataclasses.replace(TuningRecord.of(caps), date="2030-01-01", **changes)
    for job in find_jobs(step.graphs.values(), caps):
        record.entries[job.signature] = Entry({"VARIANT": fake_family.FAST}, 2.0, 1.0, 2, True)
    record.write(record.path())
    return record


def test_plans_use_what_was_tuned(variants, tmp_path):
    variants("own fast")
    step = products(*SIZES)
    record = tuned_record(step)
    tuned, plain = step.plan("opencl"), step.plan("opencl", tuning=False)
    assert tuned.graphs["train"].launches * 8 == plain.graphs["train"].launches
    assert set(tuned.graphs["train"].tuned) == set(range(6)) and not plain.graphs["train"].tuned
    assert "tuned: VARIANT 1" in tuned.explain() and "; default" not in tuned.explain()
    assert "; default" in plain.explain() and "tuned:" not in plain.explain()
    again = from_json(json.loads(json.dumps(to_json(tuned))), step)
    assert again == tuned and again.graphs["train"].tuned[0] == {"VARIANT": fake_family.FAST}
    moved = tmp_path / "elsewhere.json"
    record.path().rename(moved)
    assert not step.plan("opencl").graphs["train"].tuned
    assert step.plan("opencl", tuning=moved).graphs["train"].tuned
    with pytest.raises(PlanError, match="cannot be read"):
        step.plan("opencl", tuning=tmp_path / "nowhere.json")


def test_tuned_and_plain_plans_compute_the_same(variants):
    variants("own fast")
    step = products(*SIZES)
    tuned_record(step)
    rng = np.random.default_rng(0)
    batch = [rng.standard_normal((n, n)).astype(np.float32) for n in SIZES for _ in range(2)]
    results = []
    for tuned in (True, False):
        with step.plan("opencl", tuning=tuned).start() as trainer:
            trainer.run("train", *batch)
            results.append(trainer.outputs())
    for name, want in results[1].items():
        np.testing.assert_array_equal(results[0][name], want)


def test_a_foreign_record_is_ignored_with_one_message(variants):
    variants("own fast")
    step, words = products(64), "it is for the driver another"
    tuned_record(step, driver="another")
    with pytest.warns(UserWarning, match=words) as caught:
        plans = [step.plan("opencl") for _ in range(2)]
    assert len(caught) == 1 and not any(p.graphs["train"].tuned for p in plans)
    tuned_record(step)  # A record that fits is next to it.
    assert step.plan("opencl").graphs["train"].tuned
    assert any(words in message for message in load_tuning(describe("opencl")).ignored)


@pytest.mark.parametrize("damage", ["{", "[]", "{}", None, '"done": "', '"VARIANT": 1.5'])
def test_a_corrupt_record_is_ignored_with_a_message(variants, damage):
    variants("own fast")
    step = products(64)
    path = tuned_record(step).path()
    whole = path.read_text()
    text = {
        None: whole[: len(whole) // 2],
        '"done": "': whole.replace('"done"', '"don"'),
        '"VARIANT": 1.5': whole.replace('"VARIANT": 1', '"VARIANT": 1.5'),
    }.get(damage, damage)
    assert text != whole
    path.write_text(text)
    with pytest.warns(UserWarning, match="is not a tuning record.*It is ignored") as told:
        assert not step.plan("opencl").graphs["train"].tuned
    # The text of Python's own exceptions would not help a user.
    assert not any("Error" in str(one.message) for one in told)
    with pytest.raises(PlanError, match="is not a tuning record"):
        step.plan("opencl", tuning=path)


def test_a_choice_that_is_not_offered_is_not_used(variants):
    variants("own fast")
    step = products(64)
    tuned_record(step)
    variants("own partial")
    assert not step.plan("opencl").graphs["train"].tuned


def test_a_tuned_kernel_that_does_not_build_falls_back(variants):
    variants("own fast unbuilt")
    step = products(64)
    record = tuned_record(step)
    for entry in record.entries.values():
        entry.choice = {"VARIANT": fake_family.UNBUILT}
    record.write(record.path())
    batch = [np.eye(64, dtype=np.float32)] * 2
    with pytest.warns(UserWarning, match="Trying variants that were not tuned"):
        trainer = step.plan("opencl").start()
    with trainer:
        trainer.run("train", *batch)
        np.testing.assert_array_equal(trainer.outputs()["y2"], batch[0])

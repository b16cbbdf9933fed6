"""Schedules, windows, errors and interruptions of a profile."""

from __future__ import annotations

import itertools
import time

import pyopencl as cl
import pytest

import handheld
from handheld import suite
from handheld.errors import BatchError, HandheldError
from handheld.profile.profiler import Profiler
from handheld.profile.windows import WINDOW, Windows
from helpers.meters import Broken

# ── schedules ─────────────────────────────────────────────────────────────────────────────────


def test_wait_warmup_active(plan, batch, tmp_path):
    path = tmp_path / "one.run"
    with plan.start() as trainer, Profiler(path, wait=5, warmup=3, active=6) as profiler:
        profiler.attach(trainer)
        marks = []
        for _ in range(20):
            marks.append(time.monotonic_ns())
            trainer.step(*batch)
    with handheld.open_run(path) as run:
        steps = run.steps()
        assert len(steps) == 9 and run.meta["schedule"] == {"wait": 5, "warmup": 3, "active": 6}
        assert marks[5] <= steps[0].begin_ns < marks[6] and steps[-1].end_ns <= marks[14]
        assert [s.id for s in steps if s.recorded][:4] == [3, 4, 5, 6]


@pytest.mark.parametrize("bad", [{"wait": -1}, {"warmup": -2}, {"active": 0}])
def test_bad_schedules(bad):
    with pytest.raises(HandheldError, match="a schedule needs"):
        Windows(**bad)


@pytest.mark.parametrize("reading_ns", [5_000_000, 0])
@pytest.mark.parametrize("longer_ns", [0, 2_000_000])  # how much longer a recorded step takes
def test_windows_keep_their_cost_low(monkeypatch, reading_ns, longer_ns):
    now = [0]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    windows, spent = Windows(warmup=0), 0
    for _ in range(6000):
        if windows.due():
            windows.opened()
            windows.steps += WINDOW
            now[0] += WINDOW * (1_000_000 + longer_ns)
            windows.closed(WINDOW)
            with windows.costs():
                now[0] += reading_ns
            spent += reading_ns + WINDOW * longer_ns
        windows.steps += 1
        now[0] += 1_000_000
    unseen = WINDOW * longer_ns  # The extra time of the first window is not counted: normal step times were unknown.
    assert windows.count >= 3 and windows.cost_ns == spent - unseen
    assert spent <= 0.02 * now[0] + unseen


@pytest.mark.parametrize(("reading_ns", "count"), [(2_000_000, 4), (20_000_000, 4), (50_000_000, 2), (90_000_000, 1)])
def test_a_short_run_has_windows_to_compare_if_they_cost_little(monkeypatch, reading_ns, count):
    """50 steps of 10 ms. Half of them or more are not recorded, and windows cost at most 0.1 s."""
    now = [0]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    windows = Windows()
    while windows.steps < 50:
        if windows.due():
            windows.opened()
            windows.steps += WINDOW
            now[0] += WINDOW * 10_000_000
            windows.closed(WINDOW)
            with windows.costs():
                now[0] += reading_ns
        windows.steps += 1
        now[0] += 10_000_000
    assert windows.count == count and windows.count * WINDOW <= 25
    assert windows.cost_ns == count * reading_ns <= 100_000_000


def test_one_trainer_one_profiler(plan, batch, tmp_path):
    with plan.start() as trainer, Profiler(tmp_path / "one.run") as profiler:
        profiler.attach(trainer)
        with Profiler(tmp_path / "two.run") as other, pytest.raises(HandheldError, match="already being profiled"):
            other.attach(trainer)
        trainer.step(*batch)
        with plan.start() as second, pytest.raises(HandheldError, match="holds one trainer"):
            profiler.attach(second)  # This closed the first one.
    assert trainer.observer is None


# ── things that go wrong ──────────────────────────────────────────────────────────────────────


def test_a_device_without_profiling_queues(plan, batch, tmp_path, monkeypatch):
    """Whole steps are timed, and the run says why there are no op times."""
    real = cl.CommandQueue

    def refuse(context, device=None, properties=0):
        if properties:
            raise cl.LogicError("CommandQueue", cl.status_code.INVALID_QUEUE_PROPERTIES)
        return real(context, device, properties)

    monkeypatch.setattr(cl, "CommandQueue", refuse)
    with plan.profile(batch, tmp_path / "one.run", steps=30, sensors=False) as run:
        (note,) = run.notes()
        assert note.kind == "no op times" and "Only whole steps can be timed" in note.text
        assert len(run.steps()) == 30 and not run.timed and run.complete
        assert run.variance().times.median > 0 and run.parts() is None
        assert all(row.ms is None for row in run.ops())


def test_ctrl_c_leaves_a_run_that_opens(plan, batch, tmp_path):
    path = tmp_path / "one.run"

    def batches():
        for n in itertools.count():
            if n == 25:
                raise KeyboardInterrupt
            yield batch

    with pytest.raises(KeyboardInterrupt):
        plan.profile(batches(), path, steps=1000, sensors=False)
    with handheld.open_run(path) as run:
        assert run.meta["status"] == "interrupted" and not run.complete
        assert len(run.steps()) == 25 and run.timed and run.summary().status == "interrupted"


def test_an_error_in_the_callers_data_is_the_callers(plan, batch, tmp_path):
    def batches():
        yield batch
        raise ValueError("no more coal")

    with pytest.raises(ValueError, match="no more coal"):
        plan.profile(batches(), tmp_path / "one.run", steps=9, sensors=False)
    with handheld.open_run(tmp_path / "one.run") as run:
        assert run.meta["status"] == "failed: ValueError" and len(run.steps()) == 1


def test_data_that_ends(plan, batch, tmp_path):
    with plan.profile([batch] * 3, tmp_path / "list.run", steps=7, sensors=False) as run:
        assert len(run.steps()) == 7, "a list starts again"
    with pytest.raises(HandheldError, match="the data ended before the profile, and cannot be read a second time"):
        plan.profile(iter([batch] * 3), tmp_path / "iterator.run", steps=7, sensors=False)


def test_bad_requests_are_refused_before_there_is_a_file(plan, batch, tmp_path):
    path = tmp_path / "one.run"
    for options, words in (
        ({"graph": "tain"}, "no graph 'tain'; it has train"),
        ({"steps": 0}, "a profile needs at least 1 step"),
        ({"sensors": (Broken,)}, "in the other room"),
        ({"sensors": False, "energy": True}, "this machine has no power sensor"),
    ):
        with pytest.raises(HandheldError, match=words):
            plan.profile(batch, path, **options)
    with pytest.raises(BatchError, match="takes 2 tensors"):
        plan.profile(batch[:1], path)
    assert not path.exists()


def test_a_misspelled_option_is_a_type_error(tmp_path):
    plan = suite.get("m1").step(batch=4).plan("null")
    with pytest.raises(TypeError, match="stepz"):
        plan.profile((), tmp_path / "a.run", stepz=3)
    with pytest.raises(TypeError, match="stepz"):
        handheld.Profiler(tmp_path / "b.run", stepz=3)

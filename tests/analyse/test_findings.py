"""Planted problems are found, with the steps and ops that they affect. A quiet run has no findings."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from handheld.sensors.base import Channel
from handheld.store.commands import DOWNLOAD, LAUNCH, UPLOAD
from helpers.run_files import MS, PLAIN, START, MadeRun, busy, kinds, named, rising

#: the kinds of findings that are problems; a quiet run has none of them
PLANTED = {"own load", "other load", "clock", "caller", "transfer", "heat", "drift"}


def noisy(rate: float, seed: int, more: Callable[[float], float] = lambda t: 0.0) -> Callable[[float], float]:
    """A counter as the operating system reports it, in ticks of 10 ms, of an uneven load."""
    rng = np.random.default_rng(seed)
    value = rising(lambda t: max(rate * rng.normal(1, 0.1) + more(t), 0.0))
    return lambda t: round(value(t), 2)


def machine(
    made: MadeRun,
    own: Callable[[float], float] = lambda t: 0.0,
    other: Callable[[float], float] = lambda t: 0.0,
    threads: Callable[[float], float] = lambda t: 0.0,
    clock: Callable[[float], float] = lambda t: 2.0e9,
) -> None:
    """Adds the readings of four cores. The process keeps 1.5 of them busy; `own` and `other` are additional load."""
    mine = noisy(1.5, 1, own)
    rest = noisy(0.2, 2, other)
    started = noisy(0.0, 3, threads)
    rng = np.random.default_rng(4)

    def cores(t: float) -> list[float]:
        whole = mine(t) + rest(t)
        return [whole / 4] * 4

    made.source("cpu", busy(*(f"cpu{n} busy" for n in range(4))), 10, cores)
    # A second counter with the same seed, so that both sources see the same values.
    again = noisy(1.5, 1, own)
    made.source("process", [Channel("resident", "memory"), *busy("cpu time")], 10, lambda t: [1e8, again(t)])
    made.source("process-threads", busy("started cpu time"), 50, lambda t: [started(t)])
    made.source(
        "cpu-clock",
        [Channel(f"cpu{n} clock", "frequency") for n in range(4)],
        100,
        lambda t: [clock(t) * rng.normal(1, 0.01) for _ in range(4)],
    )


def between(low: float, high: float, value: float = 1.0) -> Callable[[float], float]:
    return lambda t: value if low <= t < high else 0.0


def steps_between(run, low: float, high: float) -> list[int]:
    return [s.id for s in run.steps() if s.end_ns > START + low * 1e9 and s.begin_ns < START + high * 1e9]


@pytest.fixture
def made(tmp_path) -> MadeRun:
    return MadeRun(tmp_path / "one.run")


def test_a_quiet_run_has_none(made):
    rng = np.random.default_rng(0)
    made.steps(600, slower=lambda i: rng.normal(1, 0.02))
    machine(made)
    with made.open() as run:
        assert not kinds(run) & PLANTED, [f.text for f in run.findings()]


def test_a_thread_that_burns_a_core(made):
    """The process keeps no more cores busy than before, because all are taken; the thread's time shows it."""
    made.steps(600, slower=lambda i: 1.5 if 200 <= i < 400 else 1.0)
    begin, end = (sum((9.2 * (1.5 if 200 <= k < 400 else 1)) for k in range(n)) * 1e-3 for n in (200, 400))
    machine(made, threads=between(begin, end, 0.9))
    with made.open() as run:
        found = named(run, "own load")
        assert found.evidence["seconds"] == pytest.approx(end - begin, abs=0.3)
        assert found.evidence["cores"] == pytest.approx(0.9, abs=0.1)
        assert set(range(215, 385)) <= set(found.steps) <= set(range(185, 415))
        assert found.ops == [0, 1], "both are half as slow again, the longer one by more"
        assert named(run, "slow steps").evidence["cause"] == "own load"


def test_own_load_where_cores_are_free(made):
    made.steps(600)
    machine(made, own=between(2.0, 4.0))
    with made.open() as run:
        found = named(run, "own load")
        assert found.evidence["cores"] == pytest.approx(1.0, abs=0.15)
        expected = steps_between(run, 2.0, 4.0)
        assert len(set(found.steps) ^ set(expected)) <= 24
        assert "other load" not in kinds(run)


def test_a_process_that_gets_more_of_the_machine_is_no_load(made):
    """Other processes take the cores for most of the run; then the process has them alone and is faster."""
    made.steps(600, slower=lambda i: 0.5 if i >= 400 else 1.0)
    begin = 0.00917 * 400
    machine(made, own=between(begin, 99))
    with made.open() as run:
        assert "own load" not in kinds(run)


def test_another_process(made):
    made.steps(600)
    machine(made, other=between(1.0, 3.0))
    with made.open() as run:
        found = named(run, "other load")
        assert found.evidence["seconds"] == pytest.approx(2.0, abs=0.3)
        assert len(set(found.steps) ^ set(steps_between(run, 1.0, 3.0))) <= 24
        assert "own load" not in kinds(run)


def test_a_short_burst_is_no_load(made):
    made.steps(600)
    machine(made, other=between(1.0, 1.2), own=between(3.0, 3.3))
    with made.open() as run:
        assert not kinds(run) & {"own load", "other load"}


def test_a_throttled_clock(made):
    made.steps(600, slower=lambda i: 1.6 if i >= 400 else 1.0)
    begin = sum(9.2 for _ in range(400)) * 1e-3
    machine(made, clock=lambda t: 2.0e9 if t < begin else 1.2e9)
    with made.open() as run:
        found = named(run, "clock")
        assert found.evidence["from_hz"] == pytest.approx(2.0e9, rel=0.03)
        assert found.evidence["to_hz"] == pytest.approx(1.2e9, rel=0.03)
        assert len(found.evidence["clocks"]) == 4 and "and 3 more fell" in found.text
        assert len(set(found.steps) ^ set(range(400, 600))) <= 12
        assert found.ops == [0, 1]


def test_an_idle_core_may_slow_down(made):
    made.steps(300)
    made.source("cpu", busy("cpu0 busy", "cpu1 busy"), 10, lambda t: [t, 0.0])
    made.source(
        "cpu-clock",
        [Channel("cpu0 clock", "frequency"), Channel("cpu1 clock", "frequency")],
        100,
        lambda t: [2e9, 2e9 if t < 1 else 0.4e9],
    )
    with made.open() as run:
        assert "clock" not in kinds(run)


def test_a_gpu_clock_counts_whatever_the_cores_do(made):
    made.steps(300)
    made.source("adreno", [Channel("gpu clock", "frequency")], 20, lambda t: [680e6 if t < 1 else 305e6])
    with made.open() as run:
        found = named(run, "clock")
        assert "adreno/gpu clock fell to 305 of 680 MHz" in found.text
        assert len(set(found.steps) ^ set(steps_between(run, 1.0, 99))) <= 4


def test_a_sleeping_data_loader(made):
    """Every fifth batch takes 20 ms."""
    made.steps(300, outside_ms=lambda i: 20.0 if i % 5 == 4 else 0.0)
    with made.open() as run:
        found = named(run, "caller")
        assert found.evidence["ms"] == pytest.approx(20.0, abs=0.1)
        # The first recorded step after a window does not count, because the profiler works there too.
        slept = {i for i in range(300) if i % 5 == 4}
        assert set(found.steps) <= slept and len(slept - set(found.steps)) <= 60
        assert found.ops == [0], "the op that waits for the batch"


def test_without_recorded_steps_it_is_not_known_whether_the_device_waits(made):
    made.steps(300, outside_ms=lambda i: 20.0, every=10**6, first=4)
    with made.open() as run:
        text = named(run, "caller").text
        assert text.startswith("there are 20.00 ms between the end of a step and the beginning of the next in ")
        assert text.endswith(". Whether the device waits is not known, because no step was recorded")


def test_long_waits_are_meant_and_not_the_short_ones_beside_them(made):
    made.steps(300, outside_ms=lambda i: 400.0 if i % 10 == 7 else 1.0)
    with made.open() as run:
        found = named(run, "caller")
        assert found.evidence["ms"] == pytest.approx(400, rel=0.01)
        assert found.steps == list(range(7, 300, 10))


def test_a_loader_that_the_device_does_not_wait_for(made):
    """Calls of 4 ms with 5 ms between them: one step is always queued, so the device is never idle."""
    period = 9.168
    for n in range(100):
        begin = START + round(n * period * MS)
        made.writer.put(
            "step", n, "train", 8, begin + 5 * MS, begin + round(period * MS), None if n % 10 > 3 else n // 10, None
        )
        if n % 10 < 4:
            rows, at = [], begin + 3 * MS
            for kind, op, ms in PLAIN:
                end = at + round(ms * MS)
                rows.append((kind, op, 4, begin - 4 * MS, begin - 3 * MS, 0, 0, at + made.offset, end + made.offset))
                at = end + 2000
            made.writer.put("command", n, 4, np.array(rows, "<i8").T.tobytes())
    with made.open() as run:
        assert run.parts().caller == 0 and "caller" not in kinds(run)


def test_a_copy_in_the_middle(made):
    made.steps(100, commands=[*PLAIN[:2], (DOWNLOAD, -1, 2.0), *PLAIN[2:]])
    with made.open() as run:
        found = named(run, "transfer")
        assert found.ops == [0, 1] and found.evidence["bytes"] == 4
        assert found.evidence["ms"] == pytest.approx(2.0, abs=0.01)
        assert found.steps == [s.id for s in run.steps() if s.recorded]
        assert "after layer conv" in found.text


def test_launches_that_the_device_waits_for(made):
    for n in range(40):
        t = START + n * 20 * MS
        rows = [
            (LAUNCH, 0, 0, t, t + 1000, 0, 0, t + 2000 + made.offset, t + MS + made.offset),
            (LAUNCH, 1, 0, t + 9 * MS, t + 10 * MS, 0, 0, t + 10 * MS + made.offset, t + 19 * MS + made.offset),
        ]
        made.writer.put("step", n, "train", 8, t, t + 20 * MS, n // 4, None)
        made.writer.put("command", n, 2, np.array(rows, "<i8").T.tobytes())
    with made.open() as run:
        assert named(run, "launching").evidence["share"] == pytest.approx(0.5, abs=0.06)


def test_a_driver_that_waits(made):
    for n in range(40):
        t = START + n * 20 * MS
        at = t + made.offset
        rows = [
            (LAUNCH, 0, 0, t, t + 1000, 0, 0, at + 2000, at + MS),
            (LAUNCH, 1, 0, t + 1000, t + 2000, 0, 0, at + 6 * MS, at + 7 * MS),
            (LAUNCH, 0, 0, t + 2000, t + 3000, 0, 0, at + 8 * MS, at + 20 * MS),
        ]
        made.writer.put("step", n, "train", 8, t, t + 20 * MS, n // 4, None)
        made.writer.put("command", n, 3, np.array(rows, "<i8").T.tobytes())
    with made.open() as run:
        found = named(run, "driver")
        assert found.ops == [1] and found.evidence["share"] == pytest.approx(0.3, abs=0.01)
        assert found.evidence["most_ms"] == pytest.approx(5, abs=0.01)
        assert "although the next command is enqueued" in found.text and len(found.steps) == 20


def test_a_driver_that_waits_before_a_step(made):
    """The upload of the next step is enqueued long before the step begins."""
    for n in range(40):
        t = START + n * 20 * MS
        at = t + made.offset
        rows = [
            (UPLOAD, -1, 64, t, t + 1000, 0, 0, at + 12 * MS, at + 13 * MS),
            (LAUNCH, 0, 0, t + 1000, t + 2000, 0, 0, at + 13 * MS, at + 22 * MS),
        ]
        made.writer.put("step", n, "train", 8, t, t + 20 * MS, n // 4, None)
        made.writer.put("command", n, 2, np.array(rows, "<i8").T.tobytes())
    with made.open() as run:
        found = named(run, "driver")
        assert found.evidence["most_ms"] == pytest.approx(10, abs=0.01) and not found.ops
        assert "10.00 ms of that are before the upload" in found.text


def test_heat_touches_the_steps_after_it(made):
    made.steps(400)
    made.source("thermal", [Channel("soc", "temperature")], 100, lambda t: [40 + 4 * max(t, 0)])
    with made.open() as run:
        found = named(run, "heat")
        assert found.evidence["from_c"] == pytest.approx(40, abs=0.5)
        assert len(set(found.steps) ^ set(steps_between(run, 1.25, 99))) <= 24


def test_slow_steps_are_explained_or_said_to_be_unexplained(made):
    made.steps(600, slower=lambda i: 3.0 if i in (109, 309) else 1.0)
    begin = 0.00917 * 100
    machine(made, other=between(begin, begin + 0.8))
    with made.open() as run:
        causes = {f.evidence["cause"]: f.steps for f in run.findings() if f.kind == "slow steps"}
        assert causes == {"other load": [109], "unexplained": [309]}

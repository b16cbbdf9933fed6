"""The energy of ops, computed from windows with known joules."""

from __future__ import annotations

import math

import numpy as np
import pytest

from handheld.analyse.energy import interval
from handheld.analyse.rails import Series
from handheld.sensors.base import Channel
from helpers.run_files import MS, START, MadeRun, rising

#: seconds and joules above idle power per run of each signature's ops
SECONDS = {"sig0": 0.006, "sig1": 0.003}
JOULES = {"sig0": 0.9, "sig1": 0.15}
IDLE_W = 20.0
COUNTER = [Channel("gpu0 energy", "energy", counter=True, covers=("gpu",))]
POWER = [Channel("gpu0 power", "power", covers=("gpu",))]


class Rail:
    """Simulates windows and remembers the power of a rail over time."""

    def __init__(self, made: MadeRun, noise: float = 0.0, warming: float = 0.0) -> None:
        self.made, self.noise, self.warming = made, noise, warming
        self.rng = np.random.default_rng(0)
        self.stretches: list[tuple[float, float, float]] = []  # from, to (s), watts

    def play(self, method: str, signature: str, extra: int, seconds: float = 2.0) -> None:
        per_run = {key: 0 if method == "alone" else 1 for key in SECONDS}
        if signature:
            per_run[signature] += extra if method == "slope" else 1
        length = sum(n * SECONDS[key] for key, n in per_run.items())
        joules = sum(n * JOULES[key] for key, n in per_run.items())
        runs = round(seconds / length)
        begin = (self.made.now - START) * 1e-9
        watts = joules / length * self.rng.normal(1, self.noise) * (1 + self.warming * begin)
        ops = [int(signature[-1])] if signature else []
        self.made.window(method, signature, ops, extra, runs, runs * length)
        self.stretches.append((begin, begin + runs * length, watts))

    def watts(self, t: float) -> float:
        return IDLE_W + sum(w for a, b, w in self.stretches if a <= t < b)


def windows(rail: Rail, rounds: int = 3) -> None:
    order = [
        ("slope", "", 0),
        ("slope", "", 0),
        ("slope", "sig0", 2),
        ("slope", "sig1", 3),
        ("alone", "sig0", 0),
        ("alone", "sig1", 0),
    ]
    for _ in range(rounds):
        rail.rng.shuffle(order)
        for one in order:
            rail.play(*one)


@pytest.fixture
def made(tmp_path) -> MadeRun:
    return MadeRun(tmp_path / "one.run", idle_ns=[START - 1500 * MS, START - 500 * MS])


def expected(signature: str) -> float:
    return JOULES[signature] + IDLE_W * SECONDS[signature]


@pytest.mark.parametrize("channels", [COUNTER, POWER], ids=["counter", "power"])
def test_both_methods_find_what_is_known(made, channels):
    rail = Rail(made)
    windows(rail)
    energy = rising(rail.watts, step=0.001)
    made.source("meter", channels, 20, (lambda t: [energy(t)]) if channels is COUNTER else lambda t: [rail.watts(t)])
    with made.open() as run:
        rows = {(r.signature, r.method): r for r in run.op_energy()}
        assert set(rows) == {(s, m) for s in SECONDS for m in ("slope", "alone")}
        for (signature, _), row in rows.items():
            assert row.joules == pytest.approx(expected(signature), rel=0.03)
            assert row.run_s == pytest.approx(SECONDS[signature], rel=0.01)
            assert row.idle_joules == pytest.approx(IDLE_W * SECONDS[signature], rel=0.03)
            assert row.windows == 3 and row.ops == (int(signature[-1]),)
            # A counter changes with each reading, power only where a window begins or ends.
            assert row.ticks >= (200 if channels is COUNTER else 0)
        (step,) = run.step_energy()
        whole = sum(map(expected, SECONDS))
        assert step.joules == pytest.approx(whole, rel=0.02)
        assert step.slope == pytest.approx(whole, rel=0.03)
        assert step.alone == pytest.approx(whole, rel=0.03)


def test_ops_of_equal_time_are_told_apart(made, monkeypatch):
    """Mean power times time would give both ops the same energy."""
    monkeypatch.setitem(SECONDS, "sig1", 0.006)
    rail = Rail(made, noise=0.01)
    windows(rail)
    energy = rising(rail.watts, step=0.001)
    made.source("meter", COUNTER, 20, lambda t: [energy(t)])
    with made.open() as run:
        for method in ("slope", "alone"):
            hot, cold = (
                next(r for r in run.op_energy() if (r.signature, r.method) == (signature, method))
                for signature in ("sig0", "sig1")
            )
            assert hot.low_joules > cold.high_joules


def test_a_device_that_warms_up_is_compared_with_steps_nearby(made):
    rail = Rail(made, warming=0.004)  # power rises by a sixth over the run
    windows(rail, rounds=4)
    energy = rising(rail.watts, step=0.001)
    made.source("meter", COUNTER, 20, lambda t: [energy(t)])
    with made.open() as run:
        (slope,) = (r for r in run.op_energy() if (r.signature, r.method) == ("sig0", "slope"))
        mean = 1 + 0.004 * (made.now - START) * 1e-9 / 2
        assert slope.joules == pytest.approx(JOULES["sig0"] * mean + IDLE_W * 0.006, rel=0.06)


def test_intervals_hold_the_truth_as_often_as_they_say():
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(400):
        mean, half = interval(rng.normal(5, 1, 3).tolist())
        hits += abs(mean - 5) <= half
    assert 0.92 <= hits / 400 <= 0.98
    assert interval([1.0]) == (1.0, math.inf)
    assert interval([2.0, 2.0]) == (2.0, 0.0)


def test_windows_that_no_reading_reaches_around_say_nothing(made):
    rail = Rail(made)
    windows(rail, rounds=1)
    energy = rising(rail.watts, step=0.001)
    made.source("meter", COUNTER, 20, lambda t: [energy(t)], until=START + 5000 * MS)
    with made.open() as run:
        assert all(r.windows == 1 for r in run.op_energy())
        assert len(run.op_energy()) < 4


def test_memory_is_a_rail_of_its_own(made):
    rail = Rail(made)
    windows(rail)
    energy = rising(rail.watts, step=0.001)
    made.source(
        "meter",
        [*COUNTER, Channel("gpu0 memory power", "power", covers=("memory",), part_of="gpu0 power")],
        20,
        lambda t: [energy(t), 0.25 * rail.watts(t)],
    )
    with made.open() as run:
        whole, memory = (
            next(
                r
                for r in run.op_energy()
                if r.rail == f"meter/gpu0 {name}" and (r.signature, r.method) == ("sig0", "alone")
            )
            for name in ("energy", "memory power")
        )
        assert memory.joules == pytest.approx(0.25 * whole.joules, rel=0.03)


def test_the_energy_left_in_a_battery_is_no_rail(made):
    made.steps(300)
    battery = [Channel("BAT0 power", "power", covers=("system",)), Channel("BAT0 energy left", "energy")]
    made.source("battery", battery, 20, lambda t: [12.0, 180_000.0 - 12.0 * t])
    with made.open() as run:
        assert [row.rail for row in run.energy()] == ["battery/BAT0 power"]


def test_energy_of_the_run_with_idle_apart(made):
    made.steps(300)
    energy = rising(lambda t: 50.0 if t > 0 else IDLE_W, step=0.001)
    made.source("meter", COUNTER, 20, lambda t: [energy(t)])
    with made.open() as run:
        (row,) = run.energy()
        assert row.watts == pytest.approx(50, rel=0.02) and not row.estimate
        assert row.idle_watts == pytest.approx(IDLE_W, rel=0.02)
        assert row.joules_step == pytest.approx(50 * 9.17e-3, rel=0.03)
        assert row.ticks > 50 and row.covers == ("gpu",)


def test_a_counter_is_taken_before_power_of_the_same(made):
    made.steps(100)
    energy = rising(lambda t: 50.0)
    made.source("meter", [*COUNTER, *POWER], 20, lambda t: [energy(t), 49.0])
    with made.open() as run:
        assert [row.rail for row in run.energy()] == ["meter/gpu0 energy"]


def test_without_a_sensor_nothing_is_said(made):
    made.steps(50)
    with made.open() as run:
        assert run.energy() == [] and run.op_energy() == [] and run.step_energy() == []


def test_an_estimate_is_marked_wherever_it_appears(tmp_path):
    made = MadeRun(tmp_path / "estimate.run", estimate={"watts_busy": 5.0, "watts_idle": 1.0})
    made.steps(50)
    with made.open() as run:
        (row,) = run.energy()
        busy, whole = 9.15e-3, run.parts().ms * 1e-3
        assert row.estimate and row.rail == "estimate" and row.joules is None
        assert row.joules_step == pytest.approx(5 * busy + 1 * (whole - busy))
        rows = run.op_energy()
        assert [r.joules for r in rows] == pytest.approx([5 * 6e-3, 5 * 3e-3])
        assert all(r.estimate and r.method == r.rail == "estimate" for r in rows)
        assert all(r.low_joules is None for r in rows), "nothing measured, no interval"
        assert run.step_energy() == []


def test_joules_of_windows_hold_for_the_plan_that_trains(made):
    """Ops that take another time in the plan of the windows have their joules scaled, or none at all; a step's joules
    come from windows of the plan that trains."""
    rail = Rail(made)
    made.steps(20)
    windows(rail)
    rail.play("step", "", 0)
    # The ops take 6 and 3 ms in the plan that trains.
    made.writer.meta(isolated={"graph": "train", "op_ms": {"0": 7.5, "1": 9.0}})
    made.source("meter", POWER, 20, lambda t: [rail.watts(t)])
    with made.open() as run:
        rows = run.op_energy()
        assert {row.signature for row in rows} == {"sig0"}
        for row in rows:
            assert row.scale == pytest.approx(0.8, rel=1e-3)
            assert row.joules == pytest.approx(0.8 * expected("sig0"), rel=0.03)
            assert row.low_joules <= row.joules <= row.high_joules
        (step,) = run.step_energy()
        assert step.half_width == math.inf  # one window of the plan that trains


def channel(name: str, counter: bool, period_ms: float, value) -> Series:
    """Readings every 15 ms of a value that the device updates every `period_ms`."""
    t = np.arange(0, 6000, 15.0)
    values = np.array([value(period_ms * (at // period_ms) * 1e-3) for at in t])
    kind = "energy" if counter else "power"
    return Series("meter", name, kind, "J", counter, ("gpu",), "", (t * 1e6).astype(np.int64), values)


def test_a_counter_that_is_updated_rarely_counts_at_its_updates():
    """100 W, and 500 W from 2 s to 3 s. Between updates a reading is up to 100 ms old."""
    counter = channel("gpu0 energy", True, 100, lambda t: 100 * t + 400 * min(max(t - 2, 0), 1))
    for begin in (2.0, 2.03, 2.07):
        joules = counter.joules(round(begin * 1e9), round(3.0 * 1e9))
        assert joules == pytest.approx(500 * (3.0 - begin), rel=0.04)
    end = counter.t_ns[-1]  # The update after the end was not seen.
    assert counter.joules(end - 1_000_000_000, end) == pytest.approx(100, rel=0.03)


def test_a_rail_that_averages_counts_only_its_own_window():
    """40 W, and 90 W from 2 s on, averaged over the last second."""
    rail = channel("gpu0 memory power (1 s average)", False, 100, lambda t: 40 + 50 * min(max(t - 2, 0), 1))
    assert rail.joules(2_000_000_000, 4_000_000_000) == pytest.approx(180, rel=0.02)
    assert rail.joules(2_000_000_000, 2_500_000_000) is None  # too short to tell

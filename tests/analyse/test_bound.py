"""What limits a step: shares that add up, by the ceilings of the device; layers; ops without tuning records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from handheld.analyse.roofline import Ceiling
from handheld.store.commands import COPY, DOWNLOAD, LAUNCH, UPLOAD
from helpers.run_files import MadeRun

#: 100 GFLOP/s, 10 GB/s from memory, 100 GB/s from the cache, 10 µs per empty launch
CEILINGS: dict[str, Any] = {
    "flops": 1e11,
    "bytes_s": 1e10,
    "memory": [[1 << 14, 1e11], [1 << 26, 1e10]],
    "launch_device_s": 1e-5,
    "to_device_bytes_s": 1e10,
    "to_device_latency_s": 1e-5,
    "to_host_bytes_s": 1e10,
    "to_host_latency_s": 1e-5,
}
#: At the ceilings: 3 ms of arithmetic, 2 ms of memory (beyond the cache), hardly anything.
OPS = (
    {"op": "conv", "flops": 3 * 10**8, "bytes": 1000, "path": "a.b"},
    {"op": "map", "flops": 1000, "bytes": 2 * (10**7), "phase": "backward", "path": "a.c"},
    {"op": "map", "flops": 10, "bytes": 100, "phase": "update", "path": ""},
)


def made(tmp_path: Path, *ms: float, commands: Any = (), **meta: Any) -> MadeRun:
    run = MadeRun(tmp_path / "one.run", ops=OPS, ceilings=CEILINGS, **meta)
    run.steps(20, commands=commands or [(LAUNCH, i, value) for i, value in enumerate(ms)])
    return run


def test_the_shares_add_up_to_the_step(tmp_path):
    commands = ((UPLOAD, -1, 0.3), (LAUNCH, 0, 6.0), (LAUNCH, 1, 4.0), (LAUNCH, 2, 0.015), (COPY, -1, 0.2))
    with made(tmp_path, commands=(*commands, (DOWNLOAD, -1, 0.1))).open() as run:
        bound = run.bound()
        assert bound.limit == "compute" and sum(bound.ms.values()) == pytest.approx(bound.step_ms)
        assert sum(bound.shares.values()) == pytest.approx(1)
        assert bound.ms["compute"] == pytest.approx(6.0) and bound.ms["memory"] == pytest.approx(4.0)
        assert bound.ms["launches"] >= 0.015, "an op near an empty launch, and the gaps between commands"
        assert bound.ms["transfers"] == pytest.approx(0.6)
        assert bound.reached == pytest.approx(0.5), "3 ms of arithmetic took 6 ms"
        assert bound.text.startswith("Bound by compute: 5") and "at 50% of the device's ceiling" in bound.text
        assert "memory 3" in bound.text and bound.to_json()["limit"] == "compute"


@pytest.mark.parametrize(("ms", "far"), [(6.0, False), (30.0, True)])
def test_an_op_far_below_the_ceiling_is_not_blamed_on_the_device(ms, far, tmp_path):
    with made(tmp_path, ms, 0.1, 0.01).open() as run:
        assert ("The device could do much more" in run.bound().text) == far


def test_memory_is_the_limit_if_bytes_take_longer(tmp_path):
    with made(tmp_path, 4.0, 8.0, 0.01).open() as run:
        bound = run.bound()
        assert bound.limit == "memory" and bound.reached == pytest.approx(2e7 / run_bandwidth(2e7) * 1e3 / 8)
        assert {row.id: row.limit for row in bound.ops} == {0: "compute", 1: "memory", 2: "launches"}


def run_bandwidth(nbytes: float) -> float:
    ceiling = Ceiling.of(CEILINGS)
    assert ceiling is not None
    return ceiling.bandwidth(nbytes)


def test_the_bandwidth_depends_on_the_working_set():
    ceiling = Ceiling.of(CEILINGS)
    assert ceiling is not None
    assert ceiling.bandwidth(10) == 1e11 and ceiling.bandwidth(1e12) == 1e10
    assert 1e10 < ceiling.bandwidth(1 << 20) < 1e11
    old = Ceiling.of({"flops": 1e9, "bytes_s": 1e8})
    assert old is not None and old.bandwidth(10) == 1e8 and old.launch_s is None
    assert Ceiling.of(None) is None and Ceiling.of({"flops": 0, "bytes_s": 1}) is None


def test_launches_are_the_limit_of_tiny_ops(tmp_path):
    with made(tmp_path, commands=((LAUNCH, 2, 0.012),)).open() as run:
        bound = run.bound()
        assert bound.limit == "launches" and "launching kernels" in bound.text and bound.reached is None


def test_a_slow_op_with_little_work_is_not_launch_bound(tmp_path):
    """It takes a hundred times as long as an empty launch, so it is a slow kernel."""
    with made(tmp_path, 0.01, 0.01, 1.0).open() as run:
        assert run.bound().limit in ("compute", "memory")


def test_data_is_the_limit_if_the_caller_is_slow(tmp_path):
    run = MadeRun(tmp_path / "one.run", ops=OPS, ceilings=CEILINGS)
    run.steps(40, commands=((LAUNCH, 0, 6.0),), outside_ms=lambda i: 20.0)
    with run.open() as opened:
        bound = opened.bound()
        assert bound.limit == "data" and bound.shares["data"] > 0.7 and "waits for the next batch" in bound.text


def test_without_ceilings_ops_are_one_limit(tmp_path):
    run = MadeRun(tmp_path / "one.run")
    run.steps(20)
    with run.open() as opened:
        bound = opened.bound()
        assert bound.limit == "compute or memory" and "were not measured" in bound.text
        assert sum(bound.ms.values()) == pytest.approx(bound.step_ms) and not bound.ops


def test_a_run_without_recorded_steps_says_so(tmp_path):
    run = MadeRun(tmp_path / "one.run")
    run.steps(2)
    with run.open() as opened:
        assert opened.bound().limit is None and "not known" in opened.bound().text


def test_layers_cover_every_op_once(tmp_path):
    with made(tmp_path, 6.0, 4.0, 0.5).open() as run:
        rows = run.layers()
        assert [(row.path, row.ops) for row in rows] == [("a.b", 1), ("a.c", 1), ("(model)", 1)]
        assert sum(row.ms for row in rows) == pytest.approx(10.5)
        step = run.parts()
        assert step is not None and sum(row.share for row in rows) == pytest.approx(10.5 / step.ms)
        assert rows[0].forward_ms == pytest.approx(6.0) and rows[0].backward_ms == 0
        assert [row.path for row in run.layers(most=1)] == ["a.b", "a.c", "(model)"], "most of the time is inside a"


def test_layers_are_opened_where_the_time_is(tmp_path):
    paths = [f"big.{i}.conv" for i in range(4)] + ["small.0", "small.1", "big"]
    run = MadeRun(tmp_path / "one.run", ops=[{"path": path} for path in paths])
    run.steps(20, commands=[(LAUNCH, i, 5.0 if path.startswith("big.") else 0.1) for i, path in enumerate(paths)])
    with run.open() as opened:
        rows = {row.path: row for row in opened.layers()}
        assert set(rows) == {*(f"big.{i}.conv" for i in range(4)), "big", "small"}
        assert rows["big"].own and not rows["small"].own and rows["small"].ops == 2


GAINS = {"conv": {"shapes": 20, "mean": 0.8, "low": 0.6, "high": 0.95, "from": "this device"}}


def test_what_tuning_would_gain(tmp_path):
    facts = {"records": [], "variants": 2, "without": [0], "gains": GAINS}
    with made(tmp_path, 6.0, 4.0, 0.5, tuning=facts).open() as run:
        known = run.untuned()
        assert known is not None and known.ops == [0] and known.ms == pytest.approx(6.0)
        assert known.gain_ms == pytest.approx(1.2)
        assert (known.low_ms, known.high_ms) == (pytest.approx(0.3), pytest.approx(2.4))
        assert known.basis == "20 tuned shapes of this device"


def test_a_tuned_plan_has_nothing_to_gain(tmp_path):
    with made(tmp_path, 6.0, tuning={"records": ["x"], "variants": 2, "without": [], "gains": {}}).open() as run:
        known = run.untuned()
        assert known is not None and not known.ops and known.gain_ms is None


def test_a_run_that_does_not_know_its_tuning(tmp_path):
    with made(tmp_path, 6.0).open() as run:
        assert run.untuned() is None


def test_layers_have_joules_where_every_op_has_them(tmp_path):
    with made(tmp_path, 6.0, 4.0, 0.5, estimate={"watts_busy": 5.0, "watts_idle": 1.0}).open() as run:
        layers = {row.path: row.joules for row in run.layers()}
        assert layers["a.b"] == pytest.approx(0.03) and sum(layers.values()) == pytest.approx(0.0525)


def test_layers_without_energy_have_no_joules(tmp_path):
    with made(tmp_path, 6.0, 4.0, 0.5).open() as run:
        assert {row.joules for row in run.layers()} == {None}

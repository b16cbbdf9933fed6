"""Every rule of advice has a planted case that triggers it, with the gain it must promise, and one that must not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from handheld.analyse.advise import RULES, advice
from handheld.analyse.rules.base import Advice
from handheld.analyse.rules.growth import Growth, memory_of
from handheld.analyse.run import Run
from handheld.sensors.base import Channel
from handheld.store.commands import LAUNCH, UPLOAD
from helpers.run_files import START, MadeRun

#: 100 GFLOP/s, 10 GB/s, 10 µs per empty launch
CEILINGS: dict[str, Any] = {
    "flops": 1e11,
    "bytes_s": 1e10,
    "memory": [[1 << 14, 1e10], [1 << 26, 1e10]],
    "launch_device_s": 1e-5,
    "to_device_bytes_s": 1e10,
    "to_device_latency_s": 1e-5,
    "to_host_bytes_s": 1e10,
    "to_host_latency_s": 1e-5,
}
FASTER = {**CEILINGS, "flops": 1e12, "bytes_s": 1e11, "memory": []}
GAINS = {"conv": {"shapes": 20, "mean": 0.8, "low": 0.6, "high": 0.95, "from": "this device"}}
FULL = {"op": "conv", "flops": 5 * 10**8, "bytes": 10**6, "path": "net.a"}  # 5 ms of arithmetic at the ceiling
BACK = {**FULL, "op": "conv_input", "phase": "backward"}
UPDATE = {"op": "map", "phase": "update", "path": "net", "flops": 1000, "bytes": 1000}
MOVING = {"op": "map", "flops": 1000, "bytes": 5 * 10**7, "path": "net.a"}  # 5 ms of memory at the ceiling
SETTINGS = {"model": "lenet5", "batch": 8}


def run_of(
    tmp_path: Path, ops: list[dict[str, Any]], ms: list[float], *, kind: str = "cpu", outside: float = 0.0, **meta: Any
) -> Run:
    caps = {"name": "made up", "kind": kind, "global_mem_bytes": 1 << 30}
    given = {"caps": caps, "ceilings": CEILINGS, "settings": SETTINGS, "plan_options": {"precision": "float32"}, **meta}
    made = MadeRun(tmp_path / "one.run", ops=ops, **given)
    made.steps(60, commands=[(LAUNCH, i, each) for i, each in enumerate(ms)], outside_ms=lambda i: outside)
    return made.open()


def said(run: Run, rule: str) -> Advice | None:
    return RULES[rule](run)


def given(run: Run, rule: str) -> Advice:
    item = said(run, rule)
    assert item is not None
    return item


def efficient(tmp_path: Path, **meta: Any) -> Run:
    """A step that reaches 83% of the ceiling."""
    return run_of(tmp_path, [FULL, BACK], [6.0, 6.0], **meta)


TINY = [{"op": "map", "flops": 100, "bytes": 1000, "path": f"net.{i}"} for i in range(12)]


def test_launches(tmp_path):
    with run_of(tmp_path, TINY, [0.012] * 12) as run:
        item = given(run, "launches")
        assert item.to is not None and item.to.batch == 8 * 16 and item.costs_ms > 0.1
        assert item.gain.factor == pytest.approx(16, rel=0.2), "nothing but launches"
        assert item.command == "handheld profile lenet5 --batch 128"
        assert [one.rule for one in advice(run)].count("batch") == 0, "the same change is said once"


def test_a_memory_limit_of_the_run_ends_the_growth(tmp_path):
    options = {"precision": "float32", "memory_limit_bytes": 4 << 20}
    with run_of(tmp_path, TINY, [0.012] * 12, plan_options=options) as run:
        assert memory_of(run) == 4 << 20, "not the memory of the device"


def test_no_launches(tmp_path):
    with efficient(tmp_path) as run:
        assert said(run, "launches") is None


def test_batch(tmp_path):
    """Half of the step is an update, which does not grow."""
    with run_of(tmp_path, [FULL, UPDATE], [6.0, 6.0]) as run:
        item = given(run, "batch")
        assert item.to is not None and item.to.batch in (32, 64, 128)
        times = item.to.batch / 8
        assert item.gain.factor == pytest.approx(12 * times / (6 + 6 * times), rel=0.1)
        assert item.gain.low <= item.gain.after <= item.gain.high < item.gain.before


def sized(tmp_path: Path, ops: list[dict[str, Any]], ms: list[float], groups: int | None) -> Growth:
    """How a step on a GPU of 10 units grows whose ops have this many work-groups each."""
    caps = {"name": "made up", "kind": "gpu", "global_mem_bytes": 1 << 30, "compute_units": 10}
    sizes = {str(i): ("map", groups, 64 * groups) for i in range(len(ops))} if groups else None
    tmp_path.mkdir(exist_ok=True)
    with run_of(tmp_path, ops, ms, caps=caps, launch_sizes=sizes) as run:
        growth = Growth.of(run)
        assert growth is not None
        return growth


def test_an_op_of_a_gpu_grows_as_far_as_it_fills_the_device(tmp_path):
    """However far below the ceilings it is: 1% of the peak, in a kernel with enough work-groups, is all it reaches."""
    ops = [{**FULL, "flops": 10**7, "bytes": 1000}]
    few, many, unknown = (sized(tmp_path / str(n), ops, [10.0], n) for n in (1, 5000, None))
    assert few.at(4).ms == pytest.approx(10 * (4 + 10) / (1 + 10), rel=0.02)
    assert many.at(4).ms == pytest.approx(10 * 4, rel=0.02) and many.larger(None) is None
    assert unknown.at(4).ms == pytest.approx(10 * 4, rel=0.02), "it is taken to fill the device"
    grown = few.at(4)
    assert grown.low_ms < grown.ms < grown.high_ms


def test_the_start_of_an_op_does_not_grow(tmp_path):
    """An empty launch takes 10 us."""
    growth = sized(tmp_path, TINY, [0.015] * 12, 5000)
    assert growth.at(16).ms == pytest.approx(12 * (0.010 + 16 * 0.005), rel=0.02)


def test_the_host_of_a_gpu_works_meanwhile(tmp_path):
    """The device waits for half of the step; with more work it waits less, or as long in the worst case."""
    caps = {"name": "made up", "kind": "gpu", "compute_units": 10}
    with run_of(tmp_path, [{**FULL, "bytes": 1000}], [4.0], outside=4.0, caps=caps) as run:
        growth = Growth.of(run)
        assert growth is not None and growth.idle_ms == pytest.approx(4.0, rel=0.1)
        assert growth.at(2).ms == pytest.approx(8.0, rel=0.05) == growth.step_ms
        grown = growth.at(4)
        assert grown.ms == pytest.approx(16.0, rel=0.02) and grown.high_ms == pytest.approx(20.0, rel=0.05)


def test_uploads_grow_with_the_batch(tmp_path):
    meta = {"caps": {"name": "made up", "kind": "gpu"}, "ceilings": CEILINGS, "settings": SETTINGS}
    made = MadeRun(tmp_path / "one.run", ops=[UPDATE], **meta)
    made.steps(60, commands=[(UPLOAD, -1, 2.0), (LAUNCH, 0, 6.0)])
    with made.open() as run:
        growth = Growth.of(run)
        assert growth is not None and growth.upload_ms == pytest.approx(2.0, rel=0.05)
        assert growth.at(4).ms == pytest.approx(6 + 4 * 2, rel=0.05)


def test_no_batch(tmp_path):
    with efficient(tmp_path) as run:
        assert said(run, "batch") is None


def test_no_batch_beyond_the_memory(tmp_path):
    alive = {"live": {"activation": 900 << 20, "parameter": 1 << 20}}
    memory = {"memory.train": {"peak_op": 0, "peak_bytes": 901 << 20, "owners": []}}
    with run_of(tmp_path, [{**FULL, **alive}, UPDATE], [6.0, 6.0], **memory) as run:
        assert said(run, "batch") is None


def test_tune(tmp_path):
    facts = {"records": [], "variants": 1, "without": [0], "gains": GAINS}
    with run_of(tmp_path, [FULL, BACK], [6.0, 6.0], tuning=facts) as run:
        item = given(run, "tune")
        assert item.costs_ms == pytest.approx(1.2, rel=0.02) and item.gain.factor == pytest.approx(12 / 10.8, rel=0.02)
        assert item.to is not None and item.to.tune_s and "handheld tune lenet5" in item.command


def test_no_tune(tmp_path):
    with efficient(tmp_path, tuning={"records": ["x"], "variants": 1, "without": [], "gains": {}}) as run:
        assert said(run, "tune") is None


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_half_is_for_memory_and_says_that_steps_take_longer(tmp_path, kind):
    alive = {"live": {"activation": 400 << 20, "parameter": 1 << 20}}
    memory = {"memory.train": {"peak_op": 0, "peak_bytes": 401 << 20, "owners": []}}
    with run_of(tmp_path, [{**FULL, **alive}], [6.0], kind=kind, **memory) as run:
        item = given(run, "half")
        assert item.gain.quantity == "bytes" and "takes longer" in item.change
        assert item.gain.after == pytest.approx((401 - 100) << 20)


@pytest.mark.parametrize("precision", ["float32", "half"])
@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_no_half(tmp_path, precision, kind):
    """A step that moves memory gains no time, on a GPU neither, and a step in halves has gained what it can."""
    ops, options = [MOVING, {**MOVING, "phase": "backward"}], {"precision": precision}
    with run_of(tmp_path, ops, [6.0, 6.0], kind=kind, plan_options=options) as run:
        assert said(run, "half") is None


def test_activations(tmp_path):
    alive = {"live": {"activation": 800 << 20, "parameter": 8 << 20}}
    memory = {"memory.train": {"peak_op": 0, "peak_bytes": 808 << 20, "owners": [["x conv", "activation", 1 << 20]]}}
    with run_of(tmp_path, [{**FULL, **alive}], [6.0], **memory) as run:
        item = given(run, "activations")
        assert item.gain.after == pytest.approx(408 << 20) and item.to is not None and item.to.batch == 4
        assert "--accumulate 2" in item.command and "x conv" in item.seen and "--memory-limit may" in item.change


def test_activations_are_computed_again_at_the_cost_that_the_planner_predicted(tmp_path):
    alive = {"live": {"activation": 800 << 20, "parameter": 8 << 20}}
    memory = {"memory.train": {"peak_op": 0, "peak_bytes": 808 << 20, "owners": []}}
    less = {"limit_bytes": 450 << 20, "bytes": 440 << 20, "more": 0.15}
    with run_of(tmp_path, [{**FULL, **alive}], [6.0], plan_bytes=900 << 20, less_memory=less, **memory) as run:
        item = given(run, "activations")
        assert item.gain.before == 900 << 20 and item.gain.after == 440 << 20 and item.effect == "same results"
        assert "predicts 15% more time" in item.change and item.to is not None
        assert item.to.memory_limit == 450 << 20 and item.command.endswith("--memory-limit 450MiB")


def test_no_activations(tmp_path):
    alive = {"live": {"activation": 8 << 20, "parameter": 800 << 20}}
    memory = {"memory.train": {"peak_op": 0, "peak_bytes": 808 << 20, "owners": []}}
    with run_of(tmp_path, [{**FULL, **alive}], [6.0], **memory) as run:
        assert said(run, "activations") is None


def test_inputs(tmp_path):
    with run_of(tmp_path, [FULL], [6.0], outside=5.0) as run:
        item = given(run, "inputs")
        assert item.costs_ms == pytest.approx(5, rel=0.1) and item.gain.before == pytest.approx(11, rel=0.05)
        assert item.gain.after == pytest.approx(6, rel=0.1), "making a batch takes less time than the step"
        assert item.to is None and "caller's own code" in item.why_not


def test_inputs_that_take_longer_than_the_step(tmp_path):
    with run_of(tmp_path, [FULL], [6.0], outside=200.0) as run:
        assert "several workers" in given(run, "inputs").change


def test_no_inputs(tmp_path):
    with efficient(tmp_path) as run:
        assert said(run, "inputs") is None


def test_inputs_leave_out_the_profiler(tmp_path):
    """Steps of 1 ms wait 0.3 ms for the caller, but 4 ms while the profiler opens or closes a window."""
    made = MadeRun(tmp_path / "one.run", ops=[FULL], ceilings=CEILINGS)
    made.steps(120, commands=[(LAUNCH, 0, 1.0)], outside_ms=lambda i: 4.0 if i % 10 in (0, 4) else 0.3)
    with made.open() as run:
        item = given(run, "inputs")
        assert item.gain.before == pytest.approx(1.3, rel=0.1), item.seen
        assert item.costs_ms == pytest.approx(0.3, rel=0.1) and item.gain.after == pytest.approx(1.0, rel=0.1)


def test_inputs_need_someone_who_makes_batches(tmp_path):
    """handheld profile gives every step the same batch."""
    with run_of(tmp_path, [FULL], [6.0], outside=5.0, settings={**SETTINGS, "repeat": {"model": "lenet5"}}) as run:
        assert said(run, "inputs") is None


def test_a_small_gain_is_not_said(tmp_path, monkeypatch):
    with run_of(tmp_path, [FULL], [6.0], outside=5.0) as run:
        item = given(run, "inputs")
        for after, shown in ((0.98, False), (0.96, True)):
            gain = replace(item.gain, after=after * item.gain.before)
            monkeypatch.setattr("handheld.analyse.advise.RULES", {"inputs": lambda run: replace(item, gain=gain)})  # noqa: B023
            assert bool(advice(run)) == shown


def heated(tmp_path: Path, falls: bool) -> Run:
    made = MadeRun(tmp_path / "one.run", ops=[FULL], ceilings=CEILINGS)
    made.steps(400, commands=[(LAUNCH, 0, 6.0)], slower=lambda i: 1.5 if falls and i >= 200 else 1.0)
    clock = lambda t: [1.2e9 if falls and t > 1.21 else 2.0e9]  # noqa: E731
    made.source("gpu-clock", [Channel("core", "frequency")], 50, clock)
    assert made.now > START
    return made.open()


def test_heat(tmp_path):
    with heated(tmp_path, falls=True) as run:
        item = given(run, "heat")
        assert item.costs_ms == pytest.approx(1.5, rel=0.15) and item.gain.after == pytest.approx(6, rel=0.05)
        assert item.why_not


def test_no_heat(tmp_path):
    with heated(tmp_path, falls=False) as run:
        assert said(run, "heat") is None


def test_processor(tmp_path):
    with efficient(tmp_path, devices=[{"device": "opencl:fast", "name": "Fast", "ceilings": FASTER}]) as run:
        item = given(run, "processor")
        assert item.to is not None and item.to.on == "opencl:fast" and item.gain.factor > 2
        assert item.gain.low < item.gain.after < item.gain.high, "ceilings alone are a rough guess"


def test_no_processor(tmp_path):
    with efficient(tmp_path, devices=[{"device": "opencl:same", "name": "Same", "ceilings": CEILINGS}]) as run:
        assert said(run, "processor") is None


def powered(tmp_path: Path, idle: float, busy: float) -> Run:
    made = MadeRun(
        tmp_path / "one.run",
        ops=[FULL, UPDATE],
        ceilings=CEILINGS,
        caps={"name": "made up", "kind": "cpu", "global_mem_bytes": 1 << 30},
        idle_ns=[START - 1_500_000_000, START - 100_000_000],
    )
    made.steps(300, commands=[(LAUNCH, 0, 6.0), (LAUNCH, 1, 6.0)])
    made.source("meter", [Channel("board", "power")], 20, lambda t: [busy if t >= 0 else idle])
    return made.open()


def test_joules(tmp_path):
    with powered(tmp_path, idle=6.0, busy=10.0) as run:
        item = given(run, "joules")
        assert item.gain.quantity == "J per sample" and item.gain.before == pytest.approx(10 * 0.012 / 8, rel=0.05)
        assert item.gain.factor > 1.1


def test_no_joules(tmp_path):
    with powered(tmp_path, idle=0.5, busy=10.0) as run:
        assert said(run, "joules") is None


def test_chains(tmp_path):
    links = [[0, 1, 2 * 10**7, 5 * 10**7, 5 * 10**7]]
    with run_of(tmp_path, [MOVING, MOVING], [6.0, 6.0], chains=links) as run:
        item = given(run, "chains")
        assert item.costs_ms == pytest.approx(2 * 0.4 * 6, rel=0.02) and item.to is None and item.why_not


def test_no_chains(tmp_path):
    """The ops that pass the tensor on are limited by arithmetic."""
    links = [[0, 1, 10**6, 10**6, 10**6]]
    with efficient(tmp_path, chains=links) as run:
        assert said(run, "chains") is None


def test_freeze(tmp_path):
    """The first layer's backward pass takes a third of the step; the second layer stays."""
    ops = [{**FULL, "path": "net.a"}, {**FULL, "path": "net.b"}, {**BACK, "path": "net.b"}, {**BACK, "path": "net.a"}]
    with run_of(tmp_path, ops, [3.0, 3.1, 3.0, 4.5]) as run:
        item = given(run, "freeze")
        assert item.evidence["layers"] == ["net.a"] and item.gain.after == pytest.approx(13.6 - 4.5, rel=0.01)
        assert advice(run)[-1].rule == "freeze", "it changes what is trained"


def test_no_freeze(tmp_path):
    """Only the last layer is trained."""
    ops = [{**FULL, "path": "net.a"}, {**FULL, "path": "net.b"}, {**BACK, "path": "net.b"}]
    with run_of(tmp_path, ops, [3.0, 3.1, 5.0]) as run:
        assert said(run, "freeze") is None


def test_no_freeze_before_a_layer_that_needs_the_gradient(tmp_path):
    """The last backward op belongs to an embedding that the last layer uses too, so its gradient must pass."""
    ops = [
        {**FULL, "path": "embed"},
        {**FULL, "path": "net.a"},
        {**FULL, "path": "embed"},
        {**BACK, "path": "net.a"},
        {**BACK, "path": "embed"},
    ]
    with run_of(tmp_path, ops, [0.1, 2.0, 3.0, 6.0, 0.1]) as run:
        assert said(run, "freeze") is None


def test_the_best_comes_first(tmp_path):
    facts = {"records": [], "variants": 1, "without": [0], "gains": GAINS}
    fast = [{"device": "opencl:fast", "name": "Fast", "ceilings": FASTER}]
    with run_of(tmp_path, [FULL, BACK], [6.0, 6.0], tuning=facts, devices=fast) as run:
        items = advice(run)
        assert [item.rule for item in items][:2] == ["processor", "tune"]
        assert items[0].to_json()["gain"]["quantity"] == "ms per step"


def test_a_run_without_anything_gets_no_advice(tmp_path):
    made = MadeRun(tmp_path / "one.run")
    made.steps(2)
    with made.open() as run:
        assert advice(run) == []


def test_every_rule_has_both_cases():
    names = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    for rule in RULES:
        assert any(name == rule or name.startswith(f"{rule}_") for name in names), rule
        assert f"no_{rule}" in names, rule

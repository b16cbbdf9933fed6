"""Comparisons of runs: what is noise, what is found, what aligns."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

import handheld
from handheld.analyse import judge
from handheld.analyse.align import align
from handheld.analyse.compare import BATCHES, FASTER, FEW, SAME, SHORT, SLOWER, Pair, compare
from handheld.errors import RunFileError
from handheld.sensors.base import Channel
from handheld.store.commands import LAUNCH
from handheld.store.rows import OpRow
from helpers.noisy_runs import network, noisy_run
from helpers.run_files import MadeRun, rising

SEEDS = 20


def pair_of(*paths) -> Pair:
    runs = [handheld.open_run(path) for path in paths]
    try:
        return compare(runs).pairs[0]
    finally:
        for run in runs:
            run.close()


def named(pair: Pair) -> list[str]:
    """Everything that was reported as slower or faster."""
    rows = [row.title for row in pair.ops if row.differs] + [row.path for row in pair.modules if row.differs]
    return rows + [name for name, whole in (("step", pair.step), ("device", pair.device)) if whole and whole.differs]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    return [noisy_run(folder / f"{seed}.run", seed) for seed in range(SEEDS + 1)]


def test_two_runs_of_the_same_step_find_nothing_in_19_of_20_tries(plain):
    findings = [named(pair_of(plain[n], plain[n + 1])) for n in range(SEEDS)]
    assert sum(map(bool, findings)) <= SEEDS // 20, findings


def test_an_op_slowed_by_a_tenth_is_found_and_no_other(plain, tmp_path):
    slowed, found, others = 6, 0, 0
    for n in range(SEEDS):
        pair = pair_of(plain[n], noisy_run(tmp_path / f"{n}.run", 1000 + n, slower={slowed: 1.1}))
        differ = {row.id_a: row for row in pair.ops if row.differs}
        found += slowed in differ and differ[slowed].verdict == SLOWER
        others += bool(set(differ) - {slowed})
        row = next(row for row in pair.ops if row.id_a == slowed)
        assert row.low < row.beyond < row.high and row.beyond == pytest.approx(1.1, abs=0.06)
    assert found >= SEEDS - SEEDS // 20
    assert others <= SEEDS // 20


def test_a_faster_op_is_faster_and_the_order_of_runs_counts(plain, tmp_path):
    other = noisy_run(tmp_path / "b.run", 77, slower={4: 0.7})
    assert {row.id_a: row.verdict for row in pair_of(plain[0], other).ops if row.differs} == {4: FASTER}
    assert {row.id_a: row.verdict for row in pair_of(other, plain[0]).ops if row.differs} == {4: SLOWER}


def test_a_slower_whole_run_is_one_finding_or_none_of_the_ops(plain, tmp_path):
    """A few percent in common are noise of the run; its ops are not reported one by one."""
    pair = pair_of(plain[0], noisy_run(tmp_path / "b.run", 78, whole=1.04))
    assert pair.common == pytest.approx(1.04, abs=0.05) and not any(row.differs for row in pair.ops)


def test_everything_twice_as_slow_is_a_slower_step_with_slower_ops(plain, tmp_path):
    pair = pair_of(plain[0], noisy_run(tmp_path / "b.run", 79, whole=2.0))
    assert pair.step.verdict == pair.device.verdict == SLOWER and pair.common == 1.0
    judged = [row for row in pair.ops if row.verdict != SHORT]
    assert judged and all(row.verdict == SLOWER and row.beyond == pytest.approx(row.ratio, rel=1e-4) for row in judged)
    assert pair.slowdowns(0.05)[0][1] > 1.8 and not pair.slowdowns(5.0)


def test_a_busy_machine_does_not_make_a_slower_step(plain, tmp_path):
    busy = {"during": {"cores": 2.4, "count": 4, "seconds": 5.0}, "before": None}
    calm = {"during": {"cores": 0.0, "count": 4, "seconds": 5.0}, "before": None}
    a = noisy_run(tmp_path / "a.run", 80, others=calm)
    pair = pair_of(a, noisy_run(tmp_path / "b.run", 81, whole=1.6, others=busy))
    assert pair.step.verdict == pair.device.verdict == SAME and not named(pair)
    assert any("b: other processes held 60%" in text for text in pair.warnings)


def test_short_ops_are_not_judged(plain, tmp_path):
    pair = pair_of(plain[0], noisy_run(tmp_path / "b.run", 82, slower={len(network()) - 1: 3.0}))
    row = next(row for row in pair.ops if row.path == "loss")
    assert row.verdict == SHORT and row.p is None and row.ratio == pytest.approx(3.0, rel=0.2)


def test_too_few_windows(plain, tmp_path):
    pair = pair_of(plain[0], noisy_run(tmp_path / "b.run", 83, windows=2, slower={0: 5.0}))
    assert {row.verdict for row in pair.ops} == {FEW, SHORT} and not named(pair)
    assert pair.few == "33 ops were not judged: b.run has 2 windows, 3 are needed. Try: handheld profile --steps 200"
    longer = noisy_run(tmp_path / "c.run", 84, windows=1, between=400)
    few = pair_of(tmp_path / "b.run", longer).few
    assert "b.run has 2 windows and c.run has 1 window, 3 are needed" in few and few.endswith("--steps 1700")
    assert pair_of(plain[0], plain[1]).few == ""


def test_runs_with_different_batches_are_compared_per_sample(plain, tmp_path):
    """A batch four times as large whose step takes three times as long is faster, and a fourth of it slower."""
    larger = noisy_run(tmp_path / "b.run", 86, whole=3.0, batch=32)
    pair = pair_of(plain[0], larger)
    assert pair.per_sample and (pair.batch_a, pair.batch_b) == (8, 32)
    assert pair.step.ratio == pytest.approx(3.0, rel=0.15) and pair.step.verdict == BATCHES
    assert pair.sample.ratio == pytest.approx(0.75, rel=0.15) and pair.sample.verdict == pair.device.verdict == FASTER
    assert pair.sample.b_ms == pytest.approx(pair.step.b_ms / 32)
    assert {row.verdict for row in pair.ops} == {FASTER, SHORT} and not pair.slowdowns(0.05)
    slow = pair_of(larger, plain[0]).slowdowns(0.05)
    assert "time per sample" in dict(slow) and all(name.endswith("per sample") for name, _ in slow)
    alike = pair_of(plain[0], noisy_run(tmp_path / "c.run", 87, whole=4.0, batch=32))
    assert not alike.slowdowns() and alike.sample.verdict == SAME


def test_joules_of_different_batches_are_judged_per_sample(tmp_path):
    paths = []
    for n, batch in enumerate((8, 16)):
        made = MadeRun(tmp_path / f"{n}.run")
        made.steps(300, slower=lambda i, n=n: 1.0 + n, batch=batch)
        counter = rising(lambda s: 20.0)
        made.source("rapl", [Channel("package", "energy", counter=True)], 10, lambda s, c=counter: [c(s)])
        made.open().close()
        paths.append(tmp_path / f"{n}.run")
    step, sample = pair_of(*paths).energy
    assert step.name.endswith("per step") and step.verdict == "not judged" and step.ratio == pytest.approx(2, rel=0.02)
    assert sample.name.endswith("per sample") and sample.verdict == "same"
    assert sample.ratio == pytest.approx(1, rel=0.02)


def test_ops_without_a_partner_are_listed(plain, tmp_path):
    """One op is renamed, one is fused away, the others still align."""
    ops = network()
    ops[0] = ("stem", *ops[0][1:])
    del ops[5]
    pair = pair_of(plain[0], noisy_run(tmp_path / "b.run", 84, ops=ops))
    assert [op.title for op in pair.only_a] == ["layers.0 conv", "layers.1 map"]
    assert [op.title for op in pair.only_b] == ["stem conv"]
    assert len(pair.ops) == len(network()) - 2 and not [row for row in pair.ops if row.differs]
    assert {module.path: module.complete for module in pair.modules}["layers.0"] is False
    assert next(op for op in pair.only_b).ms == pytest.approx(0.3, rel=0.2)


def test_a_module_is_the_sum_of_its_own_ops_and_of_the_modules_inside_it(tmp_path):
    def op(path: str, ms: float) -> tuple[str, str, str, float]:
        return (path, "conv", "forward", ms)

    before = [op("net.a.0", 1.0), op("net.a.1", 2.0), op("net.b.only", 4.0), op("net.b", 0.5), op("", 1.0)]
    after = [*before, op("net.a.2", 3.0)]
    modules = {
        row.path: row for row in pair_of(made(tmp_path / "a.run", before), made(tmp_path / "b.run", after)).modules
    }
    assert set(modules) == {"net", "net.a", "net.a.0", "net.a.1", "net.b", "net.b.only", "(model)"}
    parts = {"net.a": ("net.a.0", "net.a.1"), "net": ("net.a", "net.b")}
    for parent, children in parts.items():
        assert modules[parent].a_ms == pytest.approx(sum(modules[child].a_ms for child in children))
    assert modules["net.b"].a_ms == pytest.approx(4.5) and modules["net.b"].complete
    assert modules["net.a"].b_ms == pytest.approx(6.0), "with the op that only b has"
    assert not modules["net.a"].complete and not modules["net"].complete and modules["net.a.0"].complete


def test_a_module_that_holds_only_one_other_is_left_out(tmp_path):
    paths = [made(tmp_path / f"{n}.run", [("net.body.conv", "conv", "forward", 1.0)]) for n in range(2)]
    assert [row.path for row in pair_of(*paths).modules] == ["net.body.conv"]


def made(path, ops):
    """A run whose ops take the same time in every step."""
    run = MadeRun(path, ops=[{"path": where, "op": op, "phase": phase} for where, op, phase, _ in ops])
    run.steps(60, commands=[(LAUNCH, i, ms) for i, (*_, ms) in enumerate(ops)])
    run.open().close()
    return path


def test_different_models_are_compared_as_far_as_they_align(plain, tmp_path):
    ops = [
        ("encoder.0", "matmul", "forward", 1.0),
        ("encoder.0", "matmul", "backward", 2.0),
        ("", "map", "update", 0.2),
    ]
    pair = pair_of(plain[0], noisy_run(tmp_path / "b.run", 85, ops=ops, settings={"what": "other"}))
    assert [row.title for row in pair.ops] == ["(model) map"]
    assert len(pair.only_a) == len(network()) - 1 and len(pair.only_b) == 2
    assert "what: net / other" in pair.differences


def test_a_run_without_op_times_or_steps(plain, tmp_path):
    made = MadeRun(tmp_path / "empty.run")
    made.open().close()
    pair = pair_of(plain[0], tmp_path / "empty.run")
    assert pair.step is None and pair.device is None and not pair.ops
    assert "b: the run has no steps" in pair.warnings


def test_memory_and_energy(tmp_path):
    paths = []
    for name, watts, peak in (("a", 20.0, 100), ("b", 30.0, 150)):
        made = MadeRun(tmp_path / f"{name}.run", **{"memory.train": {"peak_op": 0, "peak_bytes": peak, "owners": []}})
        made.steps(300)
        counter = rising(lambda s, watts=watts: watts)
        made.source(
            "rapl", [Channel("package", "energy", counter=True, covers=("cpu",))], 10, lambda s, c=counter: [c(s)]
        )
        made.open().close()
        paths.append(tmp_path / f"{name}.run")
    pair = pair_of(*paths)
    assert [(row.name, row.verdict, row.ratio) for row in pair.memory] == [("alive at the peak", "more", 1.5)]
    (joules,) = pair.energy
    assert joules.verdict == "more" and joules.ratio == pytest.approx(1.5, rel=0.05) and joules.low > 1.2
    assert pair_of(paths[0], paths[0]).energy[0].verdict == "same"


@pytest.mark.parametrize(("windows", "between"), [(2, 3), (5, 9), (30, 20)])
def test_the_step_is_that_of_the_run_itself(tmp_path, windows, between):
    """`show` and `compare` report one time of a step, for few steps and for many, and its interval is around it."""
    paths = [noisy_run(tmp_path / f"{n}.run", 60 + n, windows=windows, between=between) for n in range(2)]
    step = pair_of(*paths).step
    with handheld.open_run(paths[0]) as a, handheld.open_run(paths[1]) as b:
        assert (step.a_ms, step.b_ms) == (a.summary().step_ms, b.summary().step_ms)
    assert step.ratio == step.beyond == pytest.approx(step.b_ms / step.a_ms)
    assert step.low is None or step.low < step.ratio < step.high


def test_joules_per_step_are_those_of_the_run_itself(tmp_path):
    """Also if the power changes during the run, so that its parts differ."""
    paths = []
    for n in range(2):
        made = MadeRun(tmp_path / f"{n}.run")
        made.steps(310, slower=lambda i, n=n: 1 + 0.004 * i * (n + 1))
        counter = rising(lambda s: 20.0 + 10 * s)
        made.source("rapl", [Channel("package", "energy", counter=True)], 10, lambda s, c=counter: [c(s)])
        made.open().close()
        paths.append(tmp_path / f"{n}.run")
    (joules,) = pair_of(*paths).energy
    with handheld.open_run(paths[0]) as a, handheld.open_run(paths[1]) as b:
        assert (joules.a, joules.b) == (a.energy()[0].joules_step, b.energy()[0].joules_step)
    assert joules.low < joules.ratio < joules.high


def test_joules_of_ops_differ_if_their_intervals_do_not_overlap(tmp_path):
    """Windows of repeated work give the ops joules; in the second run an op takes twice the power."""
    paths = []
    for name, watts in (("a", 10.0), ("b", 20.0)):
        made = MadeRun(tmp_path / f"{name}.run")
        made.steps(60)
        for n in range(6):
            made.window("slope", "", [], 0, 20, 0.4 + 0.001 * n)
            made.window("alone", "sig0", [0], 1, 40, 0.4 + 0.001 * n)
        counter = rising(lambda s, watts=watts: watts)
        made.source(
            "rapl", [Channel("package", "energy", counter=True, covers=("cpu",))], 5, lambda s, c=counter: [c(s)]
        )
        made.open().close()
        paths.append(tmp_path / f"{name}.run")
    (changed,) = pair_of(*paths).joules
    assert (changed.id_a, changed.verdict, changed.source_a) == (0, "more", "alone")
    assert changed.ratio == pytest.approx(2.0, rel=0.05)
    assert [row.verdict for row in pair_of(paths[0], paths[0]).joules] == ["same"]


def test_each_run_is_compared_with_the_first_on_its_device(plain, tmp_path):
    gpu = [noisy_run(tmp_path / f"{n}.run", 90 + n, device="opencl:1", caps={"name": "gpu"}) for n in range(2)]
    with contextlib.ExitStack() as stack:
        a, b, c, d = (stack.enter_context(handheld.open_run(p)) for p in (plain[0], gpu[0], plain[1], gpu[1]))
        found = [(pair.a, pair.b) for pair in compare([a, b, c, d]).pairs]
        assert "device: opencl / opencl:1" in compare([a, b]).pairs[0].differences
        with pytest.raises(RunFileError, match="needs two runs, not 1"):
            compare([a])
    assert found == [(str(plain[0]), str(gpu[0])), (str(plain[0]), str(plain[1])), (str(gpu[0]), str(gpu[1]))]


def row(number: int, path: str, op: str, signature: str = "s", graph: str = "train") -> OpRow:
    return OpRow(number, graph, number, op, "aten.op", "forward", path, signature, "", 1, 0, 0)


def test_equal_ops_align_in_their_order_and_by_shape_first():
    a = [row(0, "m", "map", "x"), row(1, "m", "map", "y"), row(2, "m", "conv")]
    b = [row(0, "m", "map", "y"), row(1, "m", "map", "z"), row(2, "m", "conv", graph="train@16")]
    found = align(a, b)
    assert [(x.id, y.id) for x, y in found.pairs] == [(0, 1), (1, 0), (2, 2)]
    assert found.only_a == found.only_b == ()


def test_false_findings_are_controlled_over_many_figures():
    """With 200 figures and no difference, something is reported in about one comparison of twenty at most."""
    rng, false = np.random.default_rng(5), 0
    for _ in range(40):
        draw = [np.exp(rng.normal(0, 0.05, (2, 30))) for _ in range(200)]
        false += any(one.differs for one in judge.many([judge.Figure(*pair) for pair in draw])[1] if one)
    assert false <= 2


def test_p_values_agree_with_students_t():
    for score, freedom, exact in ((2.0, 4, 0.1161), (2.228, 10, 0.05), (3.0, 22, 0.00662)):
        assert judge._p(score, freedom) == pytest.approx(exact, rel=0.02)
    assert judge._quantile(10) == pytest.approx(2.228, rel=0.01)

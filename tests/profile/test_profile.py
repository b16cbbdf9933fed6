"""Profiles of real steps: what is in the file is what was done."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyopencl as cl
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import handheld
from handheld import suite
from handheld.errors import BatchError, HandheldError
from handheld.graph.dtypes import DTYPES
from handheld.graph.graph import Slot
from handheld.profile.estimate import Estimate
from handheld.profile.profiler import Profiler
from handheld.profile.windows import WINDOW, Windows
from handheld.sensors.cpu import CpuBusy
from handheld.sensors.memory import ProcessUse
from handheld.store.commands import COPY, DOWNLOAD, LAUNCH, UPLOAD
from handheld.store.rows import EnergyWindowRow
from helpers.meters import Broken, Meter
from helpers.paths import clean_path

BATCH = 8


def make_step() -> handheld.Step:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * 8 * 8, 10),
    )
    batch = (torch.randn(BATCH, 3, 16, 16), torch.randint(0, 10, (BATCH,)))
    return handheld.capture(model, F.cross_entropy, torch.optim.Adam(model.parameters(), lr=1e-3), batch)


def slot_bytes(slot: Slot) -> int:
    return math.prod(slot.shape) * DTYPES[slot.dtype].nbytes


@pytest.fixture(scope="module")
def step() -> handheld.Step:
    return make_step()


@pytest.fixture(scope="module")
def plan(step):
    return step.plan("opencl", graphs=["train"])


@pytest.fixture(scope="module")
def batch() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return (rng.standard_normal((BATCH, 3, 16, 16)).astype(np.float32), rng.integers(0, 10, BATCH))


@pytest.fixture(scope="module")
def run(plan, batch, tmp_path_factory):
    """One profile that several tests look at."""
    path = tmp_path_factory.mktemp("profile") / "one.run"
    with plan.profile(batch, path, steps=60, idle_s=0.3, what="test") as run:
        yield run


# ── what is in the file ───────────────────────────────────────────────────────────────────────


def test_it_says_what_it_was_measured_on(run, plan):
    meta = run.meta
    assert meta["status"] == "complete" and meta["device"] == plan.device
    assert meta["caps"]["name"] == plan.caps.name and meta["machine"]["cores"] == os.cpu_count()
    assert meta["versions"]["handheld"] == handheld.__version__ and "numpy" in meta["versions"]
    assert meta["settings"] == {"steps": 60, "graphs": ["train"], "what": "test"}
    assert set(meta["code"]) in ({"commit", "changed"}, set())
    assert meta["sensors_absent"] and all(meta["sensors_absent"].values()), "each with its reason"
    assert meta["sampler"]["sources"]["process"]["readings"] >= 2
    assert meta["idle_ns"][1] - meta["idle_ns"][0] >= 0.3e9


def test_every_step_is_there_in_order(run):
    steps = run.steps()
    assert [s.id for s in steps] == list(range(60))
    assert all(s.batch == BATCH and s.graph == "train" for s in steps)
    times = [t for s in steps for t in (s.begin_ns, s.end_ns)]
    assert times == sorted(times)
    recorded = [s.id for s in steps if s.recorded]
    assert recorded[:WINDOW] == [2, 3, 4, 5], "after two steps of warm-up, at once"
    assert len(recorded) % WINDOW == 0


def test_every_op_has_its_time_and_place(run, plan):
    made = plan.graphs["train"]
    rows = sorted(run.ops(), key=lambda row: row.id)
    assert len(rows) == len(made.graph.nodes)
    for row, node, lowered in zip(rows, made.graph.nodes, made.lowered, strict=True):
        assert (row.op, row.phase, row.path) == (node.op, node.origin.phase, node.origin.path)
        assert row.launches == len(lowered.launches)
        assert row.ms > 0 or not row.launches
        assert row.bytes > 0
    assert sum(r.share for r in rows) == pytest.approx(1.0)
    assert {r.phase for r in run.phases()} == {"forward", "backward", "update"}
    conv = next(r for r in rows if r.op == "conv")
    assert conv.flops >= 2 * BATCH * 8 * 16 * 16 * 3 * 9


def test_the_commands_are_those_of_the_plan(run, plan):
    launches = sum(len(n.launches) for n in plan.graphs["train"].lowered)
    for one in run.timed:
        kinds = one.commands["kind"].tolist()
        assert kinds.count(LAUNCH) == launches and kinds.count(UPLOAD) == 2
        assert kinds.count(DOWNLOAD) == 1 and kinds.count(COPY) == len(plan.graphs["train"].copies)
        c = one.commands
        assert (c["ended"] >= c["started"]).all() and (c["submitted"] >= c["queued"]).all()
        assert (c["host_end"] >= c["host_begin"]).all()


def test_parts_add_up(run):
    """On the device's own timeline, to the nanosecond; and to the steps that the host saw."""
    assert run.periods
    for period in run.periods:
        assert sum(dataclasses.astuple(period.parts)) == period.length
        assert period.parts.ops == sum(period.ops.values()) > 0
    parts = run.parts()
    whole = sum(parts.by_name().values())
    assert whole == pytest.approx(parts.ms)
    # between one step's first command and a later one's, by the device and by the host
    for window, group in itertools.groupby(run.timed, lambda one: one.window):
        group = list(group)
        device = group[-1].commands["started"][0] - group[0].commands["started"][0]
        assert device == sum(p.length for p in run.periods if p.step in [g.step for g in group]) + (
            group[1].commands["started"][0] - group[0].commands["started"][0]
        ), window


def test_the_clocks_are_tied(run):
    """A command starts after the host has asked for it, but for the error that is stated."""
    error = run.clock.error_ns
    assert 0 < error < 5_000_000
    for one in run.timed:
        assert (one.commands["started"] - one.commands["host_begin"] >= -3 * error).all()


def test_transfers_and_launches(run):
    rows = run.transfers()
    assert {r.kind for r in rows} >= {"upload", "download"}
    upload = next(r for r in rows if r.kind == "upload")
    assert upload.bytes == BATCH * 3 * 16 * 16 * 4 and upload.ms > 0
    assert run.launches().enqueue_us > 0
    host = run.host()
    assert host.call_ms == pytest.approx(host.enqueue_ms + host.waiting_ms + host.other_ms)


def test_samples_lie_around_the_steps(run):
    begin, end = run.span()
    for one in run.channels:
        assert (np.diff(one.t_ns) > 0).all() and one.t_ns[0] < begin
    cpu = [c for c in run.channels if c.source == "cpu"]
    assert len(cpu) == os.cpu_count() and cpu[0].t_ns[-1] >= end - 100_000_000


def test_the_overhead_is_stated(run):
    overhead = run.summary().overhead
    assert 0 < overhead.recording_share < 1
    assert 0 < overhead.sampler.cpu_share < 2
    assert set(overhead.sampler.sources) >= {"cpu", "process", "memory"}


def test_state_and_a_running_trainer_are_left_as_they_were(plan, batch, tmp_path):
    with plan.start() as trainer:
        trainer.step(*batch)
        before = trainer.state()
        plan.profile(batch, tmp_path / "one.run", steps=5, sensors=False).close()
        assert not trainer.closed
        for name, value in trainer.state().items():
            np.testing.assert_array_equal(value, before[name])


# ── memory ────────────────────────────────────────────────────────────────────────────────────


def test_seconds_are_counted_from_the_end_of_the_first_step(plan, batch, tmp_path):
    with plan.profile(batch, tmp_path / "a.run", steps=1, seconds=0.0, sensors=False) as run:
        assert len(run.steps()) == 3, "the host is two steps ahead"
        assert math.isfinite(run.meta["loss"])
    with plan.profile(batch, tmp_path / "b.run", steps=9, seconds=0.0, sensors=False) as run:
        assert len(run.steps()) == 9


def test_what_was_planned_is_what_was_allocated(run, plan):
    found = run.memory_summary()
    assert found.allocated_bytes == found.plan_bytes == plan.bytes
    assert 0 < found.peak_bytes <= found.allocated_bytes
    assert found.process_growth_bytes is not None
    assert sum(e.bytes for e in found.explained) == pytest.approx(found.process_growth_bytes, abs=1)


def test_bytes_alive_by_category(run, plan, step):
    rows = run.memory()
    assert len(rows) == len(plan.graphs["train"].graph.nodes)
    roles = {"parameter": 0, "optimizer": 0}
    for name, slot in step.slots.items():
        if slot.role in roles and name in plan.state:
            roles[slot.role] += slot_bytes(slot)
    for row in rows:
        assert row.bytes == sum(row.live.values())
        assert row.live["parameter"] == roles["parameter"]
        assert row.live["optimizer state"] == roles["optimizer"]
    assert max(r.bytes for r in rows) == run.memory_summary().peak_bytes
    assert rows[run.memory_summary().peak_op].bytes == run.memory_summary().peak_bytes


def test_the_count_is_the_same_without_places(tmp_path):
    """A chain of products, no state changes: counted from the graph alone."""
    model = nn.Sequential(*(nn.Linear(16, 16, bias=False) for _ in range(4)))
    step = handheld.Capture(model).evaluate(lambda b: (model(*b).sum(), None), (torch.randn(4, 16),), "look").step()
    plan = step.plan("opencl", isolate=True)
    graph = plan.graphs["look"].graph
    last = {view.tensor: i for i, node in enumerate(graph.nodes) for view in node.inputs}
    last |= {shown.view.tensor: len(graph.nodes) for shown in graph.outputs}
    first = {t: i for i, node in enumerate(graph.nodes) for t in node.outputs}
    always = sum(slot_bytes(s) for n, s in step.slots.items() if n in plan.state)
    inputs = sum(graph.tensors[given.tensor].nbytes for given in graph.inputs)
    counts = []
    for i in range(len(graph.nodes)):
        alive = [t for t, born in first.items() if born <= i <= last.get(t, born)]
        work = sum(p.nbytes for (node, _), p in plan.graphs["look"].workspace.items() if node == i)
        counts.append(always + inputs + work + sum(graph.tensors[t].nbytes for t in alive))
    batch = (np.zeros((4, 16), np.float32),)
    with plan.profile(batch, tmp_path / "one.run", steps=3, graph="look", sensors=False) as run:
        assert [row.bytes for row in run.memory()] == counts
        assert run.memory_summary().peak_bytes == max(counts)


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
    with pytest.raises(HandheldError, match="a schedule has"):
        Windows(**bad)


@pytest.mark.parametrize("reading_ns", [5_000_000, 0])
@pytest.mark.parametrize("longer_ns", [0, 2_000_000])  # than others, a recorded step
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
    unseen = WINDOW * longer_ns  # of the first: what steps take was not known
    assert windows.count >= 3 and windows.cost_ns == spent - unseen
    assert spent <= 0.02 * now[0] + unseen


def test_one_trainer_one_profiler(plan, batch, tmp_path):
    with plan.start() as trainer, Profiler(tmp_path / "one.run") as profiler:
        profiler.attach(trainer)
        with Profiler(tmp_path / "two.run") as other, pytest.raises(HandheldError, match="being profiled already"):
            other.attach(trainer)
        trainer.step(*batch)
        with plan.start() as second, pytest.raises(HandheldError, match="of one trainer"):
            profiler.attach(second)  # which has closed the first
    assert trainer.observer is None


# ── things that go wrong ──────────────────────────────────────────────────────────────────────


def test_a_device_without_profiling_queues(plan, batch, tmp_path, monkeypatch):
    """Whole steps are timed, and the run says why there is no more."""
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
    with pytest.raises(HandheldError, match="the data ended before the profile did"):
        plan.profile(iter([batch] * 3), tmp_path / "iterator.run", steps=7, sensors=False)


def test_bad_requests_are_refused_before_there_is_a_file(plan, batch, tmp_path):
    path = tmp_path / "one.run"
    for options, words in (
        ({"graph": "tain"}, "no graph 'tain'; it has train"),
        ({"steps": 0}, "measures nothing"),
        ({"sensors": (Broken,)}, "in the other room"),
        ({"sensors": False, "energy": True}, "no sensor of power is here"),
    ):
        with pytest.raises(HandheldError, match=words):
            plan.profile(batch, path, **options)
    with pytest.raises(BatchError, match="takes 2 tensors"):
        plan.profile(batch[:1], path)
    assert not path.exists()


# ── other backends, several graphs ────────────────────────────────────────────────────────────


def test_torch_cpu(step, batch, tmp_path):
    plan = step.plan("reference:cpu", graphs=["train"])
    with plan.profile(batch, tmp_path / "one.run", steps=20, sensors=False) as run:
        assert run.meta["device"] == "reference:cpu" and run.periods
        assert all(row.ms > 0 for row in run.ops())
        for period in run.periods:
            assert sum(dataclasses.astuple(period.parts)) == period.length
        assert run.parts().unexplained == pytest.approx(0, abs=1e-6)
        memory = run.memory_summary()
        assert memory.allocated_bytes is None, "PyTorch allocates as it sees fit"


def test_null_has_no_times_and_says_so(step, batch, tmp_path):
    plan = step.plan("null", graphs=["train"])
    with plan.profile(batch, tmp_path / "one.run", steps=10, sensors=False) as run:
        assert len(run.steps()) == 10 and not run.timed
        assert "computes nothing" in run.notes()[0].text


@pytest.fixture(scope="module")
def gan():
    workload = suite.get("dcgan", width=4)
    step = workload.step(2)
    real, noise = (t.numpy() for t in workload.batch(2))
    return step.plan("opencl"), {"d": (real, noise), "g": (noise,)}


def test_two_graphs_in_turn(gan, tmp_path):
    plan, batches = gan
    with plan.profile(batches, tmp_path / "one.run", steps=12, sensors=False) as run:
        assert [s.graph for s in run.steps()] == ["d", "g"] * 12
        assert set(run.graphs) == {"d", "g"}
        for graph in ("d", "g"):
            nodes = plan.graphs[graph].graph.nodes
            rows = sorted((r for r in run.ops() if r.graph == graph), key=lambda r: r.id)
            assert [r.op for r in rows] == [n.op for n in nodes]
            assert all(r.ms > 0 for r in rows if r.launches)
            assert run.parts(graph).backward > 0
        assert len({r.id for r in run.ops()}) == len(run.ops())


def test_each_graph_needs_its_batch(gan, tmp_path):
    plan, batches = gan
    with pytest.raises(HandheldError, match="'g' has none"):
        plan.profile({"d": batches["d"]}, tmp_path / "one.run")
    with pytest.raises(HandheldError, match="one graph at a time: say which of d, g"):
        plan.profile(batches, tmp_path / "one.run", energy=True)


# ── energy ────────────────────────────────────────────────────────────────────────────────────


def test_energy_of_ops_with_a_meter(plan, batch, tmp_path):
    """A meter that counts the process's own cores: the sum over ops is what a step takes."""
    told = []
    with plan.profile(
        batch,
        tmp_path / "one.run",
        steps=30,
        idle_s=0.5,
        energy=True,
        energy_s=12,
        sensors=(Meter, ProcessUse, CpuBusy),
        progress=lambda *what: told.append(what),
    ) as run:
        rows = run.op_energy()
        assert rows and {r.method for r in rows} == {"slope", "alone"}
        covered = {op for r in rows for op in r.ops}
        assert covered == {r.id for r in run.ops() if r.launches}
        assert all(r.rail == "meter/cpu energy" and r.ticks > 0 for r in rows)
        assert all(r.low_joules <= r.joules <= r.high_joules for r in rows)
        (step,) = run.step_energy()
        # PoCL keeps the cores busy all the while: joules follow time, whatever the machine does
        assert step.joules > 0 and step.alone > 0
        windows = run.file.table(EnergyWindowRow)
        assert all(w.end_ns - w.begin_ns >= 0.5e9 and w.runs > 0 for w in windows)
        assert run.energy()[0].idle_watts < run.energy()[0].watts
        assert told[-1][0] == told[-1][1] - 1 and run.complete


def test_a_sensor_of_the_users_own_by_entry_point(plan, batch, tmp_path, monkeypatch):
    """Installed as pip leaves it behind: found, sampled by the other process, a rail of the run.

    The steps take long enough for a source that is read ten times less often than it asks for."""
    folder = tmp_path / "site" / "meters-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: meters\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(
        "[handheld.sensors]\nmeter = helpers.meters:Meter\nbroken = helpers.meters:Broken\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "site")])
    with plan.profile(batch, tmp_path / "one.run", steps=1000, idle_s=0.5) as run:
        (row,) = (row for row in run.energy() if row.rail == "meter/cpu energy")
        assert row.joules > 0 and row.ticks > 0 and row.idle_watts is not None
        assert run.meta["sensors_absent"]["broken"] == "it is in the other room"
        assert run.summary().overhead.sampler.sources["meter"].readings > 5


def test_too_little_time_for_energy(plan, batch, tmp_path):
    with pytest.raises(HandheldError, match="takes at least"):
        plan.profile(batch, tmp_path / "one.run", steps=10, idle_s=0.2, energy=True, energy_s=1, sensors=(Meter,))


def test_an_estimate_is_only_made_if_asked_for(plan, batch, tmp_path):
    with plan.profile(batch, tmp_path / "one.run", steps=20, sensors=False) as run:
        assert run.energy() == []
    with plan.profile(batch, tmp_path / "two.run", steps=20, sensors=False, estimate=Estimate(5, 1)) as run:
        (row,) = run.energy()
        assert row.estimate and 1 < row.watts <= 5


@pytest.mark.parametrize("watts", [(0, 0), (-1, 0), (5, 6), (float("nan"), 0), (1, -1)])
def test_estimates_that_make_no_sense(watts):
    with pytest.raises(HandheldError, match="an estimate needs"):
        Estimate(*watts)


# ── without PyTorch ───────────────────────────────────────────────────────────────────────────


def test_a_step_file_where_torch_is_not_installed(step, tmp_path):
    step.save(tmp_path / "mine.step")
    code = f"""
import sys
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, NoTorch())
import numpy as np, handheld
plan = handheld.load({str(tmp_path / "mine.step")!r}).plan("opencl", graphs=["train"])
batch = (np.zeros(({BATCH}, 3, 16, 16), np.float32), np.zeros({BATCH}, np.int64))
with plan.profile(batch, {str(tmp_path / "mine.run")!r}, steps=20, idle_s=0.1) as run:
    print(len(run.ops()), run.parts().ms > 0)
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(clean_path())}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    assert done.stdout.split() == [str(len(step.graphs["train"].nodes)), "True"], done.stderr


# ── killed ────────────────────────────────────────────────────────────────────────────────────


def test_kill_9_loses_a_second_at_most(tmp_path):
    """At a few moments; scripts/kill_profile.py does many."""
    script = Path(__file__).parents[2] / "scripts" / "kill_profile.py"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(clean_path())}
    done = subprocess.run(
        [sys.executable, str(script), "--times", "4", "--most", "2", "--folder", str(tmp_path), "--json"],
        capture_output=True,
        text=True,
        env=env,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(done.stdout)
    assert len(rows) == 4 and all(row["opened"] for row in rows)
    assert all(row["missing_s"] <= 1.0 for row in rows)

"""Profiles of other devices, of several graphs, of energy, without torch, and of a killed process."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from handheld import suite
from handheld.analyse.estimate import Estimate
from handheld.errors import HandheldError
from handheld.sensors.cpu import CpuBusy
from handheld.sensors.memory import ProcessUse
from handheld.store.rows import EnergyWindowRow
from helpers.meters import Meter
from helpers.paths import clean_path
from helpers.profiled import BATCH

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
    with pytest.raises(HandheldError, match=r"one graph at a time\. Try one of: d, g"):
        plan.profile(batches, tmp_path / "one.run", energy=True)


# ── energy ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def metered(plan, batch, tmp_path_factory):
    """A profile with energy windows by a meter that counts the process's cores, and what its progress told."""
    told = []
    with plan.profile(
        batch,
        tmp_path_factory.mktemp("metered") / "one.run",
        steps=30,
        idle_s=0.5,
        energy=True,
        energy_s=14,
        sensors=(Meter, ProcessUse, CpuBusy),
        progress=lambda *what: told.append(what),
    ) as run:
        yield run, told


def test_energy_of_ops_with_a_meter(metered):
    """With a meter that counts the process's cores, the sum over ops is the energy of a step."""
    run, told = metered
    rows = run.op_energy()
    assert rows and {r.method for r in rows} == {"slope", "alone"}
    covered = {op for w in run.file.table(EnergyWindowRow) for op in w.ops}
    assert covered == {r.id for r in run.ops() if r.launches}
    assert all(r.rail == "meter/cpu energy" and r.ticks > 0 for r in rows)
    assert all(r.low_joules <= r.joules <= r.high_joules for r in rows)
    (step,) = run.step_energy()
    # PoCL keeps the cores busy all the time, so joules are proportional to time on any machine.
    assert step.joules > 0 and step.alone > 0
    windows = run.file.table(EnergyWindowRow)
    assert all(w.end_ns - w.begin_ns >= 0.5e9 and w.runs > 0 for w in windows)
    assert run.energy()[0].idle_watts < run.energy()[0].watts
    assert told[-1][0] == told[-1][1] - 1 and run.complete


def test_energy_measures_the_plan_that_trains(metered, plan, run):
    """Steps, memory and ops are those of a profile without energy; the other plan is a fact beside them."""
    energetic, _ = metered
    assert len(energetic.steps()) == 30  # The steps of the windows are not part of the profile.
    assert energetic.meta["plan_bytes"] == run.meta["plan_bytes"] == plan.bytes
    assert energetic.meta["allocated_bytes"] == run.meta["allocated_bytes"]
    assert energetic.memory_summary().peak_bytes == run.memory_summary().peak_bytes
    assert energetic.parts().copy == pytest.approx(run.parts().copy, abs=0.01)
    assert [(r.id, r.signature, r.variant) for r in energetic.op_rows] == [
        (r.id, r.signature, r.variant) for r in run.op_rows
    ]
    other = energetic.meta["isolated"]
    assert other["plan_bytes"] > plan.bytes and other["graph"] == "train"
    assert {int(op) for op in other["op_ms"]} == {r.id for r in run.ops() if r.launches}
    assert all(ms > 0 for ms in other["op_ms"].values())
    windows = energetic.file.table(EnergyWindowRow, "WHERE method='step'")
    assert len(windows) >= 2 and all(not w.signature and w.runs > 1 for w in windows)


def test_a_step_too_large_for_memory_of_its_own_is_still_profiled(plan, batch, tmp_path):
    """Windows need a plan without shared memory. Where it does not fit, the rest of the profile is kept."""
    tight = dataclasses.replace(plan, caps=dataclasses.replace(plan.caps, global_mem_bytes=plan.bytes))
    with tight.profile(
        batch, tmp_path / "one.run", steps=12, idle_s=0.2, energy=True, energy_s=14, sensors=(Meter,)
    ) as run:
        assert run.complete and len(run.steps()) == 12
        assert run.op_energy() == [] and run.step_energy()[0].joules > 0
        (note,) = (n for n in run.notes() if n.kind == "no energy windows")
        assert "does not fit" in note.text and "Try: a smaller --batch" in note.text


def test_a_sensor_of_the_users_own_by_entry_point(plan, batch, tmp_path, monkeypatch):
    """A sensor that is installed as pip does it is found, sampled by the other process, and becomes a rail.

    The steps take long enough for a source that is read ten times less often than it requests.
    """
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
    """Kills at a few moments; scripts/kill_profile.py tries many."""
    script = Path(__file__).parents[2] / "scripts" / "kill_profile.py"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(clean_path())}
    done = subprocess.run(
        [sys.executable, str(script), "--times", "3", "--most", "1.5", "--folder", str(tmp_path), "--json"],
        capture_output=True,
        text=True,
        env=env,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(done.stdout)
    assert len(rows) == 3 and all(row["opened"] for row in rows)
    assert all(row["missing_s"] <= 1.0 for row in rows)

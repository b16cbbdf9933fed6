"""Profiles of real steps: the file contains exactly what happened."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os

import numpy as np
import pytest
import torch
from torch import nn

import handheld
from handheld.profile.windows import WINDOW
from handheld.store.commands import COPY, DOWNLOAD, LAUNCH, UPLOAD
from helpers.profiled import BATCH, slot_bytes

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
    """The parts add up to the nanosecond on the device's timeline, and to the steps on the host's."""
    assert run.periods
    for period in run.periods:
        assert sum(dataclasses.astuple(period.parts)) == period.length
        assert period.parts.ops == sum(period.ops.values()) > 0
    parts = run.parts()
    whole = sum(parts.by_name().values())
    assert whole == pytest.approx(parts.ms)
    # From the first command of a step to that of a later step, by the device's and by the host's clock.
    for window, group in itertools.groupby(run.timed, lambda one: one.window):
        group = list(group)
        device = group[-1].commands["started"][0] - group[0].commands["started"][0]
        assert device == sum(p.length for p in run.periods if p.step in [g.step for g in group]) + (
            group[1].commands["started"][0] - group[0].commands["started"][0]
        ), window


def test_the_clocks_are_tied(run):
    """A command starts after the host has enqueued it, within the stated error."""
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
    """A chain of products without state, counted from the graph alone."""
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

"""Problems planted in real runs are found. Margins are wide, because test machines are shared."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import handheld
from handheld.backends.opencl.submit import Enqueuer, Work
from handheld.profile.profiler import Profiler
from handheld.sensors.base import Where
from handheld.sensors.cpu import CpuClock
from handheld.store.commands import DOWNLOAD
from helpers.sensor_trees import grow, put

SECONDS = 6.0


@pytest.fixture(scope="module")
def plan():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8))
    batch = (torch.randn(64, 64), torch.randint(0, 8, (64,)))
    return handheld.capture(model, F.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.01), batch).plan(
        "opencl", graphs=["train"]
    )


BATCH = (np.zeros((64, 64), np.float32), np.zeros(64, np.int64))


def batches(events=()):
    """Batches for SECONDS, at most a thousand per second. Each event runs once when its time comes."""
    begun, left = time.monotonic(), list(events)
    while time.monotonic() - begun < SECONDS:
        while left and time.monotonic() - begun >= left[0][0]:
            left.pop(0)[1]()
        time.sleep(0.001)
        yield BATCH


def profiled(plan, path, events=(), **options):
    """Profiles a run that ends with its data."""
    with pytest.raises(handheld.HandheldError, match="the data ended"):
        plan.profile(batches(events), path, steps=10**6, idle_s=0.2, **options)
    return handheld.open_run(path)


def burn(seconds: float, spent: list[float]) -> None:
    end, begun = time.monotonic() + seconds, time.thread_time()
    data = np.zeros(200_000)
    while time.monotonic() < end:
        np.sin(data, out=data)  # This releases Python's lock, so that it really occupies a core.
    spent.append(time.thread_time() - begun)


def test_a_thread_that_burns_a_core_for_two_seconds(plan, tmp_path):
    marks: list[int] = []
    spent: list[float] = []

    def plant() -> None:
        marks.append(time.monotonic_ns())
        threading.Thread(target=burn, args=(2.0, spent)).start()

    with profiled(plan, tmp_path / "one.run", [(2.0, plant)]) as run:
        if spent[0] < 1.0:
            pytest.skip("the machine is so busy that the thread got no core to burn")
        found = [f for f in run.findings() if f.kind == "own load"]
        assert len(found) == 1, [f.text for f in run.findings()]
        begin, end = marks[0], marks[0] + 2e9
        inside = {s.id for s in run.steps() if begin < s.begin_ns and s.end_ns < end}
        share = len(inside & set(found[0]["steps"])) / len(inside)
        assert share > 0.5, "most of the steps that ran beside it"
        assert 0.5 <= found[0]["evidence"]["seconds"] <= 4


def test_another_process_that_burns_a_core(plan, tmp_path):
    marks, children = [], []
    code = "import time; end = time.time() + 2\nwhile time.time() < end: pass"

    def plant() -> None:
        marks.append(time.monotonic_ns())
        children.append(subprocess.Popen([sys.executable, "-c", code]))

    with profiled(plan, tmp_path / "one.run", [(2.0, plant)]) as run:
        children[0].wait()
        cpu = [one for one in run.channels if one.source == "cpu"]
        at = np.array([marks[0] + 0.3e9, marks[0] + 1.7e9])
        own = next(one for one in run.channels if one.rail == "process/cpu time")
        others = (
            sum(np.diff(np.interp(at, one.t_ns, one.values))[0] for one in cpu)
            - np.diff(np.interp(at, own.t_ns, own.values))[0]
        ) / 1.4
        before = np.array([marks[0] - 1.6e9, marks[0] - 0.2e9])
        usual = (
            sum(np.diff(np.interp(before, one.t_ns, one.values))[0] for one in cpu)
            - np.diff(np.interp(before, own.t_ns, own.values))[0]
        ) / 1.4
        if others - usual < 0.7:
            pytest.skip("the machine is so busy that one process more changes nothing")
        assert "other load" in {f.kind for f in run.findings()}


def test_a_throttled_clock_by_a_file_tree(plan, tmp_path):
    root = tmp_path / "root"
    grow("linux-arm", root)
    files = [f"sys/devices/system/cpu/cpu{n}/cpufreq/scaling_cur_freq" for n in (0, 1)]

    def throttle() -> None:
        for file in files:
            put(root, file, "300000\n")

    for file in files:
        put(root, file, "1800000\n")
    with profiled(plan, tmp_path / "one.run", [(3.0, throttle)], sensors=(CpuClock,), where=Where(root)) as run:
        (found,) = (f for f in run.findings() if f.kind == "clock")
        assert found.evidence["from_hz"] == 1.8e9 and found.evidence["to_hz"] == 3e8
        assert found.evidence["seconds"] == pytest.approx(3, abs=1.5)
        ids = [s.id for s in run.steps()]
        assert 0.2 < len(found.steps) / len(ids) < 0.9 and found.steps[-1] == ids[-1]


def test_a_data_loader_that_sleeps(plan, tmp_path):
    def slow():
        for n in range(120):
            if n % 3 == 0 and n > 20:
                time.sleep(0.03)
            yield BATCH

    with pytest.raises(handheld.HandheldError, match="the data ended"):
        plan.profile(slow(), tmp_path / "one.run", steps=10**6, sensors=False)
    with handheld.open_run(tmp_path / "one.run") as run:
        (found,) = (f for f in run.findings() if f.kind == "caller")
        slept = {n for n in range(120) if n % 3 == 0 and n > 20}
        assert len(slept & set(found.steps)) >= 10
        assert found.evidence["ms"] > 5 and found.ops


class ReadsBetween(Enqueuer):
    """Reads a tensor after the launches of a given number of nodes."""

    def __init__(self, middle: int) -> None:
        super().__init__()
        self.middle, self.read = middle, lambda: None

    def submit(self, queue, work, notes):
        super().submit(queue, Work(None, tuple(one for one in work.launches if one.node < self.middle)), notes)
        self.read()
        rest = tuple(one for one in work.launches if one.node >= self.middle)
        return super().submit(queue, Work(None, rest), notes)


def test_a_readback_in_the_middle_of_a_step(plan, tmp_path):
    """A step reads a tensor between two of its launches."""
    middle = len(plan.graphs["train"].graph.nodes) // 2
    tensor = plan.graphs["train"].graph.nodes[middle - 1].outputs[0]
    forced = ReadsBetween(middle)
    with plan.start(submitter=forced) as trainer:
        forced.read = partial(trainer.session.read_tensor, "train", tensor)
        with Profiler(tmp_path / "one.run") as profiler:
            profiler.attach(trainer)
            for _ in range(20):
                trainer.step(*BATCH)
    with handheld.open_run(tmp_path / "one.run") as run:
        (found,) = (f for f in run.findings() if f.kind == "transfer")
        assert "download" in found.text
        assert found.steps == [one.step for one in run.timed]
        before = max(i for i in range(middle) if plan.graphs["train"].lowered[i].launches)
        assert found.ops[0] == before and found.ops[1] >= middle
        assert found.evidence["bytes"] == plan.graphs["train"].graph.tensors[tensor].nbytes
        assert all((one.commands["kind"] == DOWNLOAD).sum() == 2 for one in run.timed)


def test_a_plain_run_has_no_such_step(plan, tmp_path):
    """Findings that a busy machine cannot cause are absent."""
    with plan.profile(BATCH, tmp_path / "one.run", steps=100, idle_s=0.2) as run:
        assert not {f.kind for f in run.findings()} & {"transfer", "clock", "heat"}

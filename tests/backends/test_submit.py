"""Submitters: one place enqueues launches, and another submitter can replace it."""

from __future__ import annotations

import ast
import gc
from collections import Counter
from pathlib import Path

import numpy as np
import pyopencl as cl
import pytest
import torch
import torch.nn.functional as F

import handheld
from handheld import suite
from handheld.backends.opencl.bind import OwnBuffers, bind
from handheld.backends.opencl.devices import find
from handheld.backends.opencl.programs import build
from handheld.backends.opencl.submit import FLUSH_EVERY, Bound, Enqueuer, Notes, Submitter, Work
from handheld.errors import DeviceError
from handheld.kernels.base import Buffer, Int, Launch
from handheld.plan.plan import Plan
from handheld.store.commands import LAUNCH
from helpers.models import Vision

BACKENDS = Path(handheld.__file__).parent / "backends"


class CountingSubmitter(Submitter):
    """Runs nothing; counts the launches that a device would have received."""

    def __init__(self) -> None:
        self.launches: Counter[str | None] = Counter()
        self.cleared = 0

    def submit(self, queue: cl.CommandQueue, work: Work, notes: Notes | None) -> cl.Event | None:
        self.launches[work.key] += len(work.launches)
        return None

    def clear(self) -> None:
        self.cleared += 1


class PassingOn(CountingSubmitter):
    """Counts the launches and runs them one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Enqueuer()

    def submit(self, queue: cl.CommandQueue, work: Work, notes: Notes | None) -> cl.Event | None:
        super().submit(queue, work, notes)
        event = None
        for launch in work.launches:
            event = self.inner.submit(queue, Work(None, (launch,)), notes)
        return event


@pytest.fixture(scope="module")
def trained() -> tuple[handheld.Step, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    model = Vision()
    batch = torch.randn(2, 3, 16, 16), torch.randint(0, 5, (2,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return handheld.capture(model, F.cross_entropy, optimizer, batch, evaluate=False), batch


@pytest.fixture
def plan(trained: tuple[handheld.Step, tuple[torch.Tensor, torch.Tensor]]) -> Plan:
    return trained[0].copy().plan("opencl", tuning=False)


def test_a_submitter_that_only_counts(plan: Plan, trained: tuple[handheld.Step, tuple[torch.Tensor, ...]]) -> None:
    counting, batch = CountingSubmitter(), trained[1]
    graph = plan.graphs["train"]
    with plan.start(submitter=counting) as trainer:
        before = {name: trainer.session.read_slot(name) for name in plan.slots}
        for _ in range(3):
            loss = trainer.step(*batch)
        assert counting.launches == {"train": 3 * graph.launches}
        assert trainer.counters.launches == 3 * graph.launches and trainer.counters.steps == 3
        assert float(loss) == 0.0  # Memory starts as zeros, and no kernel has run.
        assert all(np.array_equal(trainer.session.read_slot(name), value) for name, value in before.items())


def test_nodes_and_repeated_nodes_go_the_same_way(plan: Plan) -> None:
    counting, graph = CountingSubmitter(), plan.graphs["train"]
    sizes = [len(lowered.launches) for lowered in graph.lowered]
    assert sizes[1]
    with plan.start(submitter=counting) as trainer:
        trainer.session.run_node("train", 1)
        assert counting.launches == {"train/1": sizes[1]}
        trainer.session.run_repeated("train", {0: 0, 1: 5})
        assert counting.launches[None] == sum(sizes) - sizes[0] + 4 * sizes[1]


def test_another_submitter_trains_the_same(plan: Plan, trained: tuple[handheld.Step, tuple[torch.Tensor, ...]]) -> None:
    batch = trained[1]

    def losses(submitter: Submitter | None) -> list[float]:
        again = trained[0].copy().plan("opencl", tuning=False)
        with again.start(submitter=submitter) as trainer:
            return [float(trainer.step(*batch)) for _ in range(3)]

    passing = PassingOn()
    assert losses(passing) == losses(None)
    assert passing.launches["train"] == 3 * plan.graphs["train"].launches


def test_it_lets_go_before_the_memory_does(plan: Plan) -> None:
    closed, dropped = CountingSubmitter(), CountingSubmitter()
    trainer = plan.start(submitter=closed)
    trainer.close()
    assert closed.cleared == 1
    trainer = plan.step.copy().plan("opencl", tuning=False).start(submitter=dropped)
    del trainer
    gc.collect()
    assert dropped.cleared == 1


@pytest.mark.parametrize("count", [0, 1, FLUSH_EVERY, 2 * FLUSH_EVERY + 1])
@pytest.mark.parametrize("noted", [False, True])
def test_every_launch_runs_once_and_in_order(count: int, noted: bool) -> None:
    context = cl.Context([find("opencl").device])
    profiling = cl.command_queue_properties.PROFILING_ENABLE if noted else 0
    queue = cl.CommandQueue(context, properties=profiling)
    program = build(context, "__kernel void next(__global int *x, int i) { x[1] += x[0] == i; x[0] = i + 1; }")
    x = cl.Buffer(context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=np.zeros(2, np.int32))
    launches = []
    for i in range(count):
        kernel = cl.Kernel(program, "next")
        launch = Launch("next", "", (Buffer(0), Int(i)), (1,), (1,))
        bind(kernel, launch, OwnBuffers(context, None, {0: x}, ()))  # type: ignore[arg-type]
        launches.append(Bound(i, kernel, (1,), (1,)))
    notes = Notes() if noted else None
    event = Enqueuer().submit(queue, Work(None, tuple(launches)), notes)
    assert (event is None) == (count == 0)
    got = np.empty(2, np.int32)
    cl.enqueue_copy(queue, got, x)
    assert got.tolist() == [count, count]
    if notes is not None:
        assert len(notes) == count
        rows = notes.read()
        assert rows["op"].tolist() == list(range(count)) and (rows["kind"] == LAUNCH).all()
        assert (rows["ended"] >= rows["started"]).all() and (rows["host_end"] >= rows["host_begin"]).all()
        assert not len(notes)


def test_one_place_enqueues() -> None:
    """The exceptions run before a session: `devices.py` tests a compiler, and `ahead_worker.py` makes it compile."""
    found = {
        path.relative_to(BACKENDS).as_posix()
        for path in BACKENDS.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "enqueue_nd_range_kernel"
    }
    assert found == {"opencl/submit.py", "opencl/devices.py", "opencl/ahead_worker.py"}


@pytest.mark.parametrize("wrong", [Enqueuer, 3])
def test_what_is_not_a_submitter_is_refused(wrong: object) -> None:
    """A class instead of an instance would fail only later, far from its cause."""
    with pytest.raises(DeviceError, match="must be a Submitter"):
        suite.get("m1").step(batch=4).plan("opencl").start(submitter=wrong)

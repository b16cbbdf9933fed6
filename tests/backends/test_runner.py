"""The runner as a backend: the same bits as the OpenCL backend, errors in words, and the end of a connection."""

from __future__ import annotations

import os
import signal
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import handheld
from handheld.backends.base import describe, open_session
from handheld.backends.runner import connect, link, shared
from handheld.backends.runner.link import Op
from handheld.backends.runner.session import RunnerSession
from handheld.errors import BuildError, DeviceError, OutOfMemory, TargetLost
from handheld.plan import quirks
from handheld.targets.names import parse


def captured() -> tuple[handheld.Step, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
    batch = torch.randn(4, 1, 8, 8), torch.randint(0, 5, (4,))
    optimizer = torch.optim.Adam(model.parameters())
    return handheld.capture(model, F.cross_entropy, optimizer, batch, evaluate=False), batch


@pytest.mark.parametrize("precision", ["float32", "half"])
def test_every_bit_is_that_of_the_python_backend(precision: str) -> None:
    step, batch = captured()
    other = step.copy()
    with (
        step.plan("opencl", precision=precision).start() as python,
        other.plan("runner", precision=precision).start() as runner,
    ):
        for i in range(4):
            a, b = python.step(*batch), runner.step(*batch)
            assert np.float32(float(a)).tobytes() == np.float32(float(b)).tobytes(), i
            for name in python.plan.slots:
                assert python.session.read_slot(name).tobytes() == runner.session.read_slot(name).tobytes(), (i, name)
        assert python.counters.launches == runner.counters.launches
        assert python.session.allocated_bytes == runner.session.allocated_bytes


def test_copies_of_slots_and_other_batch_sizes() -> None:
    """A smaller batch adds graphs, so that the session is opened again with the state of now."""
    step, batch = captured()
    other = step.copy()
    with step.plan("opencl").start() as python, other.plan("runner").start() as runner:
        for size in (4, 2, 4):
            part = tuple(t[:size] for t in batch)
            assert float(python.step(*part)) == float(runner.step(*part))
        a, b = python.state(), runner.state()
        assert all(np.array_equal(a[name], b[name]) for name in a)


def test_the_host_is_at_most_two_steps_ahead() -> None:
    step, batch = captured()
    with step.plan("runner").start() as trainer:
        session = trainer.session
        assert isinstance(session, RunnerSession)
        for _ in range(20):
            trainer.step(*batch)
            assert len(session._flight) <= 2


def large_inputs() -> tuple[handheld.Step, list[tuple[torch.Tensor, torch.Tensor]]]:
    """A small model whose pictures have 1 MiB per batch."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.AvgPool2d(32), nn.Flatten(), nn.Linear(64, 5))
    batches = [(torch.randn(4, 1, 256, 256), torch.randint(0, 5, (4,))) for _ in range(7)]
    return handheld.capture(model, F.cross_entropy, torch.optim.SGD(model.parameters(), 0.1), batches[0]), batches


def test_large_inputs_come_through_shared_memory() -> None:
    """Seven different batches in a row, without waiting for a result: no batch may overwrite one that is not read."""
    step, batches = large_inputs()
    other = step.copy()
    with step.plan("opencl").start() as python, other.plan("runner").start() as runner:
        session = runner.session
        assert isinstance(session, RunnerSession)
        a, b = [python.step(*batch) for batch in batches], [runner.step(*batch) for batch in batches]
        assert [float(loss) for loss in a] == [float(loss) for loss in b]
        assert session._shared._used == 3 * batches[0][0].nbytes, "three areas for the pictures, none for the labels"


def test_inputs_of_an_idle_device_are_written_straight_into_its_memory() -> None:
    """PoCL's device shares its memory with the host. If it is idle, no copy is staged; the small labels always are."""
    step, batches = large_inputs()
    if not describe("runner").unified_memory:
        pytest.skip("the device has its own memory")
    losses = {}
    for way, expected in (("auto", (7, 0)), ("staged", (0, 7)), ("mapped", (7, 0))):
        with step.copy().plan("runner").start(inputs=way) as trainer:
            session = trainer.session
            assert isinstance(session, RunnerSession)
            losses[way] = [float(trainer.step(*batch)) for batch in batches]  # Reading the loss waits for the device.
            assert session.input_ways() == expected
    assert losses["auto"] == losses["staged"] == losses["mapped"]


def test_inputs_of_a_busy_device_are_staged() -> None:
    step, batches = large_inputs()
    with step.plan("runner").start() as trainer:
        session = trainer.session
        assert isinstance(session, RunnerSession)
        graph = session.plan.graphs["train"].graph
        pictures = graph.inputs[0].tensor
        reads = next(i for i, node in enumerate(graph.nodes) if pictures in (view.tensor for view in node.inputs))
        session.run_repeated("train", {reads: 20_000})  # The device is busy with these when the next input comes.
        before = session.input_ways()
        session.upload("train", pictures, batches[0][0].numpy())
        assert session.input_ways() == (before[0], before[1] + 1)
        session.finish()
        session.upload("train", pictures, batches[0][0].numpy())
        assert session.input_ways() == (before[0] + 1, before[1] + 1) or not describe("runner").unified_memory


def test_an_input_that_does_not_fit_into_shared_memory_comes_through_the_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    step, batches = large_inputs()
    other = step.copy()
    monkeypatch.setattr(shared.SharedInputs, "_reserve", lambda *_: None)
    with step.plan("opencl").start() as python, other.plan("runner").start() as runner:
        assert [float(python.step(*batch)) for batch in batches] == [float(runner.step(*batch)) for batch in batches]


def test_an_area_is_not_written_before_it_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uploads without steps between them: the fourth must wait."""
    step, batches = large_inputs()
    with step.plan("runner").start() as trainer:
        session = trainer.session
        assert isinstance(session, RunnerSession)
        tensor = session.plan.graphs["train"].graph.inputs[0].tensor
        asked: list[Op] = []
        get = session.link.get
        monkeypatch.setattr(session.link, "get", lambda op: (asked.append(op), get(op))[1])
        for i, batch in enumerate(batches[:4]):
            session.upload("train", tensor, batch[0].numpy())
            assert asked == ([] if i < 3 else [Op.CLOCK])


def test_an_error_of_a_request_without_an_answer_comes_with_the_next() -> None:
    step, batch = captured()
    session = open_session(step.plan("runner"))
    assert isinstance(session, RunnerSession)
    session.link.send(Op.RUN, b"\x63\0\0\0")
    with pytest.raises(DeviceError, match=r"^runner: the plan has no graph 99"):
        session.link.get(Op.FINISH)
    session.close()
    with step.plan("runner").start() as trainer:  # The runner is as good as before.
        assert np.isfinite(float(trainer.step(*batch)))


def test_a_killed_runner_is_a_lost_target() -> None:
    step, batch = captured()
    trainer = step.plan("runner").start()
    session = trainer.session
    assert isinstance(session, RunnerSession)
    float(trainer.step(*batch))
    float(trainer.step(*batch))
    os.kill(session.link.pid, signal.SIGKILL)
    with pytest.raises(TargetLost, match=r"runner was lost after 2 steps: .*SIGKILL.*Try: again"):
        for _ in range(5):
            float(trainer.step(*batch))
    with pytest.raises(TargetLost):
        session.finish()
    session.close()
    trainer.closed = True
    with step.plan("runner").start() as again:  # Another one is started.
        assert np.isfinite(float(again.step(*batch)))


def test_a_plan_for_another_device_is_refused() -> None:
    step, _ = captured()
    plan = step.plan("runner")
    with pytest.raises(DeviceError, match=r"the plan was made for Other.*Try"):
        open_session(replace(plan, caps=replace(plan.caps, name="Other")))


def test_a_plan_for_another_driver_runs_with_a_warning() -> None:
    step, batch = captured()
    plan = step.plan("runner", tuning=False)
    with pytest.warns(UserWarning, match=r"made for driver 7, but runner has driver .*from source.*Try: make the plan"):
        trainer = replace(plan, caps=replace(plan.caps, driver="7")).start()
    with trainer:
        assert np.isfinite(float(trainer.step(*batch)))


def test_a_session_of_the_runner_may_lie_in_shared_virtual_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    step, batch = captured()
    found: list[list[float]] = []
    for share in (0.0, 1.0):
        monkeypatch.setattr(quirks, "tracks_overlaps", lambda caps: True)
        monkeypatch.setattr(quirks, "SHARED", share)
        with step.copy().plan("runner", tuning=False).start() as trainer:
            found.append([float(trainer.step(*batch)) for _ in range(3)])
            assert (trainer.session.shared_segments > 0) == bool(share), "PoCL has such memory"
    assert found[0] == found[1]


def test_unknown_devices_are_named() -> None:
    with pytest.raises(DeviceError, match=r"runner has no OpenCL device 'nothing'. Try: --on runner:"):
        describe("runner:nothing")
    assert describe("runner:0").name == describe("runner").name


def test_a_kernel_that_does_not_build_is_a_build_error() -> None:
    step, _ = captured()
    plan = step.plan("runner", tuning=False)
    graph = plan.graphs["train"]
    node = next(i for i, low in enumerate(graph.lowered) if low.launches)
    bad = replace(graph.lowered[node].launches[0], text="__kernel vood wrong() {}")
    lowered = list(graph.lowered)
    lowered[node] = replace(lowered[node], launches=(bad,))
    broken = replace(
        plan, caps=replace(plan.caps, features=""), graphs={"train": replace(graph, lowered=tuple(lowered))}
    )
    with pytest.raises(BuildError, match=r"could not build program .*Try"):
        open_session(broken)


def test_too_much_memory_is_out_of_memory() -> None:
    step, _ = captured()
    plan = step.plan("runner")
    with pytest.raises((OutOfMemory, DeviceError), match="refused"), warnings.catch_warnings():
        open_session(replace(plan, segments=(*plan.segments, 1 << 43)))


def test_runners_are_used_again() -> None:
    step, batch = captured()
    with step.plan("runner").start() as first:
        pid = first.session.link.pid  # type: ignore[attr-defined]
        with step.copy().plan("runner").start() as second:  # Two at once need two runners.
            assert second.session.link.pid != pid  # type: ignore[attr-defined]
            assert float(second.step(*batch)) == float(first.step(*batch))
    name = parse("runner")
    with connect.borrowed(name) as a, connect.borrowed(name) as b:
        assert pid in (a.pid, b.pid)


def test_answers_that_were_not_asked_for_end_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    with connect.borrowed(parse("runner")) as found:
        monkeypatch.setattr(link, "MOST_BYTES", 10)
        with pytest.raises(TargetLost, match="is not one that was asked for"):
            connect.hello(found)


def test_recordings_have_the_kernels_of_the_plan() -> None:
    step, batch = captured()
    with step.plan("runner").start() as trainer:
        trainer.step(*batch)
        with trainer.session.record() as recording:
            trainer.step(*batch)
            count = len(recording)
        rows = recording.read()
        assert len(rows) == count and not len(recording)
        assert (rows["ended"] >= rows["started"]).all() and (rows["host_end"] >= rows["host_begin"]).all()

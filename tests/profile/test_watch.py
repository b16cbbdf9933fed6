"""`handheld.watch` on plain PyTorch: ops with phase and module, whole steps, the caller's time."""

from __future__ import annotations

import dataclasses
import inspect
import time

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import handheld
from handheld.errors import HandheldError


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(4 * 6 * 6, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.relu(self.norm(self.conv(x))))


def train(watch, model, steps: int, sleep_s: float = 0.0) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        time.sleep(sleep_s)
        x, y = torch.randn(4, 3, 8, 8), torch.randint(0, 5, (4,))
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        watch.step()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("watch") / "plain.run"
    torch.manual_seed(0)
    model = Net()
    with handheld.watch(model, path, sensors=False) as watch:
        train(watch, model, 40)
    with handheld.open_run(path) as run:
        yield run


def where(run, phase: str, op: str) -> set[str]:
    return {row.path for row in run.ops() if (row.phase, row.op) == (phase, op)}


def test_steps(run):
    assert len(run.steps()) == 40 and run.complete and run.meta["settings"] == {"watch": True}
    assert run.meta["device"] == "pytorch:cpu" and run.variance().times.median > 0
    assert all(s.begin_ns < s.end_ns for s in run.steps())


def test_forward_ops_are_in_their_modules(run):
    assert where(run, "forward", "convolution") == {"conv"}
    assert "norm" in where(run, "forward", "native_batch_norm") | where(run, "forward", "_native_batch_norm_legit")
    assert where(run, "forward", "addmm") == {"head.1"}
    assert where(run, "forward", "relu") == {""}, "the model's own forward"


def test_backward_ops_are_in_the_modules_that_made_them(run):
    assert where(run, "backward", "convolution_backward") == {"conv"}
    assert where(run, "backward", "native_batch_norm_backward") == {"norm"}
    assert "head.1" in where(run, "backward", "mm")
    assert where(run, "backward", "threshold_backward") == {""}


def test_updates(run):
    assert {row.op for row in run.ops() if row.phase == "update"} & {"_foreach_add_", "_foreach_mul_", "add_", "mul_"}
    assert {r.phase for r in run.phases()} == {"forward", "backward", "update"}


def test_times_and_work(run):
    assert all(row.ms is None or row.ms >= 0 for row in run.ops())
    conv = next(r for r in run.ops() if r.op == "convolution" and r.phase == "forward")
    assert conv.ms > 0 and conv.flops == 2 * 4 * 4 * 6 * 6 * 3 * 9 and conv.bytes > 0
    for period in run.periods:
        assert sum(dataclasses.astuple(period.parts)) == period.length
    assert run.memory() == [] and run.summary().memory.peak_bytes is None


def test_a_sleeping_loader_is_found(tmp_path):
    model = Net()
    with handheld.watch(model, tmp_path / "one.run", sensors=False) as watch:
        train(watch, model, 30, sleep_s=0.05)
    with handheld.open_run(tmp_path / "one.run") as run:
        (found,) = (f for f in run.findings() if f.kind == "caller")
        assert found.evidence["ms"] >= 45 and len(found.steps) >= 3


def test_the_model_is_left_as_it_was(tmp_path):
    model = Net()
    with handheld.watch(model, tmp_path / "one.run", sensors=False) as watch:
        train(watch, model, 8)
    assert not model._forward_pre_hooks
    assert not nn.modules.module._global_forward_pre_hooks
    assert not nn.modules.module._global_forward_hooks


def test_a_schedule(tmp_path):
    model = Net()
    with handheld.watch(model, tmp_path / "one.run", sensors=False, wait=3, warmup=1, active=5) as watch:
        train(watch, model, 20)
    with handheld.open_run(tmp_path / "one.run") as run:
        assert len(run.steps()) == 6
        assert [s.id for s in run.steps() if s.recorded] == [1, 2, 3, 4]


def test_an_error_in_the_loop(tmp_path):
    model = Net()
    with pytest.raises(RuntimeError), handheld.watch(model, tmp_path / "one.run", sensors=False) as watch:
        train(watch, model, 4)
        model(torch.randn(2, 2))
    with handheld.open_run(tmp_path / "one.run") as run:
        assert run.meta["status"] == "failed: RuntimeError" and len(run.steps()) == 4


def test_with_sensors(tmp_path):
    model = Net()
    with handheld.watch(model, tmp_path / "one.run", idle_s=0.1) as watch:
        train(watch, model, 20)
    with handheld.open_run(tmp_path / "one.run") as run:
        assert {"cpu", "process"} <= {one.source for one in run.channels}
        assert run.meta["sampler"]["cpu_share"] > 0


def test_only_modules_are_watched(tmp_path):
    with pytest.raises(HandheldError, match=r"needs a torch\.nn\.Module, not a int"):
        handheld.watch(3, tmp_path / "one.run")
    assert not (tmp_path / "one.run").exists()


def test_help_shows_what_watch_takes() -> None:
    taken = [name for name, p in inspect.signature(handheld.watch).parameters.items()]
    assert taken == ["model", "path", "wait", "warmup", "active", "sensors", "where", "idle_s"]
    assert all(f"`{name}`" in (handheld.watch.__doc__ or "") for name in taken[1:])

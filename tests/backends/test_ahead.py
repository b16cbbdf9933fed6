"""Kernels are compiled in other processes before the first launch, where the driver compiles at the first launch."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import handheld
from handheld.backends.opencl import ahead
from handheld.backends.opencl.ahead_worker import compile_program
from handheld.backends.opencl.devices import find, opencl
from handheld.plan.quirks import compiles_at_launch
from handheld.plan.texts import program_texts

#: Trains one step with an empty folder of PoCL, twice, and prints how many kernels were compiled before. What is
#: reported while it starts counts the programs that were compiled, and then those that are built.
SCRIPT = """
import torch, handheld
from handheld.backends.opencl import ahead, session
ahead.LEAST_COST, counts, real = 0, [], ahead.compile_ahead
session.compile_ahead = lambda *args: counts.append(real(*args))
model, batch = torch.nn.Linear(5, 3), (torch.ones(2, 5), torch.ones(2, 3))
step = handheld.capture(
    model, lambda y, t: ((y - t) ** 2).mean(), torch.optim.SGD(model.parameters(), 0.1), batch
)
def trained():
    seen.append([])
    with step.copy().plan("opencl").start(progress=lambda *words: seen[-1].append(words)) as trainer:
        return float(trainer.step(*batch)), trainer.session.counters.builds

seen = []
(loss, total), again = trained(), trained()
assert again == (loss, total) and total >= 3
building = [("building", done, total) for done in range(total + 1)]
assert seen == [building[1:] + building, building], seen
print(*counts)
"""


@pytest.fixture(autouse=True)
def turned_on(monkeypatch):
    """Elsewhere in the tests no other processes compile."""
    monkeypatch.delenv(ahead.VARIABLE, raising=False)


@pytest.fixture(scope="module")
def plan():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 20, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(720, 2))
    batch = torch.zeros(4, 3, 8, 8), torch.zeros(4, dtype=torch.int64)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return handheld.capture(model, torch.nn.functional.cross_entropy, optimizer, batch).plan("opencl")


def test_every_kernel_is_compiled_with_its_smallest_launch(plan):
    programs = program_texts(plan).programs
    jobs = ahead.jobs_of(plan, programs)
    assert [job.source for job in jobs] == programs
    wanted: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    sources = {text: source for source in programs for text in source.members}
    for graph in plan.graphs.values():
        for lowered in graph.lowered:
            for launch in lowered.launches:
                key = sources[launch.text].kernel(launch), launch.local_size
                size = sum(
                    v
                    for k, v in ahead._first_launch(launch, sources[launch.text], graph.graph, lowered)["args"]
                    if k == "buffer"
                )
                wanted.setdefault(key, []).append(size)
    sizes = {
        (kernel["name"], tuple(kernel["local"])): sum(value for kind, value in kernel["args"] if kind == "buffer")
        for job in jobs
        for kernel in job.kernels
    }
    assert sizes == {key: min(values) for key, values in wanted.items()}


def test_a_program_that_cannot_be_compiled_is_not_complete():
    api = opencl()
    queue = api.CommandQueue(api.Context([find("opencl").device]))
    kernel = {"name": "k", "args": [("buffer", 4.0), ("int", 3)], "global": [1], "local": [1]}
    good = {"text": "__kernel void k(__global int *x, int n) { x[0] = n; }", "kernels": [kernel]}
    assert compile_program(queue, good) == {"kernels": 1, "complete": True}
    assert compile_program(queue, {**good, "kernels": [kernel, {**kernel, "name": "other"}]}) == {
        "kernels": 1,
        "complete": False,
    }
    assert compile_program(queue, {**good, "text": "no program"}) == {"kernels": 0, "complete": False}


def test_the_folder_of_the_driver(monkeypatch, tmp_path):
    monkeypatch.delenv("POCL_KERNEL_CACHE", raising=False)
    monkeypatch.delenv("POCL_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert ahead.driver_folder() is None
    (tmp_path / "pocl" / "kcache").mkdir(parents=True)
    assert ahead.driver_folder() == tmp_path / "pocl" / "kcache"
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path))
    assert ahead.driver_folder() == tmp_path
    monkeypatch.setenv("POCL_KERNEL_CACHE", "0")
    assert ahead.driver_folder() is None


def test_only_where_it_helps(plan, monkeypatch):
    def never(*_: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(ahead, "Child", never)
    programs = program_texts(plan).programs
    assert ahead.compile_ahead(plan, []) == 0
    monkeypatch.setattr(ahead, "LEAST_COST", 0)
    with monkeypatch.context() as patch:
        patch.setenv("HANDHELD_COMPILE_AHEAD", "off")
        assert ahead.compile_ahead(plan, programs) == 0
    assert ahead.compile_ahead(replace(plan, caps=replace(plan.caps, driver="other", name="other")), programs) == 0
    assert ahead.compile_ahead(replace(plan, caps=replace(plan.caps, compute_units=1)), programs) == 0


def test_other_processes_compile_once(tmp_path):
    caps = find("opencl").caps
    if not compiles_at_launch(caps) or caps.compute_units < 2:
        pytest.skip("this driver does not compile at the first launch, or the machine has one core")
    environment = os.environ | {"POCL_CACHE_DIR": str(tmp_path), "POCL_KERNEL_CACHE": "1"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
    first, second = map(int, done.stdout.split())
    assert first > 3
    assert second == 0
    assert list(Path(tmp_path).glob("handheld-*"))

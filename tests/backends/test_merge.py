"""Programs that are built as one: each text keeps its own names, and a bad one is still named."""

from __future__ import annotations

import numpy as np
import pyopencl as cl
import pytest
import torch
import torch.nn.functional as F

import handheld
from handheld.backends.opencl import devices as opencl_devices
from handheld.backends.opencl import session as opencl
from handheld.backends.opencl.merge import merge, renamed
from handheld.errors import BuildError
from helpers.models import Vision

ADD = """#ifndef STEP
#define STEP 1  // a parameter
#endif
typedef struct { int by; } Change;
typedef int16 __attribute__((aligned(4))) loose16;
inline int change(Change c, int x) { return x + c.by; }
#define DEFINE(name, n) int name(int x) { return x + n; }
DEFINE(plus, 100)
__kernel void run(__global int *x) {
  Change c;
  c.by = STEP;
  x[0] = plus(change(c, x[0]));
}
"""
SCALE = """#define STEP 3
typedef struct {
  int first, second;
} Change;
float change(int x);
float change(int x)
{ return x * STEP; }
__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void run(__global int *x) { Change c = {2, 5}; x[0] = (int)change(x[0]) * c.first + c.second; }
"""


def test_each_text_keeps_its_names() -> None:
    found = opencl_devices.find("opencl")
    context = cl.Context([found.device])
    queue = cl.CommandQueue(context)
    program = cl.Program(context, merge([ADD, SCALE, ADD])).build(options=["-w"])
    host = np.array([7], np.int32)
    memory = cl.Buffer(context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=host)
    for i, want in ((0, 7 + 1 + 100), (1, (108 * 3) * 2 + 5), (2, 653 + 101)):
        kernel = cl.Kernel(program, renamed("run", i))
        kernel.set_args(memory)
        cl.enqueue_nd_range_kernel(queue, kernel, (1,), (1,))
        cl.enqueue_copy(queue, host, memory)
        assert host[0] == want


def start() -> tuple[handheld.Step, tuple[torch.Tensor, torch.Tensor]]:
    model = Vision()
    batch = torch.randn(2, 3, 16, 16), torch.randint(0, 5, (2,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return handheld.capture(model, F.cross_entropy, optimizer, batch, evaluate=False), batch


def losses(step: handheld.Step, batch: tuple[torch.Tensor, ...]) -> tuple[list[float], int]:
    values = dict(step.values)
    with step.plan("opencl", tuning=False).start() as trainer:
        found = [float(trainer.step(*batch)) for _ in range(3)]
        builds = trainer.counters.builds
    step.values.update(values)
    return found, builds


def test_merged_or_apart_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    step, batch = start()
    want, builds = losses(step, batch)
    assert builds < step.plan("opencl").graphs["train"].programs
    monkeypatch.setattr(opencl, "merge", lambda texts: "this is no program;")
    with pytest.warns(UserWarning, match="programs apart"):
        found, apart = losses(step, batch)
    assert found == want and apart == step.plan("opencl").graphs["train"].programs


def test_the_one_that_does_not_build_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    step, _ = start()
    plan = step.plan("opencl", tuning=False)
    program = opencl.OpenCLSession._program
    monkeypatch.setattr(
        opencl.OpenCLSession,
        "_program",
        lambda session, text: program(session, text.replace("__kernel void map_blocks", "__kernel vood map_blocks")),
    )
    with pytest.raises(BuildError, match="could not build kernel map_blocks"):
        opencl.OpenCLSession(plan)

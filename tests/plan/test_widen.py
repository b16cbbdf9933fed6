"""Texts that ask for features of the processor: kernels call functions, and results do not change."""

from __future__ import annotations

import platform
from dataclasses import replace

import numpy as np
import pyopencl as cl
import pytest
import torch
import torch.nn.functional as F

import handheld
from handheld.backends.base import describe
from handheld.kernels.base import Buffer, Float, Int, Launch
from handheld.plan.merge import merge, renamed
from handheld.plan.widen import texts_of
from helpers.harness import caps_of_kind, queue
from helpers.models import Vision

TEXT = """#define ROW (get_global_id(1) * get_global_size(0))
inline float twice(float x) { return 2 * x; }
__kernel void fill(__global float *y, int from,
                   float step) {
  y[ROW + get_global_id(0)] = from + step * get_global_id(0) + 100 * get_global_id(1);
}
__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void twofold(const __global float *x, __global float *y) {
  y[ROW + get_global_id(0)] = twice(x[ROW + get_global_id(0)]);
}
__kernel void never(__global uint *z) { z[get_global_id(2)] = 1; }
"""
LAUNCHES = [
    Launch("fill", TEXT, (Buffer(0), Int(3), Float(0.5)), (4, 2), (2, 1)),
    Launch("twofold", TEXT, (Buffer(0), Buffer(1)), (4, 2), (1, 1)),
]
WANT = 2 * (3 + 0.5 * np.arange(4) + 100 * np.arange(2)[:, None])

clang_on_x86 = pytest.mark.skipif(
    platform.machine() != "x86_64" or describe("opencl").kind != "cpu",
    reason="asks for features of an x86-64 processor",
)


def test_only_cpus_with_features_get_widened_texts() -> None:
    other = replace(LAUNCHES[0], text=TEXT + "\n")
    plain = texts_of([*LAUNCHES, other], caps_of_kind("cpu", features=""))
    assert plain == {TEXT: TEXT, other.text: other.text}
    assert texts_of(LAUNCHES, caps_of_kind("gpu", features="sse2")) == {TEXT: TEXT}
    asked = texts_of([*LAUNCHES, other], caps_of_kind("cpu", features="sse2"))
    assert asked.keys() == plain.keys()
    assert all('target("sse2")' in text for text in asked.values())
    # Kernels that no launch needs are left out.
    assert [asked[TEXT].count(f"__kernel void {name}(") for name in ("fill", "twofold", "never")] == [1, 1, 0]
    assert asked == texts_of([*LAUNCHES[::-1], other], caps_of_kind("cpu", features="sse2"))


@clang_on_x86
@pytest.mark.parametrize("together", [False, True])
def test_kernels_find_their_place_in_the_grid(together: bool) -> None:
    q, flags = queue(), cl.mem_flags
    text = texts_of(LAUNCHES, caps_of_kind("cpu", features="sse2"))[TEXT]
    program = cl.Program(q.context, merge([TEXT, text]) if together else text).build(["-w"])
    x, y = (cl.Buffer(q.context, flags.READ_WRITE, 32) for _ in range(2))
    for launch, args in zip(LAUNCHES, [(x, np.int32(3), np.float32(0.5)), (x, y)], strict=True):
        kernel = cl.Kernel(program, renamed(launch.kernel, 1) if together else launch.kernel)
        kernel.set_args(*args)
        cl.enqueue_nd_range_kernel(q, kernel, launch.global_size, launch.local_size)
    got = np.zeros((2, 4), np.float32)
    cl.enqueue_copy(q, got, y)
    np.testing.assert_array_equal(got, WANT)


@clang_on_x86
def test_a_step_is_the_same() -> None:
    torch.manual_seed(0)
    model = Vision()
    batch = torch.randn(2, 3, 16, 16), torch.randint(0, 5, (2,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = handheld.capture(model, F.cross_entropy, optimizer, batch, evaluate=False)
    losses, values = [], dict(step.values)
    for features in ("", "sse2"):
        caps = replace(describe("opencl"), features=features)
        with step.plan("opencl", caps=caps, tuning=False).start() as trainer:
            losses.append([float(trainer.step(*batch)) for _ in range(3)])
        step.values.update(values)
    np.testing.assert_allclose(*losses, rtol=1e-5)
    assert losses[0][2] < losses[0][0]

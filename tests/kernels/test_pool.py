"""Compares pooling with torch in float64."""

from __future__ import annotations

import numpy as np
import pyopencl as cl
import pytest
import torch
import torch.nn.functional as F

from handheld.errors import PlanError
from handheld.kernels.base import read_cl
from handheld.kernels.pool import lower_avg_pool, lower_avg_pool_grad, lower_max_pool, lower_max_pool_grad
from helpers.harness import caps_of_kind, error, make, queue, run_node, view

# A work-item computes a row on a CPU and an element on a GPU.
CAPS, GPU = caps_of_kind("cpu"), caps_of_kind("gpu")

# shape, kernel, stride, padding, dilation, ceil_mode
MAX_CASES = [
    ((2, 3, 11, 13), (3, 3), (2, 2), (1, 1), (1, 1), False),
    ((1, 5, 7, 5), (2, 3), (1, 2), (1, 0), (2, 1), True),
    ((3, 1, 1, 17), (1, 5), (1, 3), (0, 2), (1, 2), True),
    ((2, 2, 10, 10), (3, 3), (2, 2), (0, 0), (1, 1), True),
    ((1, 1, 1, 1), (1, 1), (1, 1), (0, 0), (1, 1), False),
    ((1, 2, 19, 23), (7, 7), (1, 1), (3, 3), (1, 1), False),
]


def strided_input(x: np.ndarray):
    """A buffer that contains x transposed and with a margin, and the view that reads x from it."""
    n, c, h, w = x.shape
    buffer = np.full((w + 1, h + 2, c, n), 9e9, np.float32)
    buffer[1:, 2:] = x.transpose(3, 2, 1, 0)
    strides = (1, n, n * c, n * c * (h + 2))
    return buffer, lambda t: view(t, x.shape, strides, strides[3] + 2 * strides[2])


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("case", MAX_CASES)
def test_max_pool(case, strided):
    shape, kernel, stride, padding, dilation, ceil = case
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).round(decimals=1)
    leaf = x.double().requires_grad_()
    want, where = F.max_pool2d(leaf, kernel, stride, padding, dilation, ceil, return_indices=True)
    attrs = {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation, "adaptive": False}
    check_max(leaf, want, where, attrs, strided)


@pytest.mark.parametrize(
    "shape, size", [((2, 3, 11, 13), (5, 4)), ((1, 2, 3, 5), (7, 5)), ((1, 1, 8, 8), (1, 1)), ((2, 1, 7, 1), (3, 2))]
)
def test_adaptive_max_pool(shape, size):
    leaf = torch.randn(shape).double().requires_grad_()
    want, where = F.adaptive_max_pool2d(leaf, size, return_indices=True)
    attrs = {"kernel": (0, 0), "stride": (0, 0), "padding": (0, 0), "dilation": (0, 0), "adaptive": True}
    check_max(leaf, want, where, attrs, True)


def check_max(leaf, want, where, attrs, strided):
    caps = GPU if strided else CAPS
    x = leaf.detach().float().numpy()
    buffer, reads = strided_input(x) if strided else (x, None)
    out = tuple(want.shape)
    graph, data = make("max_pool", [buffer], [reads], [(out, "f32"), (out, "i32")], attrs | {"shape": out})
    y, index = run_node(lower_max_pool, graph, data, caps)
    np.testing.assert_array_equal(index, where.numpy())
    np.testing.assert_array_equal(y, want.detach().float().numpy())
    dy = torch.randn(out, generator=torch.Generator().manual_seed(2))
    want.backward(dy.double())
    dy_buffer, dy_reads = strided_input(dy.numpy()) if strided else (dy.numpy(), None)
    graph, data = make(
        "max_pool_grad",
        [dy_buffer, index],
        [dy_reads, None],
        [(tuple(x.shape), "f32")],
        attrs | {"shape": tuple(x.shape)},
    )
    (dx,) = run_node(lower_max_pool_grad, graph, data, caps)
    assert error(dx, leaf.grad.numpy()) < 1e-6


def windows():
    """Shapes, kernels, strides, paddings and dilations for rows of one block and of several, chosen at random."""
    random = np.random.default_rng(5)
    for wide in (4, 9, 15, 16, 17, 28, 31, 33, 47, 64, 70):
        for stride in (1, 2):
            kernel = tuple(int(k) for k in random.integers(1, 6, 2))
            padding = tuple(int(random.integers(0, k // 2 + 1)) for k in kernel)
            dilation = tuple(int(d) for d in random.integers(1, 3, 2))
            high = int(random.integers(1, 9)) + (kernel[0] - 1) * dilation[0]
            wide = max(wide, (kernel[1] - 1) * dilation[1] + 1)
            yield (2, 3, high, wide), kernel, (int(random.integers(1, 4)), stride), padding, dilation, wide % 2 == 0


@pytest.mark.parametrize("case", list(windows()))
def test_max_pool_in_blocks(case):
    shape, kernel, stride, padding, dilation, ceil = case
    x = torch.randn(shape, generator=torch.Generator().manual_seed(6)).round(decimals=1)
    x.view(-1)[::11] = -torch.inf
    x.view(-1)[5::41] = torch.nan
    leaf = x.double().requires_grad_()
    want, where = F.max_pool2d(leaf, kernel, stride, padding, dilation, ceil, return_indices=True)
    attrs = {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation, "adaptive": False}
    check_max(leaf, want, where, attrs, False)


@pytest.mark.parametrize("case", list(windows()))
def test_avg_pool_in_blocks(case):
    shape, kernel, stride, padding, _, ceil = case
    check_avg((shape, kernel, stride, padding, ceil), True, 7, False)


def test_max_pool_nan_and_minus_infinity():
    x = np.full((1, 1, 2, 8), -np.inf, np.float32)
    x[0, 0, 0, 1] = x[0, 0, 1, 4] = x[0, 0, 1, 5] = np.nan
    x[0, 0, 0, 6] = 3
    want, where = F.max_pool2d(torch.tensor(x), 2, return_indices=True)
    attrs = {
        "kernel": (2, 2),
        "stride": (2, 2),
        "padding": (0, 0),
        "dilation": (1, 1),
        "adaptive": False,
        "shape": (1, 1, 1, 4),
    }
    graph, data = make("max_pool", [x], None, [((1, 1, 1, 4), "f32"), ((1, 1, 1, 4), "i32")], attrs)
    y, index = run_node(lower_max_pool, graph, data, CAPS)
    np.testing.assert_array_equal(y, want.numpy())
    np.testing.assert_array_equal(index, where.numpy())


# shape, kernel, stride, padding, ceil_mode
AVG_CASES = [
    ((2, 3, 11, 13), (3, 3), (2, 2), (1, 1), False),
    ((2, 3, 11, 13), (3, 4), (2, 3), (1, 2), True),
    ((1, 4, 9, 7), (2, 5), (3, 2), (0, 2), True),
    ((1, 3, 7, 7), (7, 7), (7, 7), (0, 0), False),
    ((2, 1, 1, 601), (1, 523), (1, 5), (0, 261), True),
    ((1, 1, 5, 5), (2, 2), (4, 4), (1, 1), True),
]


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("count_pad, divisor", [(True, 0), (False, 0), (True, 5)])
@pytest.mark.parametrize("case", AVG_CASES)
def test_avg_pool(case, count_pad, divisor, strided):
    check_avg(case, count_pad, divisor, strided)


def check_avg(case, count_pad, divisor, strided):
    shape, kernel, stride, padding, ceil = case
    x = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    caps = GPU if strided else CAPS
    leaf = x.double().requires_grad_()
    want = F.avg_pool2d(leaf, kernel, stride, padding, ceil, count_pad, divisor or None)
    buffer, reads = strided_input(x.numpy()) if strided else (x.numpy(), None)
    attrs = {"kernel": kernel, "stride": stride, "padding": padding, "count_pad": count_pad, "divisor": divisor}
    out = tuple(want.shape)
    graph, data = make("avg_pool", [buffer], [reads], [(out, "f32")], attrs | {"shape": out})
    (y,) = run_node(lower_avg_pool, graph, data, caps)
    assert error(y, want.detach().numpy()) < 1e-5
    dy = torch.randn(out, generator=torch.Generator().manual_seed(4))
    want.backward(dy.double())
    buffer, reads = strided_input(dy.numpy()) if strided else (dy.numpy(), None)
    graph, data = make("avg_pool_grad", [buffer], [reads], [(shape, "f32")], attrs | {"shape": shape})
    (dx,) = run_node(lower_avg_pool_grad, graph, data, caps)
    assert error(dx, leaf.grad.numpy()) < 1e-5


def test_empty():
    attrs = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0), "count_pad": True, "divisor": 0}
    x = np.zeros((0, 3, 4, 4), np.float32)
    graph, _ = make("avg_pool", [x], None, [((0, 3, 2, 2), "f32")], attrs | {"shape": (0, 3, 2, 2)})
    assert lower_avg_pool(graph.nodes[0], graph, CAPS).launches == ()
    # Without windows the gradient is zero, and it must be written.
    dy = np.zeros((1, 1, 0, 0), np.float32)
    graph, data = make("avg_pool_grad", [dy], None, [((1, 1, 1, 1), "f32")], attrs | {"shape": (1, 1, 1, 1)})
    assert run_node(lower_avg_pool_grad, graph, data, CAPS)[0].item() == 0


def test_a_position_beyond_32_bits_is_an_error_of_the_plan():
    attrs = {
        "kernel": (1, 1),
        "stride": (1, 2**31),
        "padding": (0, 0),
        "count_pad": True,
        "divisor": 0,
        "shape": (1, 1, 1, 1),
    }
    graph, _ = make("avg_pool", [np.zeros((1, 1, 1, 1), np.float32)], None, [((1, 1, 1, 1), "f32")], attrs)
    with pytest.raises(PlanError, match="32-bit"):
        lower_avg_pool(graph.nodes[0], graph, CAPS)


def test_the_file_compiles_alone():
    cl.Program(queue().context, read_cl("pool.cl")).build()
    for name in ("SW 1", "SW 2", "MAX_WIDE 1"):
        one = f"#define {name}\n#ifndef SW\n#define SW 1\n#endif\n#define SH 1\n#define KH 3\n#define KW 3\n"
        sides = "#define PH 0\n#define PW 0\n#define DIVISOR 9\n#define COUNT_PAD 1\n"
        text = read_cl("wide.cl") + read_cl("pool.cl") + read_cl("pool_wide.cl")
        cl.Program(queue().context, one + sides + text).build()

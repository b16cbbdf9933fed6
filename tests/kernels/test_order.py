"""Compares sorting and scans with torch."""

from __future__ import annotations

import numpy as np
import pyopencl as cl
import pytest
import torch

from handheld.kernels.base import read_cl
from handheld.kernels.order import lower_scan, lower_sort
from helpers.harness import caps_of_kind, error, make, queue, run_node

CAPS = caps_of_kind("cpu")


def run_sort(x: np.ndarray, descending: bool) -> list[np.ndarray]:
    dtype = "f32" if x.dtype.kind == "f" else "i32"
    graph, data = make("sort", [x], None, [(x.shape, dtype), (x.shape, "i32")], {"descending": descending})
    return run_node(lower_sort, graph, data, CAPS)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (5, 61), (2, 256), (2, 257), (3, 1031)])
@pytest.mark.parametrize("dtype", ["float", "few", "int"])
def test_sort(shape, dtype, descending):
    rng = np.random.default_rng(5)
    x = rng.standard_normal(shape).astype(np.float32)
    if dtype == "few":  # many equal values and all kinds of special values
        x = rng.choice(np.float32([np.nan, np.inf, -np.inf, 0, -0.0, 1, -1, 1e-42, -1e-42]), shape)
    if dtype == "int":
        x = rng.choice(np.array([-(2**31), 2**31 - 1, 0, -1, 5, 7, -9], np.int32), shape)
    values, positions = run_sort(x, descending)
    want = torch.sort(torch.tensor(x), stable=True, descending=descending)
    np.testing.assert_array_equal(positions, want.indices.numpy())
    np.testing.assert_array_equal(values, want.values.numpy())


SCAN = {
    "add": torch.cumsum,
    "mul": torch.cumprod,
    "max": lambda x, d: torch.cummax(x, d).values,
    "min": lambda x, d: torch.cummin(x, d).values,
}


@pytest.mark.parametrize("mode", list(SCAN))
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 7, 5), (2, 521, 3), (1, 70001, 1), (1200, 300, 1)])
@pytest.mark.parametrize("dtype, reverse", [("f32", False), ("f32", True), ("i32", True)])
def test_scan(shape, mode, dtype, reverse):
    rng = np.random.default_rng(6)
    x = rng.standard_normal(shape).astype(np.float32)
    if mode == "mul":
        x = (1 + x / 30).astype(np.float32)
    if dtype == "i32":
        x = rng.integers(1, 3, shape, np.int32) if mode == "mul" else (x * 100).astype(np.int32)
    graph, data = make("scan", [x], None, [(shape, dtype)], {"mode": mode, "reverse": reverse})
    (got,) = run_node(lower_scan, graph, data, CAPS)
    wide = torch.tensor(x).double() if dtype == "f32" else torch.tensor(x).long()
    want = SCAN[mode](wide.flip(1) if reverse else wide, 1)
    want = (want.flip(1) if reverse else want).numpy()
    if dtype == "i32":  # Products wrap around, as PyTorch's do at 64 bits.
        np.testing.assert_array_equal(got, want.astype(np.int32))
    else:
        assert error(got, want) < 1e-5


@pytest.mark.parametrize("mode", ["max", "min"])
@pytest.mark.parametrize("n", [9, 1001])
def test_scan_keeps_nan(mode, n):
    x = np.random.default_rng(7).standard_normal((1, n, 1)).astype(np.float32)
    x[0, n // 2] = np.nan
    graph, data = make("scan", [x], None, [(x.shape, "f32")], {"mode": mode, "reverse": False})
    (got,) = run_node(lower_scan, graph, data, CAPS)
    np.testing.assert_array_equal(got, SCAN[mode](torch.tensor(x), 1).numpy())


def test_empty():
    x = np.zeros((2, 0, 3), np.float32)
    graph, _ = make("scan", [x], None, [(x.shape, "f32")], {"mode": "add", "reverse": False})
    assert lower_scan(graph.nodes[0], graph, CAPS).launches == ()
    x = np.zeros((2, 0), np.float32)
    graph, _ = make("sort", [x], None, [(x.shape, "f32"), (x.shape, "i32")], {"descending": False})
    assert lower_sort(graph.nodes[0], graph, CAPS).launches == ()


@pytest.mark.parametrize("defines", ["", "-DFLOAT=0 -DMODE=3"])
def test_the_file_compiles_alone(defines):
    cl.Program(queue().context, read_cl("order.cl")).build(defines)

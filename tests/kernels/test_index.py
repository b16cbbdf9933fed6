"""Compares scatter and assign with plain loops in numpy and torch."""

from __future__ import annotations

import numpy as np
import pyopencl as cl
import pytest
import torch

from handheld.errors import PlanError
from handheld.kernels.base import read_cl
from handheld.kernels.index import lower_assign, lower_scatter
from helpers.harness import caps_of_kind, error, make, queue, run_node, view


def reference(index, src, base, v, mode):
    """The definition of scatter as a loop in order of k; index and src are [o, k, i]."""
    o, k, i = src.shape
    wide = np.float64 if src.dtype.kind == "f" else src.dtype
    out = np.zeros((o, v, i), wide) if base is None else base.astype(wide)
    for a in range(o):
        for b in range(k):
            for c in range(i):
                row = index[a, b, c]
                if 0 <= row < v:
                    out[a, row, c] = src[a, b, c] + (out[a, row, c] if mode == "add" else 0)
    return out


def values(rng, shape, dtype):
    if dtype == "f32":
        return rng.standard_normal(shape).astype(np.float32)
    return rng.integers(-50, 50, shape, np.int32) if dtype == "i32" else rng.random(shape) < 0.5


def check(index, src, base, *, v, mode, dtype, kind="cpu", views=None, full_index):
    arrays = [index, src] if base is None else [index, src, base]
    shape = (full_index.shape[0], v, full_index.shape[2])
    graph, data = make(
        "scatter", arrays, views, [(shape, dtype)], {"mode": mode, "base": base is not None, "shape": shape}
    )
    (got,) = run_node(lower_scatter, graph, data, caps_of_kind(kind))
    want = reference(full_index, src, base, v, mode)
    if dtype == "f32":
        assert error(got, want) < 1e-5
    else:
        np.testing.assert_array_equal(got, want)


# o, v, k, i
SHAPES = [(1, 1, 1, 1), (2, 7, 5, 3), (3, 5, 67, 1), (1, 11, 301, 5), (2, 3, 0, 4)]


@pytest.mark.parametrize(
    "mode, dtype, has_base", [("add", "f32", True), ("add", "i32", False), ("set", "f32", False), ("set", "bool", True)]
)
@pytest.mark.parametrize("o, v, k, i", SHAPES)
def test_scatter_an_index_for_each_element(*, o, v, k, i, mode, dtype, has_base):
    rng = np.random.default_rng(8)
    index = rng.integers(-2, v + 1, (o, k, i), np.int32)  # Positions out of range are ignored.
    base = values(rng, (o, v, i), dtype) if has_base else None
    check(index, values(rng, (o, k, i), dtype), base, v=v, mode=mode, dtype=dtype, full_index=index)


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize("mode, has_base", [("add", False), ("add", True), ("set", True)])
@pytest.mark.parametrize("o, v, k, i", [(1, 31, 17, 37), (1, 13, 641, 67), (2, 5, 400, 16), (1, 1, 40, 200)])
def test_scatter_an_index_for_each_row(*, o, v, k, i, mode, has_base, kind):
    rng = np.random.default_rng(9)
    index = rng.integers(0, v, (o, k), np.int32)
    base = values(rng, (o, v, i), "f32") if has_base else None
    views = [lambda t: view(t, (o, k, i), (k, 1, 0)), None, None]
    full = np.broadcast_to(index[:, :, None], (o, k, i))
    check(
        index, values(rng, (o, k, i), "f32"), base, v=v, mode=mode, dtype="f32", kind=kind, views=views, full_index=full
    )


@pytest.mark.parametrize("k", [9, 71])
def test_scatter_through_views(k):
    """All operands are transposed and have an offset."""
    o, v, i = 2, 6, 35
    rng = np.random.default_rng(10)
    index = rng.integers(0, v, (o, k), np.int32)
    src, base = values(rng, (o, k, i), "f32"), values(rng, (o, v, i), "f32")
    arrays = [
        np.concatenate([[[99] * o], index.T]).astype(np.int32),
        np.concatenate([np.ones((1, k, o), np.float32), src.transpose(2, 1, 0)]),
        base.transpose(1, 2, 0),
    ]
    views = [
        lambda t: view(t, (o, k, i), (1, o, 0), o),
        lambda t: view(t, (o, k, i), (1, o, o * k), o * k),
        lambda t: view(t, (o, v, i), (1, o * i, o)),
    ]
    graph, data = make(
        "scatter", arrays, views, [((o, v, i), "f32")], {"mode": "add", "base": True, "shape": (o, v, i)}
    )
    (got,) = run_node(lower_scatter, graph, data, caps_of_kind())
    full = np.broadcast_to(index[:, :, None], (o, k, i))
    assert error(got, reference(full, src, base, v, "add")) < 1e-5


@pytest.mark.parametrize("i", [1, 16])
def test_scatter_many_to_one_row_stays_exact(i):
    k = 20011  # Plain float32 addition in order would have an error of 1e-4.
    index, src = np.zeros((1, k, 1), np.int32), np.full((1, k, i), 0.1, np.float32)
    views = [lambda t: view(t, (1, k, i), (k, 1, 0)), None]
    graph, data = make(
        "scatter", [index, src], views, [((1, 1, i), "f32")], {"mode": "add", "base": False, "shape": (1, 1, i)}
    )
    (got,) = run_node(lower_scatter, graph, data, caps_of_kind())
    assert error(got, src.astype(np.float64).sum(1, keepdims=True)) < 1e-5


def test_scatter_refuses_to_add_booleans():
    graph, _ = make(
        "scatter",
        [np.zeros((1, 1, 1), np.int32), np.zeros((1, 1, 1), bool)],
        None,
        [((1, 1, 1), "bool")],
        {"mode": "add", "base": False, "shape": (1, 1, 1)},
    )
    with pytest.raises(PlanError, match="booleans"):
        lower_scatter(graph.nodes[0], graph, caps_of_kind())


# base shape, slices of the region, permutation of the value's axes
REGIONS = [
    ((7,), (slice(2, 5),), (0,)),
    ((5, 11), (slice(None), slice(1, 10, 3)), (1, 0)),
    ((3, 5, 7), (slice(1, 3), slice(None), slice(None)), (2, 0, 1)),
    ((2, 3, 5, 7, 4), (slice(0, 1), slice(1, 3), slice(0, 5, 2), slice(2, 7), slice(0, 4, 3)), (4, 2, 0, 1, 3)),
    ((3, 5), (slice(None), slice(None)), (0, 1)),
    ((2, 700), (slice(None), slice(1, 612)), (0, 1)),
    ((3, 5), (slice(0, 0), slice(None)), (0, 1)),
]


@pytest.mark.parametrize("dtype, kind", [("f32", "cpu"), ("i32", "gpu"), ("bool", "cpu")])
@pytest.mark.parametrize("shape, region, axes", REGIONS)
def test_assign(shape, region, axes, dtype, kind):
    rng = np.random.default_rng(11)
    base = values(rng, shape, dtype)
    want = torch.tensor(base)
    part = want[region]
    value = values(rng, tuple(part.shape[a] for a in axes), dtype)
    back = tuple(np.argsort(axes))
    steps = [n // value.itemsize for n in value.transpose(back).strides]
    attrs = {"region_shape": tuple(part.shape), "region_strides": part.stride(), "region_offset": part.storage_offset()}
    graph, data = make("assign", [base, value], [None, lambda t: view(t, part.shape, steps)], [(shape, dtype)], attrs)
    part.copy_(torch.tensor(value.transpose(back).copy()))
    (got,) = run_node(lower_assign, graph, data, caps_of_kind(kind))
    np.testing.assert_array_equal(got, want.numpy())


def test_assign_one_value_to_a_whole_region():
    base = np.zeros((4, 6), np.float32)
    attrs = {"region_shape": (2, 3), "region_strides": (12, 2), "region_offset": 1}
    graph, data = make(
        "assign", [base, np.float32([5])], [None, lambda t: view(t, (2, 3), (0, 0))], [((4, 6), "f32")], attrs
    )
    (got,) = run_node(lower_assign, graph, data, caps_of_kind())
    base[::2, 1::2] = 5
    np.testing.assert_array_equal(got, base)


def test_empty():
    index, src = np.zeros((1, 3, 0), np.int32), np.zeros((1, 3, 0), np.float32)
    graph, _ = make(
        "scatter", [index, src], None, [((1, 4, 0), "f32")], {"mode": "add", "base": False, "shape": (1, 4, 0)}
    )
    assert lower_scatter(graph.nodes[0], graph, caps_of_kind()).launches == ()


@pytest.mark.parametrize("defines", ["", "-DELEM=uchar -DADD=0 -DRANK=8"])
def test_the_file_compiles_alone(defines):
    cl.Program(queue().context, read_cl("index.cl")).build(defines)

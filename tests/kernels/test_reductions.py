"""Reductions: extremes, NaN, long sums, rows of every length, softmax."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from handheld.graph.graph import Graph, GraphInput, Node, Origin, Tensor, View, contiguous_strides
from handheld.graph.program import Builder, Store
from handheld.plan.lowering import lower
from helpers.harness import caps_of_kind, error, run_node
from helpers.loop_nodes import one_reduction

#: lengths around the blocks of 16 and 32 and the runs of 1024 and 2048 elements
LENGTHS = (1, 2, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 100, 1023, 1025, 2050, 4099)


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_extremes_find_the_first(kind: str, axes: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).integers(0, 4, (37, 41)).astype(np.float32)
    flat = np.moveaxis(array, axes, range(-len(axes), 0)).reshape(
        *(n for d, n in enumerate(array.shape) if d not in axes), -1
    )
    assert (one_reduction("arg_max", array, axes, kind) == flat.argmax(-1)).all()
    assert (one_reduction("arg_min", array, axes, kind) == flat.argmin(-1)).all()


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_nan_and_infinity(kind: str) -> None:
    array = np.zeros((3, 50), np.float32)
    array[0, 7], array[1, :], array[2, 3] = np.nan, -np.inf, np.inf
    top = one_reduction("max_of", array, (1,), kind)
    assert np.isnan(top[0]) and top[1] == -np.inf and top[2] == np.inf
    assert list(one_reduction("arg_max", array, (1,), kind)) == [7, 0, 3]


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize("axis", [0, 1])
def test_of_several_nans_the_first_is_found(kind: str, axis: int) -> None:
    """This holds for any order in which partial results are combined, as in numpy and PyTorch."""
    rng = np.random.default_rng(4)
    for length in (3, 15, 32, 75, 300, 4097):
        array = rng.standard_normal((5, length)).astype(np.float32)
        array[rng.random(array.shape) < 3 / length] = np.nan
        array = array if axis else np.ascontiguousarray(array.T)
        for op, function in (("arg_max", np.argmax), ("arg_min", np.argmin)):
            assert (one_reduction(op, array, (axis,), kind) == function(array, axis)).all(), length


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize("axes", [(0,), (1,)])
def test_long_sums_stay_accurate(kind: str, axes: tuple[int, ...]) -> None:
    array = np.random.default_rng(1).random((70000, 8) if axes == (0,) else (3, 200000)).astype(np.float32)
    want = array.astype(np.float64).sum(axes)
    assert error(one_reduction("sum", array, axes, kind), want) < 1e-6


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_a_reduction_over_nothing_is_neutral(kind: str) -> None:
    array = np.zeros((3, 0), np.float32)
    assert (one_reduction("sum", array, (1,), kind) == 0).all()
    assert (one_reduction("max_of", array, (1,), kind) == -np.inf).all()
    assert one_reduction("sum", np.zeros((0, 4), np.float32), (1,), kind).shape == (0,)


@pytest.mark.parametrize("length", LENGTHS)
def test_rows_of_every_length(length: int) -> None:
    array = np.random.default_rng(length).uniform(0.98, 1.02, (3, length)).astype(np.float32)
    for op, function in (
        ("sum", np.sum),
        ("prod", np.prod),
        ("max_of", np.max),
        ("min_of", np.min),
        ("arg_max", np.argmax),
        ("arg_min", np.argmin),
    ):
        for x in (array, -array):
            got = one_reduction(op, x, (1,), "cpu")
            assert error(got, function(x.astype(np.float64), 1)) < 1e-5, op
    array[0, -1] = array[1, length // 2] = array[2, 0] = np.nan
    for op in ("sum", "prod", "max_of", "min_of"):
        assert np.isnan(one_reduction(op, array, (1,), "cpu")).all(), op
    whole = np.random.default_rng(1).integers(-9, 9, (3, length)).astype(np.int32)
    for op, function in (("sum", np.sum), ("max_of", np.max), ("arg_min", np.argmin)):
        got = one_reduction(op, whole, (1,), "cpu", "i32")
        assert (got == function(whole, 1)).all(), op


def softmax(shape: tuple[int, ...], axes: tuple[int, ...], times_x: bool) -> Node:
    builder = Builder()
    x = builder.load(0, "f32")
    e = builder.op("exp", "f32", builder.op("sub", "f32", x, builder.op("max_of", "f32", x)))
    y = builder.op("div", "f32", e, builder.op("sum", "f32", e))
    y = builder.op("mul", "f32", x, y) if times_x else y
    attrs = {"shape": shape, "axes": axes, "program": builder.program, "stores": (Store(y),)}
    view = View(0, shape, contiguous_strides(shape))
    return Node("reduce", (view,), (1,), attrs, Origin("forward", "t", "t"))


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize("times_x", [False, True])
@pytest.mark.parametrize("inner", [*((n,) for n in LENGTHS), (3, 5), (2, 40), (3, 33)])
def test_a_softmax_in_place(inner: tuple[int, ...], times_x: bool, kind: str) -> None:
    """Exponentials are kept in the output for the last pass only if that pass reads nothing else."""
    shape, axes = (3, *inner), tuple(range(1, 1 + len(inner)))
    node = softmax(shape, axes, times_x)
    tensors = {i: Tensor(i, shape, "f32", "input") for i in range(2)}
    graph = Graph("t", tensors, (node,), (GraphInput("x", 0, "float32"),), {}, (), ())
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    want = torch.from_numpy(x).double().flatten(1).softmax(1).numpy().reshape(shape)
    got = run_node(lower, graph, {0: x}, caps_of_kind(kind), in_place={1: 0})[0]
    assert error(got, want * x if times_x else want) < 1e-6


def test_exponentials_are_computed_once_where_they_can_be_kept() -> None:
    """The program has text for whole blocks and for the last block, and again for the last pass."""
    counts = []
    for times_x in (False, True):
        node = softmax((3, 64), (1,), times_x)
        tensors = {i: Tensor(i, (3, 64), "f32", "input") for i in range(2)}
        graph = Graph("t", tensors, (node,), (GraphInput("x", 0, "float32"),), {}, (), ())
        source = lower(node, graph, caps_of_kind("cpu")).launches[0].text
        counts.append(source.partition("__kernel")[2].count("f_exp("))
    assert counts == [2, 3]

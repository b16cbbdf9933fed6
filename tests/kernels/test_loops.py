"""Compares generated map and reduce kernels with the reference on random programs and shapes."""

from __future__ import annotations

import numpy as np
import pytest

from handheld.device import DeviceCaps
from handheld.graph.graph import Graph, GraphInput, Node, Origin, Tensor, View, contiguous_strides
from handheld.graph.program import Builder, Store
from handheld.kernels import loops, rows_chunks, rows_shape
from handheld.kernels.base import Buffer
from handheld.plan.lowering import lower
from helpers.harness import caps_of_kind, error, make, run_node
from helpers.loop_nodes import one_reduction, random_node, run_case


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize("seed", range(24))
def test_random_programs(seed: int, kind: str) -> None:
    run_case(seed, kind)


def test_a_sum_over_rows_of_one_element() -> None:
    """The 6,851 elements are not adjacent in memory; the sum still has two levels."""
    run_case(9129, "cpu")


@pytest.mark.parametrize("seed", range(6))
def test_small_work_groups(seed: int) -> None:
    run_case(1000 + seed, "gpu", work_group=(8, 1)[seed % 2])


def test_random_maps_of_several_points_an_item(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for large maps: groups of 8 items, and 4 points per item, or 2 in long programs."""
    monkeypatch.setattr(loops, "FULL", 0)
    seen = set()
    for seed in range(4000, 4080):
        graph, _ = random_node(np.random.default_rng(seed))
        if graph.nodes[0].op == "map":
            monkeypatch.setattr(loops, "LONG", (24, 3)[seed % 2])
            run_case(seed, "gpu", work_group=8)
            (launch,) = lower(graph.nodes[0], graph, caps_of_kind("gpu")).launches
            seen.add(launch.kernel)
    assert seen == {"map_4_points", "map_2_points"}


@pytest.mark.parametrize("size", [1, 511, 512, 513, 4096, 5000])
def test_several_points_in_place(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "FULL", 0)
    builder = Builder()
    x = builder.load(0, "f32", (), 0)
    y = builder.op("add", "f32", builder.op("mul", "f32", x, x), builder.const(1.0, "f32"))
    attrs = {"shape": (size,), "axes": (), "program": builder.program, "stores": (Store(y),)}
    data = np.linspace(-2, 2, size, dtype=np.float32)
    graph, values = make("map", [data], None, [((size,), "f32")], attrs)
    (got,) = run_node(lower, graph, values, caps_of_kind("gpu"), in_place={1: 0})
    np.testing.assert_allclose(got, data * data + 1, rtol=1e-6)


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize("width", [1, 3, 16, 40, 2048, 2100])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_rows_of_a_table_and_positions_outside(kind: str, width: int, dtype: type) -> None:
    """A row that is completely inside the table is read directly; otherwise every position is clamped."""
    builder = Builder()
    row = builder.op("mul", "i32", builder.load(0, "i32", (), 0), builder.const(width, "i32"))
    at = builder.op("add", "i32", row, builder.op("iota", "i32", params=(1,)))
    y = builder.op("gather", "f32", at, params=(1,))
    rows = np.array([0, 4, 2, -1, 5, 2**30, -(2**20), 3], np.int32)
    table = np.random.default_rng(0).standard_normal((5, width)).astype(dtype)
    attrs = {"shape": (len(rows), width), "axes": (), "program": builder.program, "stores": (Store(y),)}
    views = [lambda t: View(t.id, (len(rows), width), (1, 0), 0), None]
    graph, values = make("map", [rows, table], views, [((len(rows), width), "f32")], attrs)
    (got,) = run_node(lower, graph, values, caps_of_kind(kind))
    with np.errstate(over="ignore"):
        flat = (rows * np.int32(width))[:, None] + np.arange(width, dtype=np.int32)
    want = table.reshape(-1)[np.clip(flat, 0, table.size - 1)]
    np.testing.assert_array_equal(got, want.astype(np.float32))


def test_random_programs_where_rows_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_shape, "MANY", 0)
    for seed in range(5000, 5024):
        run_case(seed, "gpu")


@pytest.fixture
def chunks(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Forces even short rows to be split between work-groups."""
    for name, value in (("SPLIT_WORK", 1), ("SPLIT_CHAIN", 2), ("SPLIT_TERMS", 1)):
        monkeypatch.setattr(rows_shape, name, value)
    return {"compute_units": 1000}


def test_random_programs_in_chunks(chunks: dict[str, int]) -> None:
    launches = [run_case(seed, "gpu", (8, 2, 32)[seed % 3], **chunks) for seed in range(2000, 2030)]
    assert sum(n > 1 for n in launches) > 10 and max(launches) > 2


@pytest.fixture
def cpu_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("LEAST", 1), ("TERMS_LEAST", 1), ("TERMS", 5), ("TILE", 8), ("JOIN", 4)):
        monkeypatch.setattr(rows_chunks, name, value)


def test_random_programs_in_chunks_on_a_cpu(cpu_chunks: None) -> None:
    def in_two(seed: int) -> bool:
        graph, _ = random_node(np.random.default_rng(seed))
        return len(lower(graph.nodes[0], graph, caps_of_kind("cpu")).launches) == 2

    seeds = [seed for seed in range(3000, 3600) if in_two(seed)]
    assert len(seeds) >= 8
    for seed in seeds[:12]:
        run_case(seed, "cpu")


@pytest.mark.parametrize("shape", [(3000, 41), (70, 50, 33), (257, 9000)])
@pytest.mark.parametrize("dtype", ["f32", "i32"])
def test_sums_of_columns_in_chunks(shape: tuple[int, ...], dtype: str) -> None:
    array = np.random.default_rng(3).integers(-9, 9, shape)
    array = array.astype(np.float32 if dtype == "f32" else np.int32)
    axes = tuple(range(len(shape) - 1))
    for op, function in (("sum", np.sum), ("max_of", np.max)):
        got = one_reduction(op, array, axes, "cpu", dtype, compute_units=2)
        assert (got == function(array, axes)).all()


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(400, 300), (37, 41), (5, 3)])
def test_one_walk_writes_what_depends_on_no_sum(shape: tuple[int, ...], axis: int) -> None:
    """Results in place of an input: by chunks, by columns and by rows."""
    builder = Builder()
    y = builder.op("tanh", "f32", builder.load(0, "f32"))
    stores = (Store(y), Store(builder.op("sum", "f32", y), full=False))
    attrs = {"shape": shape, "axes": (axis,), "program": builder.program, "stores": stores}
    array = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    graph, data = make("reduce", [array], None, [(shape, "f32"), ((shape[1 - axis],), "f32")], attrs)
    got = run_node(lower, graph, data, caps_of_kind("cpu"), in_place={1: 0})
    want = np.tanh(array.astype(np.float64))
    assert error(got[0], want) < 1e-6 and error(got[1], want.sum(axis)) < 1e-6
    for launch in lower(graph.nodes[0], graph, caps_of_kind("cpu")).launches[:1]:
        text = launch.text.partition("__kernel")[2]
        assert text.count("f_tanh(") == (2 if axis and shape[1] >= 16 else 1)


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_extremes_in_chunks(axes: tuple[int, ...], chunks: dict[str, int]) -> None:
    array = np.random.default_rng(0).integers(0, 4, (37, 41)).astype(np.float32)
    array[5, 7] = np.nan
    flat = np.moveaxis(array, axes, range(-len(axes), 0)).reshape(
        *(n for d, n in enumerate(array.shape) if d not in axes), -1
    )
    got = one_reduction("arg_max", array, axes, "gpu", max_work_group=8, **chunks)
    assert (got == flat.argmax(-1)).all()


def big_gpu() -> DeviceCaps:
    return caps_of_kind("gpu", max_work_group=1024, local_mem_bytes=48 << 10, compute_units=132)


def norm_gradient(n: int, c: int, m: int) -> Graph:
    """Batch norm backward over [n, c, m]: dx per element, dgamma and dbeta per row."""
    shape, axes, builder = (n, c, m), (0, 2), Builder()
    dy, x, mean, scale = (builder.load(k, "f32") for k in range(4))
    hat = builder.op("mul", "f32", builder.op("sub", "f32", x, mean), scale)
    dbeta = builder.op("sum", "f32", dy)
    dgamma = builder.op("sum", "f32", builder.op("mul", "f32", dy, hat))
    dx = builder.op("sub", "f32", dy, builder.op("mul", "f32", hat, dgamma))
    dx = builder.op("mul", "f32", builder.op("sub", "f32", dx, dbeta), scale)
    tensors = {i: Tensor(i, shape if i in (0, 1, 4) else (c,), "f32", "input") for i in range(7)}
    dense = contiguous_strides(shape)
    views = tuple(View(k, shape, dense if k < 2 else (0, 1, 0)) for k in range(4))
    attrs = {
        "shape": shape,
        "axes": axes,
        "program": builder.program,
        "stores": (Store(dx), Store(dgamma, full=False), Store(dbeta, full=False)),
    }
    node = Node("reduce", views, (4, 5, 6), attrs, Origin("backward", "t", "t"))
    inputs = tuple(GraphInput(f"x{i}", i, "float32") for i in range(4))
    return Graph("t", tensors, (node,), inputs, {}, (), ())


def test_long_rows_of_many_stages_are_split() -> None:
    graph = norm_gradient(32, 8, 1024)
    rng = np.random.default_rng(2)
    data = {i: rng.standard_normal(graph.tensors[i].shape).astype(np.float32) for i in range(4)}
    want = run_node(lower, graph, data, caps_of_kind("cpu"))
    got = run_node(lower, graph, data, big_gpu())
    assert max(error(g, w) for g, w in zip(got, want, strict=True)) < 1e-5
    launches = lower(graph.nodes[0], graph, big_gpu()).launches
    assert len(launches) == 2 and launches[0].global_size == (8 * 512, 8)


def test_a_last_walk_reads_no_operand_of_a_row() -> None:
    """A result of the row may share the operand's memory, and another group may have stored it already."""
    graph = norm_gradient(32, 8, 1024)
    first, last = lower(graph.nodes[0], graph, big_gpu()).launches
    assert {Buffer(k) for k in range(4)} <= set(first.args)
    assert set(last.args) & {Buffer(k) for k in range(4)} == {Buffer(0), Buffer(1)}


def test_rows_that_fill_the_gpu_are_not_split() -> None:
    for n, c, m in ((32, 96, 256), (32, 512, 16), (32, 384, 4)):
        graph = norm_gradient(n, c, m)
        assert len(lower(graph.nodes[0], graph, big_gpu()).launches) == 1


def test_column_sums_are_split() -> None:
    """Two launches; the first one stores the results that depend on no sum."""
    shape, builder = (2048, 256), Builder()
    y = builder.op("tanh", "f32", builder.load(0, "f32"))
    stores = (Store(y), Store(builder.op("sum", "f32", y), full=False))
    attrs = {"shape": shape, "axes": (0,), "program": builder.program, "stores": stores}
    array = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    graph, data = make("reduce", [array], None, [(shape, "f32"), ((256,), "f32")], attrs)
    got = run_node(lower, graph, data, big_gpu())
    want = np.tanh(array.astype(np.float64))
    assert error(got[0], want) < 1e-6 and error(got[1], want.sum(0)) < 1e-6
    first, last = lower(graph.nodes[0], graph, big_gpu()).launches
    assert first.global_size[0] * first.global_size[1] // first.local_size[0] == 128
    assert Buffer(1) in first.args and Buffer(1) not in last.args

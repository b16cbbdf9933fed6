"""Generated map and reduce kernels against the reference, on random programs and shapes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from handheld.backends.reference.ops import run_node as reference
from handheld.device import DeviceCaps
from handheld.graph.check import check
from handheld.graph.graph import Graph, Node, Origin, Tensor, View, contiguous_strides
from handheld.graph.program import Builder
from handheld.kernels import loops, rows_chunks, rows_shape
from handheld.kernels.base import Buffer
from handheld.plan.lowering import lower
from helpers.harness import caps_of_kind, error, make, run_node

SIZES = (1, 2, 3, 5, 7, 13, 17, 31)
#: around blocks of 16 and 32 and runs of 1024 and 2048 elements
LENGTHS = (1, 2, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 100, 1023, 1025, 2050, 4099)
SMOOTH = ("exp", "tanh", "sigmoid", "sin", "erf", "neg", "abs")


def random_view(rng: np.random.Generator, shape: tuple[int, ...], number: int) -> tuple[Tensor, View]:
    """An operand over `shape`: dense, broadcast, transposed or a slice of something larger."""
    kind = rng.integers(4)
    if kind == 0 or not shape:
        return Tensor(number, shape, "f32", "input"), View(number, shape, contiguous_strides(shape))
    if kind == 1:
        keep = [bool(rng.integers(2)) for _ in shape]
        small = tuple(n for n, k in zip(shape, keep, strict=True) if k)
        packed = iter(contiguous_strides(small))
        strides = tuple(next(packed) if k else 0 for k in keep)
        return Tensor(number, small, "f32", "input"), View(number, shape, strides)
    if kind == 2:
        order = rng.permutation(len(shape))
        physical = tuple(shape[d] for d in order)
        strides = [0] * len(shape)
        for d, s in zip(order, contiguous_strides(physical), strict=True):
            strides[d] = s
        return Tensor(number, physical, "f32", "input"), View(number, shape, tuple(strides))
    larger = tuple(n + int(rng.integers(3)) for n in shape)
    dense = contiguous_strides(larger)
    offset = sum(int(rng.integers(b - n + 1)) * s for n, b, s in zip(shape, larger, dense, strict=True))
    return Tensor(number, larger, "f32", "input"), View(number, shape, dense, offset)


def random_node(rng: np.random.Generator) -> tuple[Graph, dict[int, np.ndarray]]:
    shape = tuple(int(rng.choice(SIZES)) for _ in range(rng.integers(0, 5)))
    axes = tuple(d for d in range(len(shape)) if rng.integers(2))
    tensors, inputs, data = {}, [], {}
    for number in range(rng.integers(1, 5)):
        tensors[number], view = random_view(rng, shape, number)
        inputs.append(view)
        data[number] = rng.standard_normal(tensors[number].shape).astype(np.float32)
    builder = Builder()
    full = [builder.load(k, "f32", *_guards(rng, shape)) for k in range(len(inputs))]
    rows: list[int] = []
    for _ in range(rng.integers(1, 8)):
        a, b = int(rng.choice(full)), int(rng.choice(full + rows))
        choice = rng.integers(6)
        if choice == 0:
            full.append(builder.op(str(rng.choice(SMOOTH)), "f32", builder.op("tanh", "f32", a)))
        elif choice == 1 and axes:
            op = str(rng.choice(["sum", "max_of", "min_of"]))
            scaled = builder.op("mul", "f32", builder.op("tanh", "f32", a), builder.const(0.25, "f32"))
            rows.append(builder.op(op, "f32", scaled))
        elif choice == 2 and shape:
            d = int(rng.integers(len(shape)))
            near = builder.op(
                "lt",
                "bool",
                builder.op("iota", "i32", params=(d,)),
                builder.const(int(rng.integers(shape[d] + 1)), "i32"),
            )
            full.append(builder.op("where", "f32", near, a, b))
        elif choice == 3:
            noise = builder.op(
                "random",
                "f32",
                builder.op("index", "i32"),
                builder.const(5, "i32"),
                builder.const(7, "i32"),
                params=(int(rng.integers(100)),),
            )
            full.append(builder.op("add", "f32", a, noise))
        else:
            full.append(builder.op(str(rng.choice(["add", "sub", "mul", "max", "min"])), "f32", a, b))
    stores = [(full[-1], True)] + [(r, False) for r in rows]
    if axes and not rows:
        rows.append(builder.op("sum", "f32", full[-1]))
        stores = [(rows[-1], False)]
    outer = tuple(n for d, n in enumerate(shape) if d not in axes)
    outputs = []
    for _, is_full in stores:
        number = len(tensors)
        tensors[number] = Tensor(number, shape if is_full else outer, "f32", "activation")
        outputs.append(number)
    attrs = {"shape": shape, "axes": axes if rows else (), "program": builder.program, "stores": tuple(stores)}
    node = Node("reduce" if rows else "map", tuple(inputs), tuple(outputs), attrs, Origin("forward", "t", "t"))
    graph = Graph(
        "t",
        tensors,
        (node,),
        tuple((f"x{i}", i, "float32") for i in data),
        {},
        (),
        tuple((f"y{i}", View(i, tensors[i].shape, contiguous_strides(tensors[i].shape)), "float32") for i in outputs),
    )
    return check(graph), data


def _guards(rng: np.random.Generator, shape: tuple[int, ...]):
    if not shape or rng.integers(4):
        return ((), 0)
    d = int(rng.integers(len(shape)))
    low, high = sorted(int(v) for v in rng.integers(0, shape[d] + 1, 2))
    return (((d, low, high),), -1.5)


def run_case(seed: int, kind: str, work_group: int = 128, **change: int) -> int:
    """How many launches it took."""
    rng = np.random.default_rng(seed)
    graph, data = random_node(rng)
    node = graph.nodes[0]
    values = {i: torch.from_numpy(a).double() for i, a in data.items()}
    want = reference(node, graph, values, torch.float64)
    caps = caps_of_kind(kind, max_work_group=work_group, **change)
    got = run_node(lower, graph, data, caps)
    for g, w in zip(got, want, strict=True):
        assert g.shape == tuple(w.shape)
        assert error(g, w.numpy()) < 1e-5, (seed, kind)
    return len(lower(node, graph, caps).launches)


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize("seed", range(24))
def test_random_programs(seed: int, kind: str) -> None:
    run_case(seed, kind)


def test_a_sum_over_rows_of_one_element() -> None:
    """6,851 of them, which do not lie side by side: the sum still has two levels."""
    run_case(9129, "cpu")


@pytest.mark.parametrize("seed", range(6))
def test_small_work_groups(seed: int) -> None:
    run_case(1000 + seed, "gpu", work_group=(8, 1)[seed % 2])


def test_random_maps_of_several_points_an_item(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where there are many, with groups of 8 and 4 points an item, 2 of long programs."""
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
    attrs = {"shape": (size,), "axes": (), "program": builder.program, "stores": ((y, True),)}
    data = np.linspace(-2, 2, size, dtype=np.float32)
    graph, values = make("map", [data], None, [((size,), "f32")], attrs)
    (got,) = run_node(lower, graph, values, caps_of_kind("gpu"), in_place={1: 0})
    np.testing.assert_allclose(got, data * data + 1, rtol=1e-6)


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize("width", [1, 3, 16, 40, 2048, 2100])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_rows_of_a_table_and_positions_outside(kind: str, width: int, dtype: type) -> None:
    """Where all of a row is inside it is read as it lies; else every position is held inside."""
    builder = Builder()
    row = builder.op("mul", "i32", builder.load(0, "i32", (), 0), builder.const(width, "i32"))
    at = builder.op("add", "i32", row, builder.op("iota", "i32", params=(1,)))
    y = builder.op("gather", "f32", at, params=(1,))
    rows = np.array([0, 4, 2, -1, 5, 2**30, -(2**20), 3], np.int32)
    table = np.random.default_rng(0).standard_normal((5, width)).astype(dtype)
    attrs = {"shape": (len(rows), width), "axes": (), "program": builder.program, "stores": ((y, True),)}
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
    """Rows of a few elements are split between work-groups."""
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
    """In place: by chunks, by columns and by rows."""
    builder = Builder()
    y = builder.op("tanh", "f32", builder.load(0, "f32"))
    stores = ((y, True), (builder.op("sum", "f32", y), False))
    attrs = {"shape": shape, "axes": (axis,), "program": builder.program, "stores": stores}
    array = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    graph, data = make("reduce", [array], None, [(shape, "f32"), ((shape[1 - axis],), "f32")], attrs)
    got = run_node(lower, graph, data, caps_of_kind("cpu"), in_place={1: 0})
    want = np.tanh(array.astype(np.float64))
    assert error(got[0], want) < 1e-6 and error(got[1], want.sum(axis)) < 1e-6
    for launch in lower(graph.nodes[0], graph, caps_of_kind("cpu")).launches[:1]:
        text = launch.source.partition("__kernel")[2]
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
    """Batch norm backward over [n, c, m]: dx of every element, dgamma and dbeta of every row."""
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
        "stores": ((dx, True), (dgamma, False), (dbeta, False)),
    }
    node = Node("reduce", views, (4, 5, 6), attrs, Origin("backward", "t", "t"))
    inputs = tuple((f"x{i}", i, "float32") for i in range(4))
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
    """Its memory may be that of a result of the row, which another group may have stored."""
    graph = norm_gradient(32, 8, 1024)
    first, last = lower(graph.nodes[0], graph, big_gpu()).launches
    assert {Buffer(k) for k in range(4)} <= set(first.args)
    assert set(last.args) & {Buffer(k) for k in range(4)} == {Buffer(0), Buffer(1)}


def test_rows_that_fill_the_gpu_are_not_split() -> None:
    for n, c, m in ((32, 96, 256), (32, 512, 16), (32, 384, 4)):
        graph = norm_gradient(n, c, m)
        assert len(lower(graph.nodes[0], graph, big_gpu()).launches) == 1


def test_column_sums_are_split() -> None:
    """Two launches; what depends on no sum is stored by the first."""
    shape, builder = (2048, 256), Builder()
    y = builder.op("tanh", "f32", builder.load(0, "f32"))
    stores = ((y, True), (builder.op("sum", "f32", y), False))
    attrs = {"shape": shape, "axes": (0,), "program": builder.program, "stores": stores}
    array = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    graph, data = make("reduce", [array], None, [(shape, "f32"), ((256,), "f32")], attrs)
    got = run_node(lower, graph, data, big_gpu())
    want = np.tanh(array.astype(np.float64))
    assert error(got[0], want) < 1e-6 and error(got[1], want.sum(0)) < 1e-6
    first, last = lower(graph.nodes[0], graph, big_gpu()).launches
    assert first.global_size[0] * first.global_size[1] // first.local_size[0] == 128
    assert Buffer(1) in first.args and Buffer(1) not in last.args


def one_reduction(
    op: str, array: np.ndarray, axes: tuple[int, ...], kind: str, dtype: str = "f32", **change: int
) -> np.ndarray:
    shape = array.shape
    builder = Builder()
    result = builder.op(op, "i32" if op.startswith("arg") else dtype, builder.load(0, dtype))
    outer = tuple(n for d, n in enumerate(shape) if d not in axes)
    out = Tensor(1, outer, builder.program[result].dtype, "activation")
    attrs = {"shape": shape, "axes": axes, "program": builder.program, "stores": ((result, False),)}
    node = Node("reduce", (View(0, shape, contiguous_strides(shape)),), (1,), attrs, Origin("forward", "t", "t"))
    graph = Graph("t", {0: Tensor(0, shape, dtype, "input"), 1: out}, (node,), (("x", 0, "float32"),), {}, (), ())
    return run_node(lower, graph, {0: array}, caps_of_kind(kind, **change))[0]


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
    """Whatever the order in which partial results are joined; as numpy and PyTorch."""
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
    attrs = {"shape": shape, "axes": axes, "program": builder.program, "stores": ((y, True),)}
    view = View(0, shape, contiguous_strides(shape))
    return Node("reduce", (view,), (1,), attrs, Origin("forward", "t", "t"))


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize("times_x", [False, True])
@pytest.mark.parametrize("inner", [*((n,) for n in LENGTHS), (3, 5), (2, 40), (3, 33)])
def test_a_softmax_in_place(inner: tuple[int, ...], times_x: bool, kind: str) -> None:
    """Exponentials are kept in the output for the last walk only if that reads nothing else."""
    shape, axes = (3, *inner), tuple(range(1, 1 + len(inner)))
    node = softmax(shape, axes, times_x)
    tensors = {i: Tensor(i, shape, "f32", "input") for i in range(2)}
    graph = Graph("t", tensors, (node,), (("x", 0, "float32"),), {}, (), ())
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    want = torch.from_numpy(x).double().flatten(1).softmax(1).numpy().reshape(shape)
    got = run_node(lower, graph, {0: x}, caps_of_kind(kind), in_place={1: 0})[0]
    assert error(got, want * x if times_x else want) < 1e-6


def test_exponentials_are_computed_once_where_they_can_be_kept() -> None:
    """Text for whole blocks and for the last one, and again for the last walk."""
    counts = []
    for times_x in (False, True):
        node = softmax((3, 64), (1,), times_x)
        tensors = {i: Tensor(i, (3, 64), "f32", "input") for i in range(2)}
        graph = Graph("t", tensors, (node,), (("x", 0, "float32"),), {}, (), ())
        source = lower(node, graph, caps_of_kind("cpu")).launches[0].source
        counts.append(source.partition("__kernel")[2].count("f_exp("))
    assert counts == [2, 3]

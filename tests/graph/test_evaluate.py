"""Programs in NumPy: expected results of each instruction, and equality with PyTorch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from handheld.backends.reference.ops import run_node
from handheld.errors import GraphError
from handheld.graph.check import check
from handheld.graph.evaluate import evaluate
from handheld.graph.interpret import philox, random_key
from handheld.graph.program import BINARY, REDUCTIONS, UNARY, Builder, Instr, Store
from helpers.harness import make, view

INF, NAN = math.inf, math.nan
FLOATS = np.array([[0.0, -0.5, 1.5, 2.5, -2.5, 3.7], [-3.7, 0.1, 1e-3, 8.0, -1.0, 9.0]], np.float32)
OTHERS = np.array([[1.0, 2.0, -1.5, 0.5, 3.0, 3.7], [-2.0, 0.3, 5.0, -8.0, 2.0, 0.1]], np.float32)
SPECIAL = np.array([[INF, -INF, NAN, 1.0, NAN, -0.0], [2.0, INF, 1.0, NAN, -INF, 0.0]], np.float32)
INTS = np.array([[7, -7, 7, -7, 0, 5], [2**31 - 1, -(2**31), 3, -1, 6, 1]], np.int32)
DIVISORS = np.array([[3, 3, -3, -3, 0, 5], [2, -1, 7, -2, 4, 3]], np.int32)
BOOLS = np.array([[True, False, True, False, True, True], [False, True, True, False, True, False]])
TYPES = {"f": "f32", "i": "i32", "b": "bool"}
BITS = ("and", "or", "xor", "shl", "shr")
COMPARE = ("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "not")


def both(arrays, shape, program, stores, *, axes=(), views=None):
    """The outputs by NumPy, and by PyTorch in float32."""
    outer = tuple(n for d, n in enumerate(shape) if d not in axes)
    outputs = [(shape if s.full else outer, program[s.position].dtype) for s in stores]
    attrs = {"shape": tuple(shape), "axes": tuple(axes), "program": tuple(program), "stores": tuple(stores)}
    graph, data = make("reduce" if axes else "map", arrays, views, outputs, attrs)
    node = check(graph).nodes[0]
    data = {i: a.astype(bool) if a.dtype == np.uint8 else a for i, a in data.items()}
    values = {i: torch.from_numpy(a) for i, a in data.items()}
    numpy, torches = evaluate(node, graph, data), run_node(node, graph, values)
    for out, other, (want, dtype) in zip(numpy, torches, outputs, strict=True):
        assert out.shape == tuple(other.shape) == tuple(want)
        assert out.dtype == {"f32": np.float32, "i32": np.int32, "bool": np.bool_}[dtype]
        assert other.is_contiguous() and out.dtype == other.numpy().dtype
    return numpy, [other.numpy() for other in torches]


def pointwise(op, *arrays, dtype=None):
    b = Builder()
    args = [b.load(i, TYPES[a.dtype.kind]) for i, a in enumerate(arrays)]
    dtype = dtype or ("bool" if op in COMPARE else TYPES[arrays[-1].dtype.kind])
    b.op(op, dtype, *args)
    (numpy,), (torches,) = both(list(arrays), arrays[0].shape, b.program, [Store(len(args))])
    return numpy, torches


@pytest.mark.parametrize("op", [op for op in UNARY if op not in ("bitnot", "cast")])
def test_unary(op):
    for x in (FLOATS, SPECIAL):
        np.testing.assert_allclose(*pointwise(op, x), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("op", [op for op in BINARY if op not in BITS])
def test_binary_of_floats(op):
    for x, y in ((FLOATS, OTHERS), (SPECIAL, FLOATS), (FLOATS, SPECIAL), (SPECIAL, SPECIAL)):
        np.testing.assert_allclose(*pointwise(op, x, y), rtol=1e-6)


@pytest.mark.parametrize("op", [op for op in BINARY if op not in ("div", "atan2", "shl", "shr")])
def test_binary_of_integers(op):
    np.testing.assert_array_equal(*pointwise(op, INTS, DIVISORS))


def test_meanings():
    def one(op, *arrays, dtype=None):
        return pointwise(op, *(np.array(a) for a in arrays), dtype=dtype)[0].tolist()

    a, b = np.array([7, -7, 7, -7, 5], np.int32), np.array([3, 3, -3, -3, 0], np.int32)
    assert one("floordiv", a, b) == [2, -3, -3, 2, 0]
    assert one("truncdiv", a, b) == [2, -2, -2, 2, 0]
    assert one("mod", a, b) == [1, 2, -2, -1, 0]
    assert one("fmod", a, b) == [1, -1, 1, -1, 0]
    third = np.float32(7 / 3)
    assert one("div", a[:2].astype("f"), b[:2].astype("f")) == [third, -third]
    f = np.array([0.5, 1.5, -2.5], np.float32)
    assert one("round", f) == [0, 2, -2]
    assert one("cast", f, dtype="i32") == [0, 1, -2]
    assert one("cast", np.array([0.0, -0.5, NAN], np.float32), dtype="bool") == [False, True, True]
    assert one("sign", np.array([NAN, -2.0, 0.0], np.float32)) == [0, -1, 0]
    some = np.array([NAN, 1], np.float32)
    assert np.isnan(one("max", some, some[::-1])).all()
    assert one("and", np.array([6], np.int32), np.array([3], np.int32)) == [2]
    assert one("and", np.array([True]), np.array([False])) == [False]
    assert one("bitnot", np.array([5], np.int32)) == [-6]
    assert one("bitnot", np.array([True])) == [False]
    assert one("not", np.array([5, 0], np.int32)) == [False, True]
    assert one("shl", np.array([3], np.int32), np.array([2], np.int32)) == [12]
    assert one("shr", np.array([-8], np.int32), np.array([1], np.int32)) == [-4]
    a, b = np.array([2, -1, 3], np.int32), np.array([10, -3, -1], np.int32)
    assert one("pow", a, b) == [1024, -1, 0]
    assert one("cast", np.array([True, False]), dtype="i32") == [1, 0]


def test_each_f32_instruction_is_rounded():
    """An index that is computed through floats equals that of float32 arithmetic."""
    b = Builder()
    step = b.op("div", "f32", b.const(1.0, "f32"), b.const(10.0, "f32"))
    place = b.op("cast", "f32", b.op("iota", "i32", params=(0,)))
    index = b.op("cast", "i32", b.op("mul", "f32", place, step))
    (numpy,), (torches,) = both([], (1000,), b.program, [Store(index)])
    np.testing.assert_array_equal(numpy, torches)
    want = np.arange(1000, dtype=np.float32) * np.float32(0.1)
    np.testing.assert_array_equal(numpy, want.astype(int))


@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 2), (0, 1, 2)])
def test_reductions(op, axes):
    rng = np.random.default_rng(3)
    shape = (3, 4, 5)
    for x in (rng.normal(size=shape).astype("f"), rng.integers(-2, 3, shape).astype("i")):
        dtype = {"any_of": "bool", "all_of": "bool", "arg_max": "i32", "arg_min": "i32"}.get(op, TYPES[x.dtype.kind])
        b = Builder()
        value = b.load(0, TYPES[x.dtype.kind])
        if dtype == "bool":
            value = b.op("cast", "bool", value)
        last = b.op(op, dtype, value)
        numpy, torches = both([x], x.shape, b.program, [Store(last, full=False), Store(last)], axes=axes)
        for ours, theirs in zip(numpy, torches, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
        moved = np.moveaxis(x, axes, range(3 - len(axes), 3)).reshape(*numpy[0].shape, -1)
        plain = {
            "sum": np.sum,
            "prod": np.prod,
            "max_of": np.max,
            "min_of": np.min,
            "any_of": np.any,
            "all_of": np.all,
            "arg_max": np.argmax,
            "arg_min": np.argmin,
        }[op]
        np.testing.assert_allclose(numpy[0], plain(moved, axis=-1), rtol=1e-5, atol=1e-6)


def test_reductions_over_nothing():
    wanted = {"sum": 0, "prod": 1, "max_of": -INF, "min_of": INF, "any_of": False, "all_of": True}
    for op, want in wanted.items():
        b = Builder()
        kind = "bool" if op in ("any_of", "all_of") else "f32"
        b.op(op, kind, b.load(0, kind))
        x = np.zeros((3, 0), np.float32 if kind == "f32" else np.bool_)
        for (got,) in both([x], x.shape, b.program, [Store(1, full=False)], axes=(1,)):
            assert got.tolist() == [want] * 3
    b = Builder()
    b.op("max_of", "i32", b.load(0, "i32"))
    for (got,) in both([np.zeros((0, 2), np.int32)], (0, 2), b.program, [Store(1, full=False)], axes=(0,)):
        assert got.tolist() == [-(2**31)] * 2


def test_softmax_keeps_reduced_values_broadcastable():
    x = np.random.default_rng(0).normal(size=(4, 7)).astype(np.float32)
    b = Builder()
    e = b.op("exp", "f32", b.op("sub", "f32", b.load(0, "f32"), b.op("max_of", "f32", 0)))
    total = b.op("sum", "f32", e)
    y = b.op("div", "f32", e, total)
    numpy, torches = both([x], (4, 7), b.program, [Store(y), Store(total, full=False)], axes=(1,))
    np.testing.assert_allclose(numpy[0], torch.softmax(torch.tensor(x), 1), rtol=1e-6)
    np.testing.assert_allclose(numpy[1], torches[1], rtol=1e-6)


def test_views_of_any_strides():
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    views = [
        lambda t: view(t, (4, 2, 3), (1, 12, 4)),
        lambda t: view(t, (4, 2, 3), (0, -12, 1), 12),
        lambda t: view(t, (4, 2, 3), (-1, 0, -4), 23),
    ]
    b = Builder()
    loads = [b.load(i, "f32") for i in range(3)]
    out = b.op("add", "f32", b.op("add", "f32", *loads[:2]), loads[2])
    want = (
        x.transpose(2, 0, 1)
        + np.stack([x.reshape(-1)[12:15], x.reshape(-1)[:3]])[None]
        + np.broadcast_to(x[1].T[::-1, None, ::-1], (4, 2, 3))
    )
    for (got,) in both([x, x, x], (4, 2, 3), b.program, [Store(out)], views=views):
        np.testing.assert_array_equal(got, want)


def test_guarded_loads_read_nothing_outside():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    padded = [lambda t: view(t, (4, 6), (3, 1), -3 - 2)]  # starts one row above and two columns to the left
    b = Builder([Instr("load", "f32", (), (0, ((0, 1, 3), (1, 2, 5)), -1.5))])
    for (got,) in both([x], (4, 6), b.program, [Store(0)], views=padded):
        np.testing.assert_array_equal(got, np.pad(x, ((1, 1), (2, 1)), constant_values=-1.5))
    b = Builder([Instr("load", "f32", (), (0, ((0, 1, 2),), 9))])  # a guard on a dimension with stride 0
    rows = [lambda t: view(t, (3, 3), (0, 1))]
    for (got,) in both([x], (3, 3), b.program, [Store(0)], views=rows):
        np.testing.assert_array_equal(got, [[9, 9, 9], [0, 1, 2], [9, 9, 9]])
    b = Builder([Instr("load", "f32", (), (0, ((0, 5, 9),), 9))])  # No element passes the guard.
    for (got,) in both([x], (2, 3), b.program, [Store(0)]):
        assert (got == 9).all()


def test_gather_iota_where():
    table, index = np.arange(20, dtype=np.float32).reshape(5, 4), np.array([3, -1, 0], np.int32)
    b = Builder()
    row = b.load(1, "i32")
    start = b.op("mul", "i32", row, b.const(4, "i32"))
    at = b.op("add", "i32", start, b.op("iota", "i32", params=(1,)))
    seen = b.op("gather", "f32", at, params=(0,))
    legal = b.op("ge", "bool", row, b.const(0, "i32"))
    out = b.op("where", "f32", legal, seen, b.const(-1.0, "f32"))
    views = [None, lambda t: view(t, (3, 4), (1, 0))]
    for (got,) in both([table, index], (3, 4), b.program, [Store(out)], views=views):
        np.testing.assert_array_equal(got, [table[3], [-1] * 4, table[0]])


def test_scalars_and_empty_arrays():
    b = Builder()
    out = b.op("mul", "f32", b.load(0, "f32"), b.const(2.0, "f32"))
    for (got,) in both([np.array(3.0, np.float32)], (), b.program, [Store(out)]):
        assert got == 6
    for (got,) in both([np.zeros((0, 3), np.float32)], (0, 3), b.program, [Store(out)]):
        assert got.shape == (0, 3)


@pytest.mark.parametrize("make_word", [np.int64, lambda n: torch.tensor(n, dtype=torch.int64)])
@pytest.mark.parametrize(
    "counter, key, want",
    [
        ((0, 0), 0, "ff1dae59 6cd10df2"),
        ((0xFFFFFFFF, 0xFFFFFFFF), 0xFFFFFFFF, "2c3f628b ab4fd7ad"),
        ((0x243F6A88, 0x85A308D3), 0x13198A2E, "dd7ce038 f62a4c12"),
    ],
)
def test_philox_published_vectors(counter, key, want, make_word):
    with np.errstate(over="ignore"):
        words = philox(tuple(map(make_word, counter)), make_word(key))
    assert " ".join(f"{int(w):08x}" for w in words) == want


def test_random_is_the_same_in_both_and_uniform():
    b = Builder()
    args = b.op("iota", "i32", params=(0,)), b.const(-5, "i32"), b.const(12, "i32")
    r = b.op("random", "f32", *args, params=(77,))
    (numpy,), (torches,) = both([], (4096,), b.program, [Store(r)])
    np.testing.assert_array_equal(numpy, torches)
    assert numpy.min() >= 0 and numpy.max() < 1 and abs(numpy.mean() - 0.5) < 0.02
    word = philox((np.array([9]), np.array([12])), random_key(np.array([-5 & 0xFFFFFFFF]), 77))[0]
    assert numpy[9] == np.float32((int(word[0]) >> 8) * 2.0**-24)


def test_other_ops_are_refused():
    outputs = [((2, 6), "f32"), ((2, 6), "i32")]
    graph, data = make("sort", [FLOATS], None, outputs, {"descending": True})
    with pytest.raises(GraphError, match="sort"):
        evaluate(graph.nodes[0], graph, data)

"""Halves in memory: conversions bit by bit, and every family that reads or writes them.

The reference reads the same halves and computes in float64. A float32 result must be as close to it as
without halves. A result that is stored in halves is rounded to 11 significant bits: its relative error is
at most 2^-11 (half a spacing), and below the smallest normal half its absolute error is at most 2^-25.

Building kernels takes most of the time, so only a sample of the matrix products, convolutions, pooling and
attention runs; --all-cases runs all of them.
"""

from __future__ import annotations

import itertools
import random

import numpy as np
import pyopencl as cl
import pytest
import torch

from handheld.backends.reference.ops import run_node as reference
from handheld.errors import GraphError
from handheld.graph.check import check
from handheld.graph.program import Builder, Instr, Store
from handheld.kernels.base import read_cl
from handheld.plan.lowering import candidates, lower
from helpers.harness import caps_of_kind, error, make, queue, run_node, view

KINDS = ("cpu", "gpu")
ACC = {"program": (Instr("acc", "f32"),), "stores": (Store(0),)}


def halves(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float16)


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return halves(*shape, seed=seed).astype(np.float32)


# ------------------------------------------------------------------------------- conversions

KERNELS = """
__kernel void widen(const __global HALF *x, __global float *y) {
  const int g = get_global_id(0);
  for (int i = g * 256; i < g * 256 + 256; ++i) y[i] = GET_HALF(x, i);
}
__kernel void narrow(const __global float *x, __global HALF *y) {
  const int g = get_global_id(0);
  for (int i = g * 256; i < g * 256 + 256; ++i) PUT_HALF(x[i], i, y);
}
#ifdef WIDE
__kernel void widen16(const __global HALF *x, __global float *y) {
  const int g = get_global_id(0);
  *(__global loose16 *)(y + 16 * g) = load16(x, 1, 16 * g);
}
#endif
"""


def converted(name: str, x: np.ndarray, kind: type, bits: int, items: int) -> np.ndarray:
    q = queue()
    text = f"#define HALF_BITS {bits}\n" + read_cl("half.cl")
    text += "#define WIDE\n" + read_cl("wide.cl") if name == "widen16" else ""
    kernel = cl.Kernel(cl.Program(q.context, text + KERNELS).build(["-w"]), name)
    y = np.empty(x.shape, kind)
    flags = cl.mem_flags
    a = cl.Buffer(q.context, flags.COPY_HOST_PTR, hostbuf=x)
    b = cl.Buffer(q.context, flags.READ_WRITE, y.nbytes)
    kernel.set_args(a, b)
    cl.enqueue_nd_range_kernel(q, kernel, (items,), (1,))
    cl.enqueue_copy(q, y, b)
    return y


def same(got: np.ndarray, want: np.ndarray) -> None:
    """Whether the values are equal bit by bit. NaNs are all equal, because GPUs have only one."""
    assert np.array_equal(got, want, equal_nan=True)
    number = ~np.isnan(want)
    assert np.array_equal(np.signbit(got[number]), np.signbit(want[number]))


EVERY = np.arange(65536, dtype=np.uint16).view(np.float16)


@pytest.mark.parametrize(("name", "bits"), [("widen", 0), ("widen", 1), ("widen16", 1)])
def test_every_half_widens(name, bits):
    got = converted(name, EVERY, np.float32, bits, 256 if name == "widen" else 4096)
    same(got, EVERY.astype(np.float32))


@pytest.mark.parametrize("bits", [0, 1])
def test_floats_narrow(bits):
    """All halves, every midpoint between two of them with its neighbours, and random bits."""
    known = np.unique(EVERY[np.isfinite(EVERY)]).astype(np.float32)
    middle = ((known[1:].astype(np.float64) + known[:-1]) / 2).astype(np.float32)
    beyond = np.array([65519.996, 65520, -65520, 1e30, np.inf, -np.inf, np.nan, 2**-25, 1e-45], np.float32)
    rest = np.random.default_rng(0).integers(0, 2**32, 1 << 19, np.uint64).astype(np.uint32)
    x = np.concatenate(
        [
            EVERY.astype(np.float32),
            middle,
            np.nextafter(middle, np.float32(np.inf)),
            np.nextafter(middle, np.float32(-np.inf)),
            beyond,
            rest.view(np.float32),
        ]
    )
    x = np.resize(x, -(-x.size // 256) * 256)
    got = converted("narrow", x, np.float16, bits, x.size // 256)
    with np.errstate(over="ignore"):
        want = x.astype(np.float16)
    same(got, want)


# ------------------------------------------------------------------------------- families


def held(graph, data, kind, choice=None, **caps) -> None:
    """Runs the node on a device of this kind and compares the results."""
    node = graph.nodes[0]
    check(graph)
    values = {i: torch.from_numpy(a) for i, a in data.items()}
    kinds = {"f32": torch.float64, "f16": torch.float64, "i32": torch.int32, "bool": torch.bool}
    values = {i: v.to(kinds[graph.tensors[i].dtype]) for i, v in values.items()}
    want = [np.asarray(w) for w in reference(node, _wide(graph), values, torch.float64)]
    try:
        got = run_node(lambda n, g, c: lower(n, g, c, choice), graph, data, caps_of_kind(kind, **caps))
    except cl.Error as refused:
        large = refused.code == cl.status_code.OUT_OF_RESOURCES
        if large and kind == "cpu" and queue().device.type & cl.device_type.GPU:
            pytest.skip(f"a kernel for CPUs, which this GPU refuses: {refused}")
        raise
    for out, mine, exact in zip(node.outputs, got, want, strict=True):
        assert not np.isnan(mine.astype(np.float64)).any()
        if graph.tensors[out].dtype == "f16":
            off = np.abs(mine.astype(np.float64).ravel() - exact.ravel())
            # The last float32 bits of a sum may change a rounding.
            assert (off <= np.abs(exact.ravel()) * (2**-11 + 1e-4) + 2**-25 + 1e-5).all()
        else:
            assert error(mine, exact) < 1e-5


def _wide(graph):
    """The graph with float32 results, which the halves must be nearest to."""
    from dataclasses import replace

    outs = set(graph.nodes[0].outputs)
    tensors = {i: replace(t, dtype="f32") if i in outs and t.dtype == "f16" else t for i, t in graph.tensors.items()}
    return replace(graph, tensors=tensors)


@pytest.mark.parametrize(("kind", "stored"), [("cpu", ("f16", "f32")), ("gpu", ("f32", "f16"))])
def test_map(kind, stored):
    b = Builder()
    total = b.add(Instr("add", "f32", (b.load(0, "f32"), b.load(1, "f32", ((1, 0, 30),), 0.5))))
    attrs = {
        "shape": (17, 33),
        "axes": (),
        "program": b.program,
        "stores": (Store(total), Store(b.add(Instr("exp", "f32", (total,))))),
    }
    second = halves(33, 17, seed=1)
    attrs["program"] = b.program
    graph, data = make(
        "map",
        [halves(17, 33), second],
        [None, lambda t: view(t, (17, 33), (1, 17))],
        [((17, 33), dtype) for dtype in stored],
        attrs,
    )
    held(graph, data, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_gather(kind):
    b = Builder()
    at = b.load(1, "i32")
    got = b.add(Instr("gather", "f32", (at,), (0,)))
    attrs = {"shape": (50,), "axes": (), "program": b.program, "stores": (Store(got),)}
    index = np.random.default_rng(0).integers(0, 200, 50).astype(np.int32)
    graph, data = make("map", [halves(200), index], None, [((50,), "f16")], attrs)
    held(graph, data, kind)


@pytest.mark.parametrize(
    ("kind", "shape", "axes"),
    [("cpu", (5, 7, 61), (0, 2)), ("gpu", (3, 700), (1,)), ("cpu", (40, 37), (0,)), ("gpu", (2, 70000), (1,))],
)
def test_reduce(kind, shape, axes):
    b = Builder()
    x = b.load(0, "f32")
    total = b.add(Instr("sum", "f32", (x,)))
    scaled = b.add(Instr("sub", "f32", (x, total)))
    attrs = {"shape": shape, "axes": axes, "program": b.program, "stores": (Store(total, full=False), Store(scaled))}
    outer = tuple(n for d, n in enumerate(shape) if d not in axes)
    graph, data = make("reduce", [halves(*shape)], None, [(outer, "f32"), (shape, "f16")], attrs)
    held(graph, data, kind)


MIXED = [(halves, floats), (floats, halves), (halves, halves)]


PRODUCTS = [(37, 41, 29, ""), (64, 64, 64, ""), (97, 131, 67, "ab"), (33, 300, 19, "b"), (3, 5, 9000, "a")]


def test_matmul(matmul_case):
    kind, (left, right), (m, n, k, turned) = matmul_case
    a, b = (left(*((k, m) if "a" in turned else (m, k))), right(*((n, k) if "b" in turned else (k, n)), seed=1))
    views = [
        (lambda t: view(t, (m, k), (1, m))) if "a" in turned else None,
        (lambda t: view(t, (k, n), (1, k))) if "b" in turned else None,
    ]
    graph, data = make("matmul", [a, b], views, [((m, n), "f16")], {"shape": (m, n), **ACC})
    held(graph, data, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_epilogue(kind):
    """An epilogue with an operand in halves, and results of both types."""
    b = Builder()
    acc = b.add(Instr("acc", "f32"))
    both = b.add(Instr("add", "f32", (acc, b.load(2, "f32"))))
    attrs = {"shape": (37, 41), "program": b.program, "stores": (Store(both), Store(acc))}
    graph, data = make(
        "matmul",
        [floats(37, 29), floats(29, 41), halves(37, 41, seed=2)],
        None,
        [((37, 41), "f16"), ((37, 41), "f32")],
        attrs,
    )
    held(graph, data, kind)


@pytest.mark.parametrize(("kind", "packed"), [("cpu", 1), ("gpu", 0)])
def test_candidates(kind, packed):
    """Variants that the tuner may choose; on a CPU, with and without packing B first."""
    graph, data = make(
        "matmul", [halves(70, 300), halves(300, 90, seed=1)], None, [((70, 90), "f16")], {"shape": (70, 90), **ACC}
    )
    offered = candidates(graph.nodes[0], graph, caps_of_kind(kind))
    for choice in [c for c in offered if c.get("packed", packed) == packed][packed:12:12]:
        held(graph, data, kind, choice)


def test_textures():
    graph, data = make(
        "matmul", [halves(64, 64), floats(64, 32, seed=1)], None, [((64, 32), "f16")], {"shape": (64, 32), **ACC}
    )
    caps = {"vendor": "QUALCOMM", "images": True}
    choice = candidates(graph.nodes[0], graph, caps_of_kind("gpu", **caps))[0]
    assert choice["TEXTURE"]
    held(graph, data, "gpu", choice, **caps)


GEOMETRY = [  # images, channels, size, output channels, kernel, stride, padding, groups
    (2, 5, 11, 9, 3, 1, 1, 1),
    (2, 16, 13, 24, 3, 2, 1, 1),
    (3, 12, 9, 20, 1, 1, 0, 1),
    (1, 3, 23, 16, 5, 2, 2, 1),
    (2, 8, 12, 12, 3, 1, 1, 4),
    (2, 6, 20, 6, 3, 1, 1, 6),
    (2, 6, 21, 12, 3, 2, 1, 6),
    (2, 5, 6, 5, 3, 1, 1, 5),
    (131, 3, 7, 3, 3, 1, 1, 3),
    (1, 2, 70, 2, 3, 10, 1, 2),
]


OPS = ("conv", "conv_input", "conv_weight")


def test_conv(conv_case):
    kind, op, geometry = conv_case
    n, c, size, k, r, stride, pad, groups = geometry
    x, w = (n, c, size, size), (k, c // groups, r, r)
    out = (size + 2 * pad - r) // stride + 1
    y = (n, k, out, out)
    first, second, made = {"conv": (x, w, y), "conv_input": (y, w, x), "conv_weight": (y, x, w)}[op]
    attrs = {
        "stride": (stride,) * 2,
        "padding": (pad,) * 2,
        "dilation": (1, 1),
        "groups": groups,
        "shape": made,
        **({} if op == "conv_weight" else ACC),
    }
    kinds = [(halves, floats), (halves, halves)] + [(floats, halves)] * (op == "conv_weight")
    for left, right in kinds:
        graph, data = make(op, [left(*first), right(*second, seed=1)], None, [(made, "f16")], attrs)
        held(graph, data, kind)
    if op == "conv_weight":  # with many images, sums are split into parts, which stay float32
        many = [(40, *shape[1:]) for shape in (first, second)]
        graph, data = make(op, [halves(*many[0]), halves(*many[1], seed=1)], None, [(made, "f16")], attrs)
        held(graph, data, kind, compute_units=32)


POOLED = [("f16", "f16"), ("f32", "f16"), ("f16", "f32")]


def test_pool(pool_case):
    kind, stride, mixed = pool_case
    x, out = (2, 3, 13, 41), [(n + 2 - 3) // stride + 1 for n in (13, 41)]
    y = (2, 3, *out)
    window = {"kernel": (3, 3), "stride": (stride,) * 2, "padding": (1, 1)}
    start, end = mixed
    given = halves if start == "f16" else floats
    largest = {**window, "dilation": (1, 1), "adaptive": False}
    mean = {**window, "count_pad": True, "divisor": 0}
    graph, data = make("max_pool", [given(*x)], None, [(y, end), (y, "i32")], {**largest, "shape": y})
    held(graph, data, kind)
    where = reference(graph.nodes[0], _wide(graph), {0: torch.from_numpy(data[0]).double()}, torch.float64)[1].numpy()
    graph, data = make("max_pool_grad", [given(*y), where], None, [(x, end)], {**largest, "shape": x})
    held(graph, data, kind)
    graph, data = make("avg_pool", [given(*x)], None, [(y, end)], {**mean, "shape": y})
    held(graph, data, kind)
    graph, data = make("avg_pool_grad", [given(*y)], None, [(x, end)], {**mean, "shape": x})
    held(graph, data, kind)


ATTENTION = [((2, 3, 3, 5, 7, 4, 4), False), ((1, 2, 1, 67, 131, 16, 20), True), ((2, 4, 2, 13, 3, 5, 33), False)]


def test_attention(attention_case):
    """Attention and the gradient of its result; lse and sums over blocks stay float32."""
    kind, (sizes, causal) = attention_case
    b, h, g, n, s, d, e = sizes
    attrs = {"scale": 0.3, "causal": causal, "masked": True, "dropout": 0.0, "key": 0}
    q, k, v = (halves(b, x, y, z, seed=i) for i, (x, y, z) in enumerate([(h, n, d), (g, s, d), (g, s, e)]))
    mask = np.random.default_rng(5).random((b, h, n, s)) > 0.3
    graph, data = make("attention", [q, k, v, mask], None, [((b, n, h, e), "f16"), ((b, h, n), "f32")], attrs)
    held(graph, data, kind)
    values = {i: torch.from_numpy(a) for i, a in data.items()}
    values[3] = values[3].bool()
    out, lse = reference(graph.nodes[0], graph, values)
    graph, data = make(
        "attention_grad",
        [halves(b, h, n, e, seed=7), q, k, v, out.transpose(1, 2).contiguous().numpy(), lse.numpy(), mask],
        None,
        [((b, n, h, d), "f16"), ((b, s, g, d), "f16"), ((b, s, g, e), "f16")],
        attrs,
    )
    held(graph, data, kind)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for name, count, parts in [
        ("matmul", 3, (MIXED, PRODUCTS)),
        ("conv", 3, (OPS, GEOMETRY)),
        ("pool", 2, ([1, 2], POOLED)),
        ("attention", 2, (ATTENTION,)),
    ]:
        if f"{name}_case" in metafunc.fixturenames:
            cases = list(itertools.product(KINDS, *parts))
            if not metafunc.config.getoption("--all-cases"):
                cases = random.Random(name).sample(cases, count)
            metafunc.parametrize(f"{name}_case", cases, ids=lambda case: case[0])


def test_what_halves_are_not_for():
    graph, _ = make("sort", [halves(3, 5)], None, [((3, 5), "f16"), ((3, 5), "i32")], {"descending": False})
    with pytest.raises(GraphError, match="sort of f16"):
        check(graph)

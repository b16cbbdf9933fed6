"""Runs nodes with random programs, single reductions and softmaxes on a device."""

from __future__ import annotations

import numpy as np
import torch

from handheld.backends.reference.ops import run_node as reference
from handheld.graph.check import check
from handheld.graph.graph import Graph, GraphInput, GraphOutput, Node, Origin, Tensor, View, contiguous_strides
from handheld.graph.program import Builder, Store
from handheld.plan.lowering import lower
from helpers.harness import caps_of_kind, error, run_node

SIZES = (1, 2, 3, 5, 7, 13, 17, 31)
SMOOTH = ("exp", "tanh", "sigmoid", "sin", "erf", "neg", "abs")


def random_view(rng: np.random.Generator, shape: tuple[int, ...], number: int) -> tuple[Tensor, View]:
    """An operand over `shape`: dense, broadcast, transposed or a slice of a larger tensor."""
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
    builder, stores, rows = random_program(rng, shape, axes, len(inputs))
    outer = tuple(n for d, n in enumerate(shape) if d not in axes)
    outputs = []
    for store in stores:
        number = len(tensors)
        tensors[number] = Tensor(number, shape if store.full else outer, "f32", "activation")
        outputs.append(number)
    attrs = {"shape": shape, "axes": axes if rows else (), "program": builder.program, "stores": tuple(stores)}
    node = Node("reduce" if rows else "map", tuple(inputs), tuple(outputs), attrs, Origin("forward", "t", "t"))
    graph = Graph(
        "t",
        tensors,
        (node,),
        tuple(GraphInput(f"x{i}", i, "float32") for i in data),
        {},
        (),
        tuple(
            GraphOutput(f"y{i}", View(i, tensors[i].shape, contiguous_strides(tensors[i].shape)), "float32")
            for i in outputs
        ),
    )
    return check(graph), data


def random_program(
    rng: np.random.Generator, shape: tuple[int, ...], axes: tuple[int, ...], inputs: int
) -> tuple[Builder, list[tuple[int, bool]], list[int]]:
    """The program, its stores (and whether each is at every point), and its values per row."""
    builder = Builder()
    full = [builder.load(k, "f32", *_guards(rng, shape)) for k in range(inputs)]
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
    stores = [Store(full[-1])] + [Store(r, full=False) for r in rows]
    if axes and not rows:
        rows.append(builder.op("sum", "f32", full[-1]))
        stores = [Store(rows[-1], full=False)]
    return builder, stores, rows


def _guards(rng: np.random.Generator, shape: tuple[int, ...]):
    if not shape or rng.integers(4):
        return ((), 0)
    d = int(rng.integers(len(shape)))
    low, high = sorted(int(v) for v in rng.integers(0, shape[d] + 1, 2))
    return (((d, low, high),), -1.5)


def run_case(seed: int, kind: str, work_group: int = 128, **change: int) -> int:
    """Runs a random program, compares it with the reference, and returns the number of launches."""
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


def one_reduction(
    op: str, array: np.ndarray, axes: tuple[int, ...], kind: str, dtype: str = "f32", **change: int
) -> np.ndarray:
    shape = array.shape
    builder = Builder()
    result = builder.op(op, "i32" if op.startswith("arg") else dtype, builder.load(0, dtype))
    outer = tuple(n for d, n in enumerate(shape) if d not in axes)
    out = Tensor(1, outer, builder.program[result].dtype, "activation")
    attrs = {"shape": shape, "axes": axes, "program": builder.program, "stores": (Store(result, full=False),)}
    node = Node("reduce", (View(0, shape, contiguous_strides(shape)),), (1,), attrs, Origin("forward", "t", "t"))
    graph = Graph(
        "t", {0: Tensor(0, shape, dtype, "input"), 1: out}, (node,), (GraphInput("x", 0, "float32"),), {}, (), ()
    )
    return run_node(lower, graph, {0: array}, caps_of_kind(kind, **change))[0]

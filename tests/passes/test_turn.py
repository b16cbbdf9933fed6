"""A turned map writes, in the order of its reader, what it wrote before."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from handheld.graph.dtypes import BOOL, F32, I32
from handheld.graph.evaluate import evaluate
from handheld.graph.graph import Graph, Node, Origin, Tensor, View, contiguous_strides
from handheld.graph.program import Builder, Guard, Store
from handheld.passes.turn import turn
from passes.test_passes import train_graph


def cat_map(rng: np.random.Generator, shape: tuple[int, ...]) -> Node:
    """Two operands joined along the first axis at a random place, plus something broadcast and the coordinates."""
    b = Builder()
    place = int(rng.integers(1, shape[0])) if shape[0] > 1 else 1
    first = b.load(0, F32, (Guard(0, 0, place),))
    second = b.load(1, F32, (Guard(0, place, shape[0]),))
    value = b.op("where", F32, b.op("lt", BOOL, b.op("iota", I32, params=(0,)), b.const(place, I32)), first, second)
    last = b.op("cast", F32, b.op("iota", I32, params=(len(shape) - 1,)))
    value = b.op("add", F32, b.op("mul", F32, value, last), b.load(2, F32))
    dense = contiguous_strides(shape)
    inputs = (
        View(0, shape, dense),
        View(1, shape, dense, -place * dense[0]),
        View(2, shape, (*(0 for _ in shape[1:]), 1)),
    )
    attrs = {"shape": shape, "axes": (), "program": b.program, "stores": (Store(value),)}
    return Node("map", inputs, (3,), attrs, Origin("forward", "test", "cat"))


def run(node: Node, shape: tuple[int, ...], data: list[np.ndarray]) -> np.ndarray:
    tensors = {i: Tensor(i, a.shape, F32, "activation") for i, a in enumerate(data)}
    tensors[3] = Tensor(3, shape, F32, "activation")
    graph = Graph("test", tensors, (node,), (), {}, (), ())
    return np.asarray(evaluate(node, graph, dict(enumerate(data)))[0])


def look(rng: np.random.Generator, shape: tuple[int, ...]) -> View:
    """A view of the output: axes split where they can be, axes of one element added, and all exchanged."""
    sizes: list[int] = []
    for n in shape:
        factor = int(rng.choice([k for k in range(1, n + 1) if n % k == 0]))
        sizes += [factor, n // factor, 1]
    order = rng.permutation(len(sizes))
    dense = contiguous_strides(tuple(sizes))
    return View(3, tuple(sizes[d] for d in order), tuple(dense[d] for d in order))


@pytest.mark.parametrize("seed", range(40))
def test_results_are_those_of_the_view(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.choice([1, 2, 4, 6, 5], rng.integers(1, 4)))
    node, view = cat_map(rng, shape), look(rng, shape)
    data = [rng.normal(size=shape), rng.normal(size=shape), rng.normal(size=shape[-1:])]
    turned = turn(node, view)
    if turned is not None:
        before = run(node, shape, data)
        want = np.lib.stride_tricks.as_strided(before, view.shape, [before.itemsize * s for s in view.strides])
        np.testing.assert_array_equal(run(turned, view.shape, data), want)
        assert turned.attrs["shape"] == view.shape


def test_most_views_can_be_turned() -> None:
    """Otherwise the test above says nothing."""
    done = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        shape = tuple(int(n) for n in rng.choice([1, 2, 4, 6, 5], rng.integers(1, 4)))
        done += turn(cat_map(rng, shape), look(rng, shape)) is not None
    assert 25 <= done < 40


@pytest.mark.parametrize(
    ("shape", "strides"),
    [((6, 4), (4, 0)), ((3, 4), (8, 1)), ((2, 10), (10, 1))],
    ids=["repeats", "leaves out", "guard inside an axis"],
)
def test_other_views_are_refused(shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    node = cat_map(rng, (6, 4))
    assert turn(node, View(3, shape, strides)) is None


def test_gradients_of_query_key_and_value_are_written_once() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.qkv(x).view(2, 9, 3, 2, 16).permute(2, 0, 3, 1, 4)
            mixed: torch.Tensor = functional.scaled_dot_product_attention(q, k, v)
            logits: torch.Tensor = self.out(mixed.transpose(1, 2).reshape(2, 9, 32).mean(1))
            return logits

    graph = train_graph(Attention(), torch.randn(2, 9, 32), torch.tensor([0, 1]))
    maps = [n for n in graph.nodes if n.op == "map" and n.origin.phase == "backward" and len(n.inputs) == 3]
    assert [tuple(n.attrs["shape"]) for n in maps] == [(2, 9, 3, 2, 16)]

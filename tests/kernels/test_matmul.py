"""Compares matrix products with torch in float64: both variants, awkward shapes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from handheld.graph.check import check as check_graph
from handheld.kernels import contract
from helpers.contractions import ACC, KINDS, close, device, numbers, relu_of_bias, run_matmul
from helpers.harness import make, run_node, view


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        (1, 1, 1),
        (7, 13, 5),
        (64, 64, 64),
        (97, 131, 67),
        (1, 257, 300),
        (259, 1, 31),
        (6, 16, 256),
        (101, 17, 521),
        (33, 300, 19),
    ],
)
def test_matmul(kind, m, n, k):
    run_matmul(numbers(m, k), numbers(k, n, seed=1), kind)


@pytest.mark.parametrize(("m", "n", "k"), [(64, 64, 64), (97, 131, 67), (31, 300, 19)])
def test_matmul_large_tiles(m, n, k):
    run_matmul(numbers(m, k), numbers(k, n, seed=1), "gpu")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("look_a", "look_b", "a", "b"),
    [
        (lambda t: t.t(), None, (23, 37), (23, 41)),
        (None, lambda t: t.t(), (37, 23), (41, 23)),
        (lambda t: t[3:, 2::2], lambda t: t[1:12, 5:], (40, 24), (20, 50)),
        (lambda t: t[:, :1].expand(-1, 29), None, (17, 4), (29, 19)),
        (None, lambda t: t.expand(29, 18), (17, 29), (1, 18)),
        (None, lambda t: t[0].expand(29, 40), (17, 29), (1, 1)),
        (lambda t: t.expand(5, -1, -1), None, (13, 7), (5, 7, 11)),
        (None, lambda t: t.expand(2, 3, -1, -1), (2, 3, 13, 7), (7, 11)),
        (lambda t: t.transpose(1, 2), lambda t: t.permute(0, 2, 3, 1), (2, 13, 3, 8), (2, 19, 3, 8)),
        (None, None, (2, 3, 5, 7, 4), (2, 3, 5, 4, 6)),
        (lambda t: t.permute(2, 0, 1, 3, 4), lambda t: t.permute(1, 2, 0, 3, 4), (3, 5, 2, 7, 4), (5, 2, 3, 4, 6)),
    ],
)
def test_matmul_views(kind, look_a, look_b, a, b):
    run_matmul(numbers(*a), numbers(*b, seed=1), kind, look_a, look_b)


@pytest.mark.parametrize("kind", KINDS)
def test_matmul_long_sum(kind):
    a, b = np.abs(numbers(3, 32768)), np.abs(numbers(32768, 5, seed=1))
    run_matmul(a, b, kind, limit=1e-6)  # split
    run_matmul(a, b, kind, limit=1e-6, compute_units=1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("shape", "k"), [((3, 5), 0), ((0, 5), 3), ((3, 0), 3), ((0, 3, 5), 2)])
def test_matmul_empty(kind, shape, k):
    a, b = numbers(*shape[:-1], k), numbers(*shape[:-2], k, shape[-1])
    graph, data = make("matmul", [a, b], None, [(shape, "f32")], {"shape": shape, **ACC})
    (got,) = run_node(contract.lower_matmul, graph, data, device(kind))
    assert np.array_equal(got, np.zeros(shape, np.float32))
    lowered = contract.lower_matmul(graph.nodes[0], graph, device(kind))
    assert bool(lowered.launches) == (0 not in shape)


@pytest.mark.parametrize("work_group", [15, 3])
def test_matmul_small_devices(work_group):
    run_matmul(numbers(71, 37), numbers(37, 67, seed=1), "gpu", max_work_group=work_group)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("units", [1, 64])
def test_matmul_epilogue(kind, units):
    a, b, bias = numbers(2, 3, 19, 2600), numbers(2, 3, 2600, 23, seed=1), numbers(23, seed=2)
    shape = (2, 3, 19, 23)
    graph, data = make(
        "matmul",
        [a, b, bias],
        [None, None, lambda t: view(t, shape, (0, 0, 0, 1))],
        [(shape, "f32"), (shape, "bool")],
        {"shape": shape, **relu_of_bias((2, (), 0.0), True)},
    )
    check_graph(graph)
    caps = device(kind, compute_units=units)
    got, mask = run_node(contract.lower_matmul, graph, data, caps)
    want = torch.from_numpy(a.astype(np.float64)) @ torch.from_numpy(b.astype(np.float64))
    want += torch.from_numpy(bias.astype(np.float64))
    close(got, want.relu())
    assert np.mean(mask.astype(bool) == (want > 0).numpy()) > 0.999

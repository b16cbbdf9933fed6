"""Compares products with few rows (dots.cl) with torch in float64, and says where they are the default."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from handheld.errors import PlanError
from handheld.graph.check import check as check_graph
from handheld.kernels import contract, dots
from handheld.kernels.contract_nodes import problem_of
from helpers.contractions import ACC, close, device, numbers, relu_of_bias, run_matmul
from helpers.harness import make, run_node, view

WIDE = {"vector_width": 16}


def turned(t):
    return t.transpose(-1, -2)


def default(m: int, n: int, k: int, strides: str = "terms", **caps) -> dots.Blocks | None:
    """The blocks of a product of dense [m, k] by [k, n], contiguous in its terms or columns, if it is the default."""
    looks = [None, lambda t: view(t, (k, n), (1, k) if strides == "terms" else (n, 1))]
    graph, _ = make("matmul", [numbers(m, k), numbers(n, k)], looks, [((m, n), "f32")], {"shape": (m, n), **ACC})
    known = device("cpu", **{**WIDE, **caps})
    blocks = dots.cut(problem_of(graph.nodes[0], graph)[0], known)
    assert (contract.DOTS in contract.candidates(graph.nodes[0], graph, known)) == (
        blocks is None and m <= dots.MOST_ROWS
    )
    return blocks


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(1, 1, 16), (3, 5, 64), (16, 33, 80), (17, 41, 592), (30, 1100, 48), (47, 9, 1040), (48, 130, 512)],
)
def test_dots(m, n, k):
    run_matmul(numbers(m, k), numbers(n, k, seed=1), "cpu", look_b=turned, choice=contract.DOTS, **WIDE)


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(1, 16, 16), (3, 48, 64), (16, 144, 80), (17, 32, 592), (30, 1120, 48), (47, 16, 1040), (8, 2048, 512)],
)
def test_stream(m, n, k):
    run_matmul(numbers(m, k), numbers(k, n, seed=1), "cpu", choice=contract.DOTS, **WIDE)


@pytest.mark.parametrize("units", [1, 2, 5])
def test_dots_of_views(units):
    change = {"choice": contract.DOTS, "compute_units": units, **WIDE}
    run_matmul(numbers(9, 40), numbers(21, 50), "cpu", lambda t: t[2:, 5:37], lambda t: t[1::2, 7:39].t(), **change)
    run_matmul(numbers(2, 3, 6, 32), numbers(3, 7, 32), "cpu", None, lambda t: turned(t).expand(2, 3, 32, 7), **change)


@pytest.mark.parametrize("units", [1, 2, 5])
def test_stream_of_views(units):
    change = {"choice": contract.DOTS, "compute_units": units, **WIDE}
    run_matmul(numbers(9, 40), numbers(40, 50), "cpu", lambda t: t[2:, 5:37], lambda t: t[1:33, 2:34], **change)
    run_matmul(numbers(2, 3, 6, 32), numbers(3, 32, 48), "cpu", None, lambda t: t.expand(2, 3, 32, 48), **change)
    # B is so large that it is asked for ahead.
    run_matmul(numbers(5, 1024), numbers(1024, 1040), "cpu", **change)
    run_matmul(numbers(18, 1024), numbers(1039, 1024), "cpu", None, turned, **change)


def test_dots_with_an_epilogue():
    a, b, bias, shape = numbers(3, 19, 256), numbers(3, 23, 256, seed=1), numbers(23, seed=2), (3, 19, 23)
    looks = [None, lambda t: view(t, (3, 256, 23), (23 * 256, 1, 256)), lambda t: view(t, shape, (0, 0, 1))]
    attrs = {"shape": shape, **relu_of_bias((2, (), 0.0), True)}
    graph, data = make("matmul", [a, b, bias], looks, [(shape, "f32"), (shape, "bool")], attrs)
    check_graph(graph)
    lowered = contract.lower_matmul(graph.nodes[0], graph, device("cpu", **WIDE))
    assert lowered.why.startswith("dot products")
    got, mask = run_node(contract.lower_matmul, graph, data, device("cpu", **WIDE))
    want = (torch.from_numpy(a).double() @ turned(torch.from_numpy(b).double())) + torch.from_numpy(bias).double()
    close(got, want.relu())
    assert (mask.astype(bool) == (want > 0).numpy()).mean() > 0.999


def test_dots_are_the_default_for_few_rows_and_long_sums():
    assert default(16, 4096, 1024) == dots.Blocks(16, 512)
    assert default(16, 10, 512) == dots.Blocks(16, 8)
    assert default(32, 512, 192) and not default(32, 512, 176)  # Adding up the lanes would take too long.
    assert default(dots.MOST_ROWS, 64, 512) and not default(dots.MOST_ROWS + 1, 64, 512)  # Packing pays.


def test_stream_is_the_default_for_few_rows():
    assert default(8, 128, 64, "columns") == dots.Blocks(8, 64, 8)
    assert default(10, 4096, 512, "columns") == dots.Blocks(12, 2048, 12)
    assert default(16, 512, 512, "columns") and not default(16, 256, 512, "columns")  # B is small.
    assert not default(17, 1024, 1024, "columns") and not default(8, 112, 64, "columns")


def test_dots_need_contiguous_terms_and_wide_registers():
    a, b = numbers(16, 512), numbers(20, 512)
    for looks, caps, k in (
        ((lambda t: view(t, (16, 256), (512, 2)), lambda t: view(t, (256, 20), (1, 512))), {}, 256),
        ((None, lambda t: view(t, (512, 20), (20, 1))), {}, 512),  # 20 columns are no whole vectors.
        ((lambda t: view(t, (16, 500), (512, 1)), lambda t: view(t, (500, 20), (1, 512))), {}, 500),
        ((None, lambda t: view(t, (512, 20), (1, 512))), {"vector_width": 8}, 512),
    ):
        graph, _ = make("matmul", [a, b], list(looks), [((16, 20), "f32")], {"shape": (16, 20), **ACC})
        known = device("cpu", **{**WIDE, **caps})
        problem, node = problem_of(graph.nodes[0], graph)
        assert problem.k == k and dots.cut(problem, known, always=True) is None
        assert dots.cut(problem, dataclasses.replace(known, kind="gpu"), always=True) is None
        with pytest.raises(PlanError, match="not possible"):
            contract.lower_matmul(node, graph, known, contract.DOTS)

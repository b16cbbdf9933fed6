"""Winograd's algorithm beside float64: all three directions, odd sizes, several parts, views and epilogues."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from handheld.device import DeviceCaps
from handheld.errors import PlanError
from handheld.graph.graph import Graph, Node
from handheld.kernels import contract, contract_nodes, winograd
from handheld.kernels.base import Lowered
from handheld.kernels.contract_problem import Problem
from helpers.contractions import ACC, device, numbers, run_conv
from helpers.harness import make

PADDING = [(0, 0), (1, 1), (2, 1)]


@pytest.fixture
def always(monkeypatch):
    """It is used wherever it applies, and tiles are cut into many parts."""
    used: list[winograd.Tiles | None] = []

    def cut(problem: Problem, caps, always: bool = False):
        used.append(real(problem, caps, always))
        return used[-1]

    real = winograd.cut
    monkeypatch.setattr(winograd, "_gains", lambda *rest: True)
    monkeypatch.setattr(winograd, "PART", 1)
    monkeypatch.setattr(winograd, "MOST_PARTS", 3)
    monkeypatch.setattr(winograd, "cut", cut)
    return used


@pytest.mark.parametrize("width", [8, 16])
@pytest.mark.parametrize("padding", PADDING, ids=str)
@pytest.mark.parametrize("shape", [(2, 17, 9, 10), (1, 16, 5, 19), (3, 20, 11, 41)], ids=str)
def test_conv_and_gradients(always, shape, padding, width):
    own = {} if width == 16 else {"vector_width": 8, "features": ""}
    run_conv("cpu", numbers(*shape), numbers(19, shape[1], 3, 3, seed=1), padding=padding, limit=1e-6, **own)
    assert len(always) == 3 and None not in always
    assert max(tiles.parts for tiles in always) > 1


def test_views(always):
    """Channels last, every other pixel, weights transposed."""
    looks = (lambda t: t.permute(0, 3, 1, 2)[:, :, :, ::2], lambda t: t.transpose(0, 1), lambda t: t)
    run_conv("cpu", numbers(2, 9, 26, 18), numbers(18, 16, 3, 3, seed=1), looks=looks, padding=(1, 1), limit=1e-6)
    assert None not in always


@pytest.mark.parametrize(
    "what",
    [
        ((2, 16, 9, 9), (16, 16, 3, 3), {"stride": (2, 2)}),
        ((2, 16, 9, 9), (16, 16, 3, 3), {"dilation": (2, 2)}),
        ((2, 32, 9, 9), (32, 16, 3, 3), {"groups": 2}),
        ((2, 16, 9, 9), (16, 16, 5, 5), {}),
        ((2, 16, 9, 7), (16, 16, 3, 3), {}),  # five results, so three tiles across
        ((2, 8, 9, 9), (16, 8, 3, 3), {}),
    ],
    ids=["stride", "dilation", "groups", "5x5", "narrow", "few channels"],
)
def test_others_are_left_alone(always, what):
    x, w, geometry = what
    run_conv("cpu", numbers(*x), numbers(*w, seed=1), only=("conv",), **geometry)
    assert always == [None]


def layer(channels: int) -> Graph:
    x, w = (np.empty((n, channels, side, side), np.float32) for n, side in ((4, 56), (channels, 3)))
    attrs = {"shape": x.shape, "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1, **ACC}
    return make("conv", [x, w], None, [(x.shape, "f32")], attrs)[0]


def tiles(channels: int, kind: str = "cpu") -> winograd.Tiles | None:
    graph = layer(channels)
    problem, _ = contract_nodes.problem_of(graph.nodes[0], graph)
    return winograd.cut(problem, device(kind))


def test_it_is_used_where_it_pays():
    """Not with few channels, where the tiles cost more than they save, not on GPUs, and not where cores multiply two
    vectors per cycle."""
    assert tiles(256) is not None and tiles(64) is not None
    assert tiles(16) is None and tiles(256, "gpu") is None
    node, graph = layer(256).nodes[0], layer(256)
    fast = device("cpu", vector_width=16, vector_rate=2)
    assert {"winograd": 1} in contract.candidates(node, graph, fast)
    assert "direct" in contract.lower_conv(node, graph, fast).why


def test_more_elements_than_an_index_counts(monkeypatch):
    """Another kernel takes the convolution."""
    largest = winograd.POINTS * 256 * max(256, 4 * 28 * 28)
    monkeypatch.setattr(winograd, "LIMIT", largest)
    assert tiles(256) is not None
    monkeypatch.setattr(winograd, "LIMIT", winograd.POINTS * 256 * 256 - 1)
    assert tiles(256) is None


@pytest.mark.parametrize(("channels", "default", "other"), [(256, "winograd", "direct"), (16, "direct", "winograd")])
def test_the_tuner_may_choose_the_other_one(channels, default, other):
    graph = layer(channels)
    node, caps = graph.nodes[0], device("cpu", vector_width=16)
    found = contract.candidates(node, graph, caps)
    assert {other: 1} in found and {default: 1} not in found
    kernels = {name: {launch.kernel for launch in lowered.launches} for name, lowered in lower_each(node, graph, caps)}
    assert kernels[default] == kernels["default"] != kernels[other]


def lower_each(node: Node, graph: Graph, caps: DeviceCaps) -> Iterator[tuple[str, Lowered]]:
    for name, choice in (("default", None), ("winograd", {"winograd": 1}), ("direct", {"direct": 1})):
        yield name, contract.lower_conv(node, graph, caps, choice)


def test_a_choice_that_does_not_apply_is_refused():
    graph = layer(256)
    for choice in ({"winograd": 1}, {"direct": 1}):
        with pytest.raises(PlanError, match="not possible for this shape"):
            contract.lower_conv(graph.nodes[0], graph, device("gpu"), choice)

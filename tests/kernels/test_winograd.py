"""Winograd's algorithm beside float64: all three directions, odd sizes, several parts, views and epilogues."""

from __future__ import annotations

import numpy as np
import pytest

from handheld.kernels import contract, winograd
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


def tiles(channels: int, kind: str = "cpu") -> winograd.Tiles | None:
    x, w = (np.empty((n, channels, side, side), np.float32) for n, side in ((4, 56), (channels, 3)))
    attrs = {"shape": x.shape, "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1, **ACC}
    graph, _ = make("conv", [x, w], None, [(x.shape, "f32")], attrs)
    problem, _ = contract._problem(graph.nodes[0], graph)
    return winograd.cut(problem, device(kind))


def test_it_is_used_where_it_pays():
    """Not with few channels, where the tiles cost more than they save, and not on GPUs."""
    assert tiles(256) is not None and tiles(64) is not None
    assert tiles(16) is None and tiles(256, "gpu") is None


def test_more_elements_than_an_index_counts(monkeypatch):
    """Another kernel takes the convolution."""
    largest = winograd.POINTS * 256 * max(256, 4 * 28 * 28)
    monkeypatch.setattr(winograd, "LIMIT", largest)
    assert tiles(256) is not None
    monkeypatch.setattr(winograd, "LIMIT", winograd.POINTS * 256 * 256 - 1)
    assert tiles(256) is None

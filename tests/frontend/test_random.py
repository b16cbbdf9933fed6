"""Random ops: the right distribution, new numbers in every step, the same numbers for the same seed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from handheld.frontend.capture import Capture
from handheld.step import Step

N = 4000
P = torch.tensor([0.1, 0.2, 0.7])

#: the op, its mean and its standard deviation
DRAWS: dict[str, tuple[Callable[[], torch.Tensor], float, float]] = {
    "rand": (lambda: torch.rand(N), 0.5, 0.289),
    "rand_like": (lambda: torch.rand_like(torch.zeros(N)), 0.5, 0.289),
    "randn": (lambda: torch.randn(N), 0.0, 1.0),
    "randn_like": (lambda: torch.randn_like(torch.zeros(N)), 0.0, 1.0),
    "uniform_": (lambda: torch.empty(N).uniform_(-1, 3), 1.0, 1.155),
    "normal_": (lambda: torch.empty(N).normal_(1, 2), 1.0, 2.0),
    "normal sized": (lambda: torch.normal(1.0, 2.0, (N,)), 1.0, 2.0),
    "normal tensors": (lambda: torch.normal(torch.ones(N), torch.full((N,), 2.0)), 1.0, 2.0),
    "normal mean": (lambda: torch.normal(torch.ones(N), 2.0), 1.0, 2.0),
    "normal deviation": (lambda: torch.normal(1.0, torch.full((N,), 2.0)), 1.0, 2.0),
    "exponential_": (lambda: torch.empty(N).exponential_(2.0), 0.5, 0.5),
    "geometric_": (lambda: torch.empty(N).geometric_(0.3), 3.33, 2.79),
    "log_normal_": (lambda: torch.empty(N).log_normal_(0, 0.5), 1.133, 0.604),
    "cauchy_": (lambda: torch.empty(N).cauchy_(0.0).atan(), 0.0, 0.907),
    "randint": (lambda: torch.randint(3, 9, (N,)).float(), 5.5, 1.71),
    "randint_like": (lambda: torch.randint_like(torch.zeros(N), 6), 2.5, 1.71),
    "randperm": (lambda: torch.randperm(N).float(), (N - 1) / 2, N / 12**0.5),
    "bernoulli": (lambda: torch.bernoulli(torch.full((N,), 0.3)), 0.3, 0.458),
    "bernoulli_": (lambda: torch.empty(N).bernoulli_(0.3), 0.3, 0.458),
    "multinomial": (lambda: torch.multinomial(P, N, replacement=True).float(), 1.6, 0.663),
    "multinomial once": (lambda: torch.multinomial(P.expand(N // 2, 3), 2).float(), 1.29, 0.763),
    "gumbel_softmax": (lambda: F.gumbel_softmax(P.log().expand(N, 3), hard=True)[:, 2], 0.7, 0.458),
    "dropout": (lambda: F.dropout(torch.ones(N), 0.3), 1.0, 0.655),
    "dropout2d": (lambda: F.dropout2d(torch.ones(N // 4, 4, 2, 2), 0.3), 1.0, 0.655),
    "alpha_dropout": (lambda: F.alpha_dropout(torch.randn(N), 0.3, training=True), 0.0, 1.0),
    "rrelu": (lambda: F.rrelu(-torch.ones(N), training=True), -0.229, 0.06),
}


def drawing(draw: Callable[[], torch.Tensor], seed: int = 0) -> Step:
    builder = Capture(nn.Identity(), seed)
    builder._record("draw", lambda _: (None, draw()), [torch.zeros(1)], None)
    return builder.step()


def numbers(step: Step, times: int, device: str = "reference:cpu") -> list[np.ndarray]:
    with step.plan(device).start() as trainer:
        found = []
        for _ in range(times):
            trainer.run("draw", torch.zeros(1))
            found.append(next(iter(trainer.outputs().values())).copy())
        return found


@pytest.mark.parametrize("name", DRAWS)
def test_distribution(name: str) -> None:
    draw, mean, deviation = DRAWS[name]
    first, second = numbers(drawing(draw), 2)
    assert not np.array_equal(first, second)
    for drawn in (first, second):
        assert abs(float(drawn.mean()) - mean) < 5 * deviation / N**0.5
        assert abs(float(drawn.std()) / deviation - 1) < 0.1


def test_permutations_are_permutations() -> None:
    (drawn,) = numbers(drawing(lambda: torch.randperm(101)), 1)
    assert np.array_equal(np.sort(drawn), np.arange(101))


def test_the_seed_decides() -> None:
    draw = DRAWS["dropout"][0]
    one, two, other = (numbers(drawing(draw, seed), 1)[0] for seed in (1, 1, 2))
    assert np.array_equal(one, two) and not np.array_equal(one, other)


def test_two_draws_differ() -> None:
    drawn = numbers(drawing(lambda: torch.stack([torch.rand(N), torch.rand(N)])), 1)[0]
    assert abs(np.corrcoef(drawn)[0, 1]) < 0.06


@pytest.mark.parametrize("name", ["rand", "randn", "dropout", "randperm"])
def test_devices_agree(name: str) -> None:
    ours, theirs = (numbers(drawing(DRAWS[name][0]), 1, d)[0] for d in ("opencl", "reference:cpu"))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)

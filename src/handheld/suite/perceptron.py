"""The four perceptrons of das2022, given by the widths of their layers, with ReLU between layers.

The paper names neither activation nor loss. ReLU, and cross entropy with the width of the last layer as the
number of classes, are our choice. The study does not depend on it, because the matrix products are the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from handheld.suite.synthetic import Parts, patterns, seeded, sgd

WIDTHS = (16, 16)


def build(widths: Sequence[int] = WIDTHS) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def make(*, seed: int = 0, widths: Sequence[int] = WIDTHS) -> Parts:
    model = seeded(lambda: build(widths), seed)
    return model, F.cross_entropy, sgd(model.parameters(), 0.02)


def batch(n: int, seed: int, *, widths: Sequence[int] = WIDTHS) -> tuple[Tensor, Tensor]:
    return patterns(n, seed, widths[:1], widths[-1])

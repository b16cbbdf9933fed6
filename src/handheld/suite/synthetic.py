"""Synthetic batches, and functions that all families share.

The data can be learned: an image is noise around the pattern of its class, and a token follows from the one
before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

M = TypeVar("M")
#: A model, its loss and its optimizer: `loss(model(*inputs), target)` is a scalar.
Parts = tuple[nn.Module, Callable[..., Tensor], torch.optim.Optimizer]


def seeded(make: Callable[[], M], seed: int) -> M:
    """What `make` returns with PyTorch's generator set to `seed`. The generator's state is then restored."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def sgd(parameters: Iterable[nn.Parameter], rate: float = 0.01) -> torch.optim.Optimizer:
    """The default optimizer of the suite."""
    return torch.optim.SGD(parameters, lr=rate, momentum=0.9)


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that the optimizer gets: those that are not frozen."""
    return [p for p in model.parameters() if p.requires_grad]


def patterns(n: int, seed: int, shape: Sequence[int], classes: int) -> tuple[Tensor, Tensor]:
    """x[n, *shape], where each sample is noise around the pattern of its class, and the classes."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=generator)
    noise = torch.randn(n, *shape, generator=generator)
    # Each pattern has its own seed, because a batch holds few of a thousand classes.
    means = {
        label: torch.randn(*shape, generator=torch.Generator().manual_seed(20 + label))
        for label in set(labels.tolist())
    }
    return 0.5 * torch.stack([means[label] for label in labels.tolist()]) + noise, labels


def images(n: int, seed: int, shape: tuple[int, int, int], classes: int) -> tuple[Tensor, Tensor]:
    """x[n, channels, height, width] and the class of each image."""
    return patterns(n, seed, shape, classes)


def tokens(n: int, seed: int, length: int, vocabulary: int) -> Tensor:
    """Rows of tokens. Nine of ten follow from the token before by a fixed rule."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(vocabulary, (n, length), generator=generator)
    free = torch.rand(n, length, generator=generator) < 0.1
    for t in range(1, length):
        follows = (rows[:, t - 1] * 5 + 3) % vocabulary
        rows[:, t] = torch.where(free[:, t], rows[:, t], follows)
    return rows


def token_loss(scores: Tensor, target: Tensor) -> Tensor:
    """Mean cross entropy of scores[n, t, vocabulary] against target[n, t]."""
    return F.cross_entropy(scores.flatten(0, 1), target.flatten())


class Classifier(nn.Module):
    """Features of an image, averaged over its pixels if there are any left, then the classifier."""

    def __init__(self, features: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.features, self.head = features, head

    def forward(self, x: Tensor) -> Tensor:
        y = self.features(x)
        scores: Tensor = self.head(F.adaptive_avg_pool2d(y, 1).flatten(1))
        return scores

"""Multi-layer perceptrons on 28x28 images: 784-256-128-10, or other hidden widths."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from handheld.suite.synthetic import Parts, images, seeded, sgd

WIDTHS = (256, 128)


def build(*, classes: int = 10, widths: Sequence[int] = WIDTHS) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in zip((784, *widths), widths, strict=False):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1] if widths else 784, classes))


def make(*, seed: int = 0, classes: int = 10, widths: Sequence[int] = WIDTHS) -> Parts:
    model = seeded(lambda: build(classes=classes, widths=widths), seed)
    return model, F.cross_entropy, sgd(model.parameters(), 0.02)


def batch(n: int, seed: int, *, classes: int = 10, widths: Sequence[int] = WIDTHS) -> tuple[Tensor, Tensor]:
    return images(n, seed, (1, 28, 28), classes)

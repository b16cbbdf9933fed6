"""Keyword spotting on one second of speech (Zhang et al., 2017, "Hello Edge").

The input is 49 or 25 frames of ten features. DS-CNN has depthwise separable convolutions; GRU has one recurrent layer.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from handheld.suite.synthetic import Classifier, Parts, patterns, seeded, sgd

FEATURES = 10
FRAMES = {"ds_cnn": 49, "gru": 25}


def ds_cnn(classes: int, width: int, blocks: int = 4) -> nn.Module:
    """x[n, 1, frames, features] -> scores of the words."""
    layers: list[nn.Module] = [nn.Conv2d(1, width, (10, 4), 2, (5, 1)), nn.BatchNorm2d(width), nn.ReLU()]
    for _ in range(blocks):
        for conv in (nn.Conv2d(width, width, 3, 1, 1, groups=width), nn.Conv2d(width, width, 1)):
            layers += [conv, nn.BatchNorm2d(width), nn.ReLU()]
    return Classifier(nn.Sequential(*layers), nn.Sequential(nn.Dropout(0.2), nn.Linear(width, classes)))


class Gru(nn.Module):
    """x[n, frames, features] -> scores of the words, from the state after the last frame."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.gru = nn.GRU(FEATURES, width, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.gru(x)
        scores: Tensor = self.head(states[:, -1])
        return scores


def build(classes: int, model: str, width: int) -> nn.Module:
    return ds_cnn(classes, width) if model == "ds_cnn" else Gru(classes, width)


def make(*, seed: int = 0, classes: int = 12, model: str = "ds_cnn", width: int = 64) -> Parts:
    network = seeded(lambda: build(classes, model, width), seed)
    return network, F.cross_entropy, sgd(network.parameters(), 0.02)


def batch(n: int, seed: int, *, classes: int = 12, model: str = "ds_cnn", width: int = 64) -> tuple[Tensor, Tensor]:
    x, words = patterns(n, seed, (1, FRAMES[model], FEATURES), classes)
    return (x if model == "ds_cnn" else x[:, 0]), words

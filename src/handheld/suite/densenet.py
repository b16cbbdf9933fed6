"""DenseNets for CIFAR (Huang et al., 2017, without bottlenecks): three blocks in which every layer gets the
outputs of all earlier layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from handheld.suite.synthetic import Classifier, Parts, images, seeded, sgd


class DenseLayer(nn.Module):
    """Adds `growth` channels to those of its input."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(inputs)
        self.conv = nn.Conv2d(inputs, growth, 3, 1, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.conv(F.relu(self.norm(x)))], 1)


def build(classes: int = 10, depth: int = 40, growth: int = 12) -> Classifier:
    channels = 16
    layers: list[nn.Module] = [nn.Conv2d(3, channels, 3, 1, 1, bias=False)]
    for block in range(3):
        for _ in range((depth - 4) // 3):
            layers.append(DenseLayer(channels, growth))
            channels += growth
        layers += [nn.BatchNorm2d(channels), nn.ReLU()]
        if block < 2:
            layers += [nn.Conv2d(channels, channels, 1, bias=False), nn.AvgPool2d(2)]
    model = Classifier(nn.Sequential(*layers), nn.Linear(channels, classes))
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
    return model


def make(*, seed: int = 0, size: int = 32, classes: int = 10, depth: int = 40, growth: int = 12) -> Parts:
    model = seeded(lambda: build(classes, depth, growth), seed)
    return model, F.cross_entropy, sgd(model.parameters())


def batch(
    n: int, seed: int, *, size: int = 32, classes: int = 10, depth: int = 40, growth: int = 12
) -> tuple[Tensor, Tensor]:
    return images(n, seed, (3, size, size), classes)

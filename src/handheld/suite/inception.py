"""Inception-v1, GoogLeNet (Szegedy et al., 2015), in today's form: with batch norm, without the two auxiliary
classifiers, and with 3x3 instead of 5x5 convolutions, as in TensorFlow and PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from handheld.suite.synthetic import Classifier, Parts, images, seeded, sgd


def conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False),
        nn.BatchNorm2d(outputs, eps=1e-3),
        nn.ReLU(),
    )


class Inception(nn.Module):
    """Four parallel branches: 1x1, 3x3, another 3x3, and pooling followed by 1x1."""

    def __init__(self, inputs: int, one: int, before: int, three: int, before2: int, three2: int, pooled: int) -> None:
        super().__init__()
        self.one = conv(inputs, one, 1)
        self.three = nn.Sequential(conv(inputs, before, 1), conv(before, three, 3))
        self.three2 = nn.Sequential(conv(inputs, before2, 1), conv(before2, three2, 3))
        self.pooled = nn.Sequential(nn.MaxPool2d(3, 1, 1), conv(inputs, pooled, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.three(x), self.three2(x), self.pooled(x)], 1)


def build(classes: int = 10) -> Classifier:
    features = nn.Sequential(
        conv(3, 64, 7, 2),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        conv(64, 64, 1),
        conv(64, 192, 3),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        Inception(192, 64, 96, 128, 16, 32, 32),
        Inception(256, 128, 128, 192, 32, 96, 64),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        Inception(480, 192, 96, 208, 16, 48, 64),
        Inception(512, 160, 112, 224, 24, 64, 64),
        Inception(512, 128, 128, 256, 24, 64, 64),
        Inception(512, 112, 144, 288, 32, 64, 64),
        Inception(528, 256, 160, 320, 32, 128, 128),
        nn.MaxPool2d(2, 2, ceil_mode=True),
        Inception(832, 256, 160, 320, 32, 128, 128),
        Inception(832, 384, 192, 384, 48, 128, 128),
    )
    model = Classifier(features, nn.Sequential(nn.Dropout(0.2), nn.Linear(1024, classes)))
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.trunc_normal_(module.weight, 0, 0.01, -2, 2)
    return model


def make(*, seed: int = 0, size: int = 32, classes: int = 10) -> Parts:
    model = seeded(lambda: build(classes), seed)
    return model, F.cross_entropy, sgd(model.parameters())


def batch(n: int, seed: int, *, size: int = 32, classes: int = 10) -> tuple[Tensor, Tensor]:
    return images(n, seed, (3, size, size), classes)

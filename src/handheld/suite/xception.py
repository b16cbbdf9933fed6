"""Xception (Chollet, 2017): depthwise separable convolutions with shortcuts."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from handheld.suite.synthetic import Classifier, Parts, images, seeded, sgd


def separable(inputs: int, outputs: int) -> list[nn.Module]:
    """One filter per channel, then a 1x1 convolution that mixes the channels."""
    return [
        nn.Conv2d(inputs, inputs, 3, 1, 1, groups=inputs, bias=False),
        nn.Conv2d(inputs, outputs, 1, bias=False),
        nn.BatchNorm2d(outputs),
    ]


class Block(nn.Module):
    """ReLU and a separable convolution for each of `widths`; with a stride, pooling follows."""

    def __init__(self, inputs: int, *widths: int, stride: int = 1, active: bool = True) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = inputs
        for i, width in enumerate(widths):
            layers += [nn.ReLU()] if i or active else []
            layers += separable(channels, width)
            channels = width
        self.conv = nn.Sequential(*layers, *([nn.MaxPool2d(3, 2, 1)] if stride > 1 else []))
        self.shortcut: nn.Module = (
            nn.Identity()
            if stride == 1
            else nn.Sequential(nn.Conv2d(inputs, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x) + self.shortcut(x)
        return y


def build(classes: int = 10, middle: int = 8) -> Classifier:
    """`middle` blocks of 728 channels; the published model has eight."""
    features = nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        Block(64, 128, 128, stride=2, active=False),
        Block(128, 256, 256, stride=2),
        Block(256, 728, 728, stride=2),
        *(Block(728, 728, 728, 728) for _ in range(middle)),
        Block(728, 728, 1024, stride=2),
        *separable(1024, 1536),
        nn.ReLU(),
        *separable(1536, 2048),
        nn.ReLU(),
    )
    model = Classifier(features, nn.Linear(2048, classes))
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


def make(*, seed: int = 0, size: int = 32, classes: int = 10, middle: int = 8) -> Parts:
    model = seeded(lambda: build(classes, middle), seed)
    return model, F.cross_entropy, sgd(model.parameters())


def batch(n: int, seed: int, *, size: int = 32, classes: int = 10, middle: int = 8) -> tuple[Tensor, Tensor]:
    return images(n, seed, (3, size, size), classes)

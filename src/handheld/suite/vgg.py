"""AlexNet (Krizhevsky, 2014: one tower) and the VGGs (Simonyan and Zisserman, 2015), with dropout.

Images smaller than 224 pixels reach the classifier through adaptive pooling. Below 64 pixels, AlexNet's first
convolution has no stride, and the classifier is small (`hidden`, `grid`).
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from handheld.suite.synthetic import Parts, images, seeded, sgd

#: The published rate is 0.01, for batches of 128 (AlexNet) and 256 (VGG). At the suite's batches of 16 and 8 and from
#: 64 pixels on, it makes the loss of the VGGs NaN and that of AlexNet jump, because nothing normalises the activations.
#: A rate in proportion to the batch trains.
PAPER_RATES = {8: 0.01 * 16 / 128, 16: 0.01 * 8 / 256, 19: 0.01 * 8 / 256}
VGG = {
    16: (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0),
    19: (64, 64, 0, 128, 128, 0, 256, 256, 256, 256, 0, 512, 512, 512, 512, 0, 512, 512, 512, 512, 0),
}


def vgg(depth: int, grid: int) -> list[nn.Module]:
    """3x3 convolutions, with a pooling wherever the list has a 0."""
    layers: list[nn.Module] = []
    inputs = 3
    for width in VGG[depth]:
        layers += [nn.Conv2d(inputs, width, 3, 1, 1), nn.ReLU()] if width else [nn.MaxPool2d(2)]
        inputs = width or inputs
    return [*layers, nn.AdaptiveAvgPool2d(grid)]


def alexnet(grid: int, stride: int) -> list[nn.Module]:
    return [
        nn.Conv2d(3, 64, 11, stride, 2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(64, 192, 5, 1, 2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(192, 384, 3, 1, 1),
        nn.ReLU(),
        nn.Conv2d(384, 256, 3, 1, 1),
        nn.ReLU(),
        nn.Conv2d(256, 256, 3, 1, 1),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
        nn.AdaptiveAvgPool2d(grid),
    ]


def build(classes: int, depth: int, hidden: int = 4096, grid: int = 0, size: int = 224) -> nn.Sequential:
    """`depth` 8 is AlexNet. The classifier gets `grid` x `grid` pixels; 0 stands for the published 7 (AlexNet: 6)."""
    grid = grid or (6 if depth == 8 else 7)
    layers, channels = (alexnet(grid, 4 if size >= 64 else 1), 256) if depth == 8 else (vgg(depth, grid), 512)
    model = nn.Sequential(
        *layers,
        nn.Flatten(),
        nn.Linear(channels * grid * grid, hidden),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(hidden, classes),
    )
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


def make(
    *, seed: int = 0, size: int = 224, classes: int = 1000, depth: int = 16, hidden: int = 4096, grid: int = 0
) -> Parts:
    model = seeded(lambda: build(classes, depth, hidden, grid, size), seed)
    optimizer = sgd(model.parameters(), PAPER_RATES[depth]) if size >= 64 else sgd(model.parameters())
    return model, F.cross_entropy, optimizer


def batch(
    n: int, seed: int, *, size: int = 224, classes: int = 1000, depth: int = 16, hidden: int = 4096, grid: int = 0
) -> tuple[Tensor, Tensor]:
    return images(n, seed, (3, size, size), classes)

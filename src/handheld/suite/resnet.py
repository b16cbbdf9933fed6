"""ResNets (He et al., 2016) of 18, 34, 50, 101 and 152 layers, with the ImageNet stem (7x7, pooling) or, for small
images, with a 3x3 stem."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from handheld.suite.synthetic import Classifier, Parts, images, seeded, sgd

DEPTHS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}


def shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut."""

    widen = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = shortcut(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class Bottleneck(nn.Module):
    """1x1, 3x3 (with the stride) and 1x1 convolutions with a shortcut."""

    widen = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.shortcut = shortcut(inputs, 4 * width, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + self.shortcut(x))


def build(classes: int = 10, depth: int = 18, small_stem: bool = False) -> Classifier:
    block = BasicBlock if depth < 50 else Bottleneck
    layers: list[nn.Module] = (
        [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
        if small_stem
        else [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    )
    inputs = 64
    for width, count, stride in zip((64, 128, 256, 512), DEPTHS[depth], (1, 2, 2, 2), strict=True):
        for i in range(count):
            layers.append(block(inputs, width, 1 if i else stride))
            inputs = width * block.widen
    model = Classifier(nn.Sequential(*layers), nn.Linear(inputs, classes))
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


def make(*, seed: int = 0, size: int = 32, classes: int = 10, depth: int = 18, small_stem: bool = False) -> Parts:
    model = seeded(lambda: build(classes, depth, small_stem), seed)
    return model, F.cross_entropy, sgd(model.parameters())


def batch(
    n: int, seed: int, *, size: int = 32, classes: int = 10, depth: int = 18, small_stem: bool = False
) -> tuple[Tensor, Tensor]:
    return images(n, seed, (3, size, size), classes)

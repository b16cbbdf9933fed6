"""SqueezeNet 1.1 (Iandola et al., 2016): fire modules, and a convolution as the classifier."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from handheld.suite.synthetic import Parts, images, seeded, sgd


class Fire(nn.Module):
    """Squeeze to few channels, then expand with parallel 1x1 and 3x3 filters."""

    def __init__(self, inputs: int, squeeze: int, expand: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(inputs, squeeze, 1)
        self.expand1 = nn.Conv2d(squeeze, expand, 1)
        self.expand3 = nn.Conv2d(squeeze, expand, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.squeeze(x))
        return torch.cat([F.relu(self.expand1(x)), F.relu(self.expand3(x))], 1)


class SqueezeNet(nn.Module):
    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 3, 2),
            nn.ReLU(),
            _pool(),
            Fire(64, 16, 64),
            Fire(128, 16, 64),
            _pool(),
            Fire(128, 32, 128),
            Fire(256, 32, 128),
            _pool(),
            Fire(256, 48, 192),
            Fire(384, 48, 192),
            Fire(384, 64, 256),
            Fire(512, 64, 256),
        )
        last = nn.Conv2d(512, classes, 1)
        self.classifier = nn.Sequential(nn.Dropout(0.5), last, nn.ReLU())
        for module in self.modules():
            if isinstance(module, nn.Conv2d) and module is not last:
                nn.init.kaiming_uniform_(module.weight)
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]
        nn.init.normal_(last.weight, 0, 0.01)
        nn.init.zeros_(last.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(self.classifier(self.features(x)), 1).flatten(1)


def _pool() -> nn.Module:
    return nn.MaxPool2d(3, 2, ceil_mode=True)


def make(*, seed: int = 0, size: int = 32, classes: int = 10) -> Parts:
    model = seeded(lambda: SqueezeNet(classes), seed)
    return model, F.cross_entropy, sgd(model.parameters())


def batch(n: int, seed: int, *, size: int = 32, classes: int = 10) -> tuple[Tensor, Tensor]:
    return images(n, seed, (3, size, size), classes)

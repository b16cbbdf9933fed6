"""MobileNetV2 (Sandler et al., 2018): inverted residuals with depthwise convolutions.

`tune` sets what is trained: all, last (the last layer) or bias (all biases; Cai et al., 2020). If the rest is
frozen, batch norm keeps its statistics.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from handheld.errors import HandheldError
from handheld.suite.synthetic import Classifier, Parts, images, seeded, sgd, trainable

#: expansion, channels, blocks, stride of the first block
_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def _conv(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, active: bool = True
) -> list[nn.Module]:
    layers: list[nn.Module] = [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]
    return layers + ([nn.ReLU6(inplace=True)] if active else [])


class InvertedResidual(nn.Module):
    """Expand, depthwise convolution, project; with a shortcut if the shapes allow it."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        self.skip = stride == 1 and inputs == outputs
        self.conv = nn.Sequential(
            *(_conv(inputs, hidden, 1) if expansion > 1 else ()),
            *_conv(hidden, hidden, 3, stride, groups=hidden),
            *_conv(hidden, outputs, 1, active=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        return x + y if self.skip else y


def build(classes: int = 10) -> Classifier:
    layers, channels = _conv(3, 32, 3, 2), 32
    for expansion, outputs, blocks, stride in _STAGES:
        for block in range(blocks):
            first = stride if block == 0 else 1
            layers.append(InvertedResidual(channels, outputs, first, expansion))
            channels = outputs
    layers += _conv(channels, 1280, 1)
    head = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, classes))
    model = Classifier(nn.Sequential(*layers), head)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out")
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, 0, 0.01)
            nn.init.zeros_(module.bias)
    return model


class Frozen(nn.Module):
    """A model whose batch norms stay in evaluation mode, also during training."""

    def __init__(self, model: Classifier) -> None:
        super().__init__()
        self.model = model

    def train(self, mode: bool = True) -> Frozen:
        super().train(mode)
        self.model.features.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.model(x)
        return scores


def tuned(model: Classifier, tune: str) -> nn.Module:
    if tune == "all":
        return model
    if tune not in ("last", "bias"):
        raise HandheldError(f"mobilenet_v2 has no tune={tune!r}. Try: all, last or bias")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith("head.") or (tune == "bias" and name.endswith(".bias")))
    return Frozen(model).train()


def make(*, seed: int = 0, size: int = 32, classes: int = 10, tune: str = "all") -> Parts:
    model = tuned(seeded(lambda: build(classes), seed), tune)
    return model, F.cross_entropy, sgd(trainable(model))


def batch(n: int, seed: int, *, size: int = 32, classes: int = 10, tune: str = "all") -> tuple[Tensor, Tensor]:
    return images(n, seed, (3, size, size), classes)

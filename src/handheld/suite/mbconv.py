"""MobileNetV3-Small (Howard et al., 2019) and EfficientNet-B0 (Tan and Le, 2019).

Both consist of inverted residuals with squeeze and excitation, which scales each channel by a weight computed
from the whole image. EfficientNet's stochastic depth (dropping blocks at random) is left out.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from handheld.suite.synthetic import Classifier, Parts, images, seeded, sgd

#: kernel, expanded channels, output channels, squeezed, activation, stride
_V3_SMALL = (
    (3, 16, 16, True, nn.ReLU, 2),
    (3, 72, 24, False, nn.ReLU, 2),
    (3, 88, 24, False, nn.ReLU, 1),
    (5, 96, 40, True, nn.Hardswish, 2),
    (5, 240, 40, True, nn.Hardswish, 1),
    (5, 240, 40, True, nn.Hardswish, 1),
    (5, 120, 48, True, nn.Hardswish, 1),
    (5, 144, 48, True, nn.Hardswish, 1),
    (5, 288, 96, True, nn.Hardswish, 2),
    (5, 576, 96, True, nn.Hardswish, 1),
    (5, 576, 96, True, nn.Hardswish, 1),
)
#: expansion, kernel, stride of the first block, channels, blocks
_B0 = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)


class Squeeze(nn.Module):
    """Scales each channel by a weight that a small perceptron computes from the means of all channels."""

    def __init__(self, channels: int, hidden: int, active: type[nn.Module], gate: type[nn.Module]) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Conv2d(channels, hidden, 1), nn.Conv2d(hidden, channels, 1)
        self.active, self.gate = active(), gate()

    def forward(self, x: Tensor) -> Tensor:
        weight = self.fc2(self.active(self.fc1(F.adaptive_avg_pool2d(x, 1))))
        y: Tensor = x * self.gate(weight)
        return y


def _conv(
    inputs: int, outputs: int, kernel: int, active: type[nn.Module] | None, eps: float, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    layers: list[nn.Module] = [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs, eps=eps),
    ]
    return [*layers, active()] if active else layers


class Residual(nn.Module):
    """Expand, depthwise convolution, scale the channels, project; with a shortcut if the shapes allow it."""

    def __init__(
        self,
        inputs: int,
        hidden: int,
        outputs: int,
        kernel: int,
        stride: int,
        active: type[nn.Module],
        squeeze: nn.Module | None,
        eps: float,
    ) -> None:
        super().__init__()
        self.skip = stride == 1 and inputs == outputs
        self.conv = nn.Sequential(
            *(_conv(inputs, hidden, 1, active, eps) if hidden != inputs else ()),
            *_conv(hidden, hidden, kernel, active, eps, stride, hidden),
            *([squeeze] if squeeze else []),
            *_conv(hidden, outputs, 1, None, eps),
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        return x + y if self.skip else y


def _eighth(channels: float) -> int:
    """The nearest multiple of eight that is not more than a tenth smaller."""
    near = max(8, int(channels + 4) // 8 * 8)
    return near + 8 if near < 0.9 * channels else near


def mobilenet_v3_small(classes: int) -> Classifier:
    layers, channels = _conv(3, 16, 3, nn.Hardswish, 1e-3, 2), 16
    for kernel, hidden, outputs, squeezed, active, stride in _V3_SMALL:
        squeeze = Squeeze(hidden, _eighth(hidden / 4), nn.ReLU, nn.Hardsigmoid) if squeezed else None
        layers.append(Residual(channels, hidden, outputs, kernel, stride, active, squeeze, 1e-3))
        channels = outputs
    layers += _conv(channels, 576, 1, nn.Hardswish, 1e-3)
    return Classifier(
        nn.Sequential(*layers),
        nn.Sequential(nn.Linear(576, 1024), nn.Hardswish(), nn.Dropout(0.2), nn.Linear(1024, classes)),
    )


def efficientnet_b0(classes: int) -> Classifier:
    layers, channels = _conv(3, 32, 3, nn.SiLU, 1e-5, 2), 32
    for expansion, kernel, stride, outputs, blocks in _B0:
        for block in range(blocks):
            hidden = channels * expansion
            squeeze = Squeeze(hidden, max(1, channels // 4), nn.SiLU, nn.Sigmoid)
            layers.append(
                Residual(channels, hidden, outputs, kernel, stride if block == 0 else 1, nn.SiLU, squeeze, 1e-5)
            )
            channels = outputs
    layers += _conv(channels, 1280, 1, nn.SiLU, 1e-5)
    return Classifier(nn.Sequential(*layers), nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, classes)))


MODELS = {"mobilenet_v3_small": mobilenet_v3_small, "efficientnet_b0": efficientnet_b0}


def build(classes: int, model: str) -> Classifier:
    network = MODELS[model](classes)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, 0, 0.01)
            nn.init.zeros_(module.bias)
    return network


def make(*, seed: int = 0, size: int = 32, classes: int = 10, model: str = "efficientnet_b0") -> Parts:
    network = seeded(lambda: build(classes, model), seed)
    return network, F.cross_entropy, sgd(network.parameters())


def batch(
    n: int, seed: int, *, size: int = 32, classes: int = 10, model: str = "efficientnet_b0"
) -> tuple[Tensor, Tensor]:
    return images(n, seed, (3, size, size), classes)

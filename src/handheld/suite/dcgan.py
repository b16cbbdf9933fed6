"""DCGAN (Radford et al., 2016) on 64x64 images: two networks, two updates over one state.

Graph "d" takes (images, noise) and trains the discriminator on real and made images; graph "g"
takes (noise,) and trains the generator through the discriminator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from handheld.suite.synthetic import images, seeded

if TYPE_CHECKING:
    from handheld.capture.capture import Capture


def generator(noise: int = 100, width: int = 64) -> nn.Sequential:
    """noise[n, c, 1, 1] -> images[n, 3, 64, 64] in [-1, 1]."""
    layers: list[nn.Module] = []
    inputs = noise
    for i, outputs in enumerate((8 * width, 4 * width, 2 * width, width)):
        stride, padding = (1, 0) if i == 0 else (2, 1)
        layers += [nn.ConvTranspose2d(inputs, outputs, 4, stride, padding, bias=False),
                   nn.BatchNorm2d(outputs), nn.ReLU()]
        inputs = outputs
    layers += [nn.ConvTranspose2d(inputs, 3, 4, 2, 1, bias=False), nn.Tanh()]
    return _initialised(nn.Sequential(*layers))


def discriminator(width: int = 64) -> nn.Sequential:
    """images[n, 3, 64, 64] -> how real each is, [n]."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2)]
    for inputs in (width, 2 * width, 4 * width):
        layers += [nn.Conv2d(inputs, 2 * inputs, 4, 2, 1, bias=False),
                   nn.BatchNorm2d(2 * inputs), nn.LeakyReLU(0.2)]
    layers += [nn.Conv2d(8 * width, 1, 4, bias=False), nn.Flatten(0)]
    return _initialised(nn.Sequential(*layers))


def _initialised(model: nn.Sequential) -> nn.Sequential:
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.normal_(module.weight, 0, 0.02)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight, 1, 0.02)
    return model


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=2e-4, betas=(0.5, 0.999))


def loss_d(make: nn.Module, judge: nn.Module, real: Tensor, noise: Tensor) -> Tensor:
    """Real images are real, made ones are not; the generator learns nothing from this."""
    yes, no = judge(real), judge(make(noise).detach())
    return (F.binary_cross_entropy_with_logits(yes, torch.ones_like(yes))
            + F.binary_cross_entropy_with_logits(no, torch.zeros_like(no)))


def loss_g(make: nn.Module, judge: nn.Module, noise: Tensor) -> Tensor:
    """Made images pass for real ones."""
    score = judge(make(noise))
    return F.binary_cross_entropy_with_logits(score, torch.ones_like(score))


def record(n: int, seed: int, *, noise: int = 100, width: int = 64) -> Capture:
    """Both updates, captured over one state."""
    from handheld.capture.capture import Capture

    make, judge = seeded(lambda: (generator(noise, width), discriminator(width)), seed)
    real, z = batch(n, seed, noise=noise, width=width)
    capture = Capture({"generator": make, "discriminator": judge}, seed)
    capture.train(lambda b: loss_d(make, judge, *b), adam(judge), (real, z), "d")
    return capture.train(lambda b: loss_g(make, judge, *b), adam(make), (z,), "g")


def batch(n: int, seed: int, *, noise: int = 100, width: int = 64) -> tuple[Tensor, Tensor]:
    """Images for "d", and the noise that both updates start from."""
    real, _ = images(n, seed, (3, 64, 64), 10)
    z = torch.randn(n, noise, 1, 1, generator=torch.Generator().manual_seed(seed + 1))
    return real.tanh(), z

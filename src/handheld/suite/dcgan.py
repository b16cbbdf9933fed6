"""DCGAN (Radford et al., 2016) on 64x64 or 32x32 images: two networks, two updates, one state.

Graph "d" takes (images, noise) and trains the discriminator on real and generated images. Graph "g" takes
(noise,) and trains the generator through the discriminator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from handheld.errors import HandheldError
from handheld.suite.synthetic import images, seeded
from handheld.suite.workload import Modules, Update, record_updates

if TYPE_CHECKING:
    from handheld.frontend.capture import Capture


def _widths(width: int, size: int) -> list[int]:
    """Channels from 4x4 up to half of `size`: each doubling of the image halves them."""
    if size not in (16, 32, 64, 128):
        raise HandheldError(f"dcgan has no images of {size} pixels. Try: 16, 32, 64 or 128")
    return [width * size // 8 >> i for i in range(size.bit_length() - 3)]


def generator(noise: int = 100, width: int = 64, size: int = 64) -> nn.Sequential:
    """noise[n, c, 1, 1] -> images[n, 3, size, size] in [-1, 1]."""
    layers: list[nn.Module] = []
    inputs = noise
    for i, outputs in enumerate(_widths(width, size)):
        stride, padding = (1, 0) if i == 0 else (2, 1)
        layers += [
            nn.ConvTranspose2d(inputs, outputs, 4, stride, padding, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
        ]
        inputs = outputs
    layers += [nn.ConvTranspose2d(inputs, 3, 4, 2, 1, bias=False), nn.Tanh()]
    return _initialised(nn.Sequential(*layers))


def discriminator(width: int = 64, size: int = 64) -> nn.Sequential:
    """images[n, 3, size, size] -> [n], how real each image looks."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2)]
    *others, last = reversed(_widths(width, size))
    for inputs in others:
        layers += [nn.Conv2d(inputs, 2 * inputs, 4, 2, 1, bias=False), nn.BatchNorm2d(2 * inputs), nn.LeakyReLU(0.2)]
    layers += [nn.Conv2d(last, 1, 4, bias=False), nn.Flatten(0)]
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
    """Real images should be judged real, generated ones not. The generator gets no gradient from this loss."""
    yes, no = judge(real), judge(make(noise).detach())
    return F.binary_cross_entropy_with_logits(yes, torch.ones_like(yes)) + F.binary_cross_entropy_with_logits(
        no, torch.zeros_like(no)
    )


def loss_g(make: nn.Module, judge: nn.Module, noise: Tensor) -> Tensor:
    """Generated images should be judged real."""
    score = judge(make(noise))
    return F.binary_cross_entropy_with_logits(score, torch.ones_like(score))


UPDATES = (
    Update(
        "d", lambda m, b: loss_d(m["generator"], m["discriminator"], *b), lambda m: adam(m["discriminator"]), (0, 1)
    ),
    Update("g", lambda m, b: loss_g(m["generator"], m["discriminator"], *b), lambda m: adam(m["generator"]), (1,)),
)


def modules(seed: int, *, noise: int = 100, width: int = 64, size: int = 64) -> Modules:
    make, judge = seeded(lambda: (generator(noise, width, size), discriminator(width, size)), seed)
    return {"generator": make, "discriminator": judge}


def record(n: int, seed: int, *, noise: int = 100, width: int = 64, size: int = 64) -> Capture:
    """Both updates, captured over one state."""
    options = {"noise": noise, "width": width, "size": size}
    return record_updates(modules(seed, **options), UPDATES, batch(n, seed, **options), seed)


def batch(n: int, seed: int, *, noise: int = 100, width: int = 64, size: int = 64) -> tuple[Tensor, Tensor]:
    """Images for "d", and the noise for both updates."""
    real, _ = images(n, seed, (3, size, size), 10)
    z = torch.randn(n, noise, 1, 1, generator=torch.Generator().manual_seed(seed + 1))
    return real.tanh(), z

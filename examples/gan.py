"""A GAN: two networks, two optimizers, one state on the device. It learns points on a circle.

python examples/gan.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import handheld

torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
critic = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))


def points(count: int) -> Tensor:
    angle = torch.rand(count) * 2 * torch.pi
    return torch.stack([angle.cos(), angle.sin()], 1) + 0.02 * torch.randn(count, 2)


def critic_loss(batch: tuple[Tensor, Tensor]) -> Tensor:
    real, noise = batch
    fake = generator(noise).detach()
    return F.softplus(-critic(real)).mean() + F.softplus(critic(fake)).mean()


def generator_loss(batch: tuple[Tensor]) -> Tensor:
    return F.softplus(-critic(generator(batch[0]))).mean()


capture = handheld.Capture({"generator": generator, "critic": critic})
rate = {"lr": 1e-3, "betas": (0.5, 0.99)}
capture.train(critic_loss, torch.optim.Adam(critic.parameters(), **rate), (points(128), torch.randn(128, 8)), "critic")
capture.train(generator_loss, torch.optim.Adam(generator.parameters(), **rate), (torch.randn(128, 8),), "generator")
step = capture.step(name="gan")

with step.plan("opencl").start() as trainer:
    for number in range(1, 1501):
        d = trainer.run("critic", points(128), torch.randn(128, 8))
        g = trainer.run("generator", torch.randn(128, 8))
        if number % 500 == 0:
            print(f"step {number}: critic {d:.3f}, generator {g:.3f}")
step.copy_to({"generator": generator, "critic": critic})
with torch.no_grad():
    radius = generator(torch.randn(1000, 8)).norm(dim=1)
print(f"radius of the generated points: {radius.mean():.2f} ± {radius.std():.2f} (real: 1.00 ± 0.02)")

"""Images: classification, segmentation, detection, generation."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from family import Batch
from torch import nn

from plain.base import T, classify, family, images, own, tensors


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()

        def block(a: int, b: int) -> nn.Sequential:
            return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(inplace=True))

        self.down1, self.down2, self.deep = block(3, 8), block(8, 12), block(12, 16)
        self.up1, self.up2 = (
            nn.ConvTranspose2d(16, 12, 2, 2),
            nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True),
        )
        self.join1, self.join2, self.head = block(24, 12), block(20, 8), nn.Conv2d(8, 5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.deep(F.max_pool2d(b, 2))
        d = self.join1(torch.cat([self.up1(c), b], 1))
        return self.head(self.join2(torch.cat([self.up2(d), a], 1)))


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Conv2d(1, 8, 4, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 8))
        self.decode = nn.Sequential(
            nn.Linear(4, 512), nn.ReLU(), nn.Unflatten(1, (8, 8, 8)), nn.ConvTranspose2d(8, 1, 4, 2, 1)
        )

    def forward(self, x: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        mean, log = self.encode(x).chunk(2, 1)
        noise = torch.randn_like(mean) if self.training and noise.numel() == 0 else noise
        return self.decode(mean + noise * (0.5 * log).exp()), mean, log


def elbo(model: nn.Module, batch: Batch) -> torch.Tensor:
    y, mean, log = model(batch["x"], batch["noise"])
    return (
        F.binary_cross_entropy_with_logits(y, batch["x"].sigmoid()) - 0.5 * (1 + log - mean.square() - log.exp()).mean()
    )


class Critic(nn.Module):
    """A Wasserstein critic with gradient penalty."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(8, 8, 3, 2, 1),
            nn.InstanceNorm2d(8, affine=True),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(128, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


def penalty(model: nn.Module, batch: Batch) -> torch.Tensor:
    mixed = (batch["real"] + batch["fake"]).mul(0.5).requires_grad_()
    score = model(mixed)
    (g,) = torch.autograd.grad(score.sum(), mixed, create_graph=True)
    return (
        model(batch["fake"]).mean() - model(batch["real"]).mean() + 10 * (g.flatten(1).norm(dim=1) - 1).square().mean()
    )


class Spatial(nn.Module):
    """A spatial transformer: a learned grid, sampled bilinearly."""

    def __init__(self) -> None:
        super().__init__()
        self.where, self.net = nn.Sequential(nn.Flatten(), nn.Linear(192, 6)), nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        theta = self.where(x).view(-1, 2, 3) * 0.1 + torch.eye(2, 3, dtype=x.dtype)
        return self.net(F.grid_sample(x, F.affine_grid(theta, list(x.shape), align_corners=False), align_corners=False))


class Detector(nn.Module):
    """A detection head: anchors, boxes, focal loss and IoU."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.SiLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.SiLU()
        )
        self.kind, self.box = nn.Conv2d(8, 2 * 4, 1), nn.Conv2d(8, 2 * 4, 1)

    def forward(self, x: torch.Tensor, hot: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        logits = self.kind(y).permute(0, 2, 3, 1).reshape(x.shape[0], -1, 4)
        found = self.box(y).permute(0, 2, 3, 1).reshape(x.shape[0], -1, 4).sigmoid()
        p = logits.sigmoid()
        bce = F.binary_cross_entropy_with_logits(logits, hot, reduction="none")
        focal = (bce * (1 - torch.where(hot > 0.5, p, 1 - p)) ** 2).mean()
        low, high = (
            torch.maximum(found[..., :2], boxes[..., :2]),
            torch.minimum(found[..., 2:] + 1, boxes[..., 2:] + 1),
        )
        inner = (high - low).clamp(min=0).prod(-1)
        area = (found[..., 2:] + 1 - found[..., :2]).prod(-1) + (boxes[..., 2:] + 1 - boxes[..., :2]).prod(-1)
        return focal + (1 - inner / (area - inner)).mean()


def boxes() -> Batch:
    return {"x": torch.randn(2, 3, 16, 16), "hot": (torch.rand(2, 32, 4) > 0.8).float(), "boxes": torch.rand(2, 32, 4)}


class Sign(torch.autograd.Function):
    """±1 with a straight-through gradient."""

    @staticmethod
    def forward(ctx: Any, x: T) -> T:
        ctx.save_for_backward(x)
        return torch.where(x >= 0, 1.0, -1.0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, g: T) -> T:
        (x,) = ctx.saved_tensors
        return g * (x.abs() <= 1)


class Binary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 5)

    def forward(self, x: T) -> T:
        y = F.conv2d(Sign.apply(x), Sign.apply(self.conv.weight), self.conv.bias, 2)
        return self.head(self.norm(y).mean((2, 3)))


class Capsules(nn.Module):
    """Routing by agreement."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.weight = nn.Conv2d(3, 16, 5, 4), nn.Parameter(torch.randn(36, 5, 6, 4) / 4)

    @staticmethod
    def squash(x: T) -> T:
        size = x.square().sum(-1, keepdim=True)
        return x * size / (1 + size) / (size + 1e-8).sqrt()

    def forward(self, x: T) -> T:
        u = self.squash(self.conv(x).flatten(2).reshape(x.shape[0], -1, 4))
        votes = torch.einsum("bni,nkoi->bnko", u, self.weight)
        logits = torch.zeros(votes.shape[:3], dtype=x.dtype)
        for _ in range(3):
            v = self.squash((logits.softmax(2).unsqueeze(-1) * votes).sum(1))
            logits = logits + (votes * v.unsqueeze(1)).sum(-1)
        return v.norm(dim=-1)


class Denoiser(nn.Module):
    """A diffusion model's step: noise at a given time, and its prediction."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.time, self.outer = (
            nn.Conv2d(3, 8, 3, padding=1),
            nn.Linear(8, 8),
            nn.Conv2d(8, 3, 3, padding=1),
        )
        self.register_buffer("kept", torch.cumprod(1 - torch.linspace(1e-4, 0.02, 50), 0))

    def forward(self, x: T, when: T, noise: T) -> T:
        kept = self.kept[when].view(-1, 1, 1, 1)
        noisy = kept.sqrt() * x + (1 - kept).sqrt() * noise
        bands = torch.exp(-torch.arange(4, dtype=x.dtype))
        angles = when.to(x.dtype).unsqueeze(1) * bands
        time = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        y = F.silu(F.group_norm(self.inner(noisy), 4) + time[:, :, None, None])
        return F.mse_loss(self.outer(y), noise)


def noised() -> Batch:
    return {"x": torch.randn(2, 3, 8, 8), "when": torch.randint(0, 50, (2,)), "noise": torch.randn(2, 3, 8, 8)}


class Segment(nn.Module):
    """Dice, structural similarity and boundary losses."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=2, dilation=2), nn.PReLU(8), nn.Conv2d(8, 4, 1))

    def forward(self, x: T, labels: T) -> T:
        p = self.net(x).softmax(1)
        hot = F.one_hot(labels, 4).permute(0, 3, 1, 2).to(x.dtype)
        dice = 1 - (2 * (p * hot).sum((2, 3)) + 1) / ((p + hot).sum((2, 3)) + 1)
        box = torch.full((4, 1, 3, 3), 1 / 9, dtype=x.dtype)
        a, b = (F.conv2d(t, box, groups=4) for t in (p, hot))
        cover = F.conv2d(p * hot, box, groups=4) - a * b
        alike = (2 * a * b + 0.01) * (2 * cover + 0.03) / ((a**2 + b**2 + 0.01) * 1.03)
        slope = (p.diff(dim=2).abs().mean() - hot.diff(dim=3).abs().mean()).square()
        return dice.mean() + (1 - alike).mean() + slope


def labelled() -> Batch:
    return {"x": torch.randn(2, 3, 9, 9), "labels": torch.randint(0, 4, (2, 9, 9))}


FAMILIES = [
    family(
        "mlp",
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(768, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 5)),
        images(),
        classify,
    ),
    family("unet", UNet, tensors(x=(2, 3, 16, 16))),
    family("vae", VAE, tensors(x=(3, 1, 16, 16), noise=(3, 4)), elbo),
    family("critic with penalty", Critic, tensors(real=(3, 3, 16, 16), fake=(3, 3, 16, 16)), penalty),
    family("spatial transformer", Spatial, tensors(x=(2, 3, 8, 8))),
    family("detector", Detector, boxes, own),
    family("binary network", Binary, images(), classify),
    family("capsules", Capsules, images(), classify),
    family("diffusion", Denoiser, noised, own),
    family("segmentation losses", Segment, labelled, own),
    family(
        "spectral norm",
        lambda: nn.Sequential(
            nn.utils.parametrizations.spectral_norm(nn.Conv2d(3, 4, 3)),
            nn.Flatten(),
            nn.utils.parametrizations.spectral_norm(nn.Linear(64, 2)),
        ),
        tensors(x=(2, 3, 6, 6)),
        mode="train",
    ),
    family("old spectral norm", lambda: nn.utils.spectral_norm(nn.Linear(6, 4)), tensors(x=(3, 6)), mode="train"),
    family(
        "orthogonal",
        lambda: nn.utils.parametrizations.orthogonal(nn.Linear(4, 4), orthogonal_map="cayley"),
        tensors(x=(3, 4)),
    ),
    family(
        "super resolution",
        lambda: nn.Sequential(
            nn.Conv2d(3, 16, 5, padding=2), nn.Tanh(), nn.Conv2d(16, 12, 3, padding=1), nn.PixelShuffle(2)
        ),
        tensors(x=(2, 3, 8, 8)),
    ),
    family(
        "group norm",
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.GroupNorm(4, 8), nn.Mish(), nn.AdaptiveMaxPool2d(2)),
        tensors(x=(2, 3, 9, 9)),
    ),
    family(
        "video",
        lambda: nn.Sequential(
            nn.Conv3d(3, 6, 3, padding=1),
            nn.BatchNorm3d(6),
            nn.ReLU(),
            nn.MaxPool3d(2),
            nn.Conv3d(6, 4, 2),
            nn.AdaptiveAvgPool3d(1),
            nn.Flatten(),
        ),
        tensors(x=(2, 3, 4, 8, 8)),
    ),
    family(
        "alexnet with response norm",
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 5, 2),
            nn.ReLU(),
            nn.LocalResponseNorm(5),
            nn.MaxPool2d(3, 2),
            nn.Flatten(),
            nn.Linear(128, 5),
        ),
        images(size=24),
        classify,
    ),
]

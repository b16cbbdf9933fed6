"""Learned functions: operators, flows, differential equations, fields, densities."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from plain.base import T, family, own, tensors


class Fourier(nn.Module):
    """A Fourier neural operator, which multiplies the lowest frequencies by weights."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.mix, self.head = nn.Linear(1, 6), nn.Conv1d(6, 6, 1), nn.Linear(6, 1)
        self.weight = nn.Parameter(torch.randn(6, 6, 5, 2) / 6)

    def forward(self, x: T) -> T:
        y = self.lift(x).transpose(1, 2)
        low = torch.fft.rfft(y)[..., :5]
        spectrum = torch.zeros(*y.shape[:2], y.shape[2] // 2 + 1, dtype=low.dtype)
        spectrum[..., :5] = torch.einsum("bix,iox->box", low, torch.view_as_complex(self.weight))
        y = F.gelu(torch.fft.irfft(spectrum, n=y.shape[2]) + self.mix(y))
        return self.head(y.transpose(1, 2))


class Flow(nn.Module):
    """A normalising flow: invertible mixing, affine coupling and their likelihood."""

    def __init__(self) -> None:
        super().__init__()
        self.mixing = nn.Parameter(torch.eye(6) + 0.1 * torch.randn(6, 6))
        self.net = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 6))

    def forward(self, x: T) -> T:
        a, b = (x @ self.mixing).chunk(2, 1)
        scale, shift = self.net(a).chunk(2, 1)
        z = torch.cat([a, b * scale.tanh().exp() + shift], 1)
        prior = torch.distributions.Normal(0.0, 1.0).log_prob(z).sum(1)
        return -(prior + scale.tanh().sum(1) + torch.linalg.slogdet(self.mixing)[1]).mean()


class Ode(nn.Module):
    """Runge-Kutta steps through a learned field."""

    def __init__(self) -> None:
        super().__init__()
        self.field = nn.Sequential(nn.Linear(4, 16), nn.Softplus(), nn.Linear(16, 4))

    def forward(self, x: T) -> T:
        h = 0.25
        for _ in range(4):
            a = self.field(x)
            b = self.field(x + h / 2 * a)
            c = self.field(x + h / 2 * b)
            x = x + h / 6 * (a + 2 * b + 2 * c + self.field(x + h * c))
        return x


class Radiance(nn.Module):
    """A radiance field: positional encoding, and colours gathered along rays."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3 * 8, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, origin: T, direction: T) -> T:
        depth = torch.linspace(0.5, 2.0, 7, dtype=origin.dtype)
        points = origin.unsqueeze(1) + direction.unsqueeze(1) * depth[:, None]
        bands = 2.0 ** torch.arange(4, dtype=origin.dtype)
        angles = (points.unsqueeze(-1) * bands).flatten(-2)
        y = self.net(torch.cat([angles.sin(), angles.cos()], -1))
        gaps = torch.cat([depth.diff(), torch.full((1,), 1e3, dtype=origin.dtype)])
        alpha = 1 - (-F.relu(y[..., 3]) * gaps).exp()
        through = torch.cumprod(1 - alpha + 1e-6, 1)
        weight = alpha * F.pad(through[:, :-1], (1, 0), value=1.0)
        return (weight.unsqueeze(-1) * y[..., :3].sigmoid()).sum(1)


class Density(nn.Module):
    """A mixture of full Gaussians, by their Cholesky factors."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 3 * (1 + 2 + 4))

    def forward(self, x: T, y: T) -> T:
        weight, mean, root = self.net(x).view(-1, 3, 7).split([1, 2, 4], 2)
        root = root.view(-1, 3, 2, 2)
        cover = root @ root.mT + torch.eye(2, dtype=x.dtype)
        parts = torch.distributions.MultivariateNormal(mean, cover, validate_args=False)
        score = parts.log_prob(y.unsqueeze(1)) + weight.squeeze(2).log_softmax(1)
        return -score.logsumexp(1).mean()


class Splines(nn.Module):
    """A Kolmogorov-Arnold layer: B-splines on every edge."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("grid", torch.linspace(-2, 2, 9))
        self.base, self.weight = nn.Linear(4, 3), nn.Parameter(torch.randn(3, 4, 5))

    def forward(self, x: T) -> T:
        g, y = self.grid, x.unsqueeze(-1)
        bases = ((y >= g[:-1]) & (y < g[1:])).to(x.dtype)
        for k in range(1, 4):
            left = (y - g[: -(k + 1)]) / (g[k:-1] - g[: -(k + 1)]) * bases[..., :-1]
            right = (g[k + 1 :] - y) / (g[k + 1 :] - g[1:-k]) * bases[..., 1:]
            bases = left + right
        return self.base(F.silu(x)) + torch.einsum("bik,oik->bo", bases, self.weight)


FAMILIES = [
    family("fourier operator", Fourier, tensors(x=(2, 17, 1))),
    family("normalising flow", Flow, tensors(x=(7, 6)), own),
    family("neural ode", Ode, tensors(x=(5, 4))),
    family("radiance field", Radiance, tensors(origin=(5, 3), direction=(5, 3))),
    family("mixture density", Density, tensors(x=(5, 4), y=(5, 2)), own),
    family("splines", Splines, tensors(x=(5, 4))),
]

"""More families of plain PyTorch: physics, rendering, decisions, graphs, flows, meta-learning."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from coverage_family import Batch, Family
from coverage_plain import classify, images, own, plain, tensors
from torch import nn

T = torch.Tensor


class Fourier(nn.Module):
    """A Fourier neural operator: a product of the lowest frequencies."""

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


class LowRank(nn.Module):
    """LoRA: a frozen layer and two thin trained ones."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(12, 12).requires_grad_(False)
        self.down, self.up = nn.Linear(12, 2, bias=False), nn.Linear(2, 12, bias=False)

    def forward(self, x: T) -> T:
        return self.base(x) + 2.0 * self.up(self.down(x))


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


class Flow(nn.Module):
    """Invertible mixing, affine coupling and the likelihood they give."""

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


class Points(nn.Module):
    """PointNet: a learned rotation, shared layers, the maximum over points."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.Sequential(nn.Conv1d(3, 8, 1), nn.BatchNorm1d(8), nn.ReLU())
        self.angle = nn.Linear(8, 9)
        self.body = nn.Sequential(nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU())
        self.head = nn.Linear(16, 5)

    def forward(self, x: T) -> T:
        turn = self.angle(self.turn(x).amax(2)).view(-1, 3, 3) + torch.eye(3, dtype=x.dtype)
        return self.head(self.body(torch.bmm(turn, x)).max(2).values)


class Cells(nn.Module):
    """A translator out of cells, with additive attention."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.GRUCell(5, 8), nn.LSTMCell(13, 8)
        self.query, self.key, self.score = nn.Linear(8, 6), nn.Linear(8, 6), nn.Linear(6, 1)

    def forward(self, x: T, y: T) -> T:
        h, states = torch.zeros(x.shape[0], 8, dtype=x.dtype), []
        for t in range(x.shape[1]):
            h = self.encode(x[:, t], h)
            states.append(h)
        memory = torch.stack(states, 1)
        c, found = torch.zeros_like(h), []
        for t in range(y.shape[1]):
            weight = self.score((self.query(h).unsqueeze(1) + self.key(memory)).tanh()).softmax(1)
            h, c = self.decode(torch.cat([y[:, t], (weight * memory).sum(1)], 1), (h, c))
            found.append(h)
        return torch.stack(found, 1)


class Movie(nn.Module):
    """A convolutional LSTM over frames."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.Conv2d(3 + 4, 16, 3, padding=1)

    def forward(self, x: T) -> T:
        h = c = torch.zeros(x.shape[0], 4, *x.shape[-2:], dtype=x.dtype)
        for frame in x.unbind(1):
            i, f, o, g = self.gates(torch.cat([frame, h], 1)).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return h


class Q(nn.Module):
    """Q-learning with a duel of value and advantage."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.value, self.gain = nn.Linear(4, 16), nn.Linear(16, 1), nn.Linear(16, 3)

    def q(self, state: T) -> T:
        y = F.relu(self.body(state))
        gain = self.gain(y)
        return self.value(y) + gain - gain.mean(1, keepdim=True)

    def forward(self, state: T, after: T, action: T, reward: T) -> T:
        taken = self.q(state).gather(1, action.unsqueeze(1)).squeeze(1)
        with torch.no_grad():
            best = self.q(after).max(1).values
        return F.smooth_l1_loss(taken, reward + 0.9 * best)


class Policy(nn.Module):
    """Proximal policy optimisation with a discrete and a continuous action."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.kinds, self.mean = nn.Linear(4, 16), nn.Linear(16, 3), nn.Linear(16, 2)
        self.log_std = nn.Parameter(torch.zeros(2))

    def forward(self, state: T, kind: T, move: T, before: T, gain: T) -> T:
        y = self.body(state).tanh()
        kinds = torch.distributions.Categorical(logits=self.kinds(y))
        moves = torch.distributions.Normal(self.mean(y), self.log_std.exp())
        ratio = (kinds.log_prob(kind) + moves.log_prob(move).sum(1) - before).exp()
        clipped = torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
        return -clipped.mean() - 0.01 * (kinds.entropy() + moves.entropy().sum(1)).mean()


class Tagger(nn.Module):
    """A conditional random field: the forward algorithm against the path given."""

    def __init__(self) -> None:
        super().__init__()
        self.scores, self.move = nn.Linear(6, 4), nn.Parameter(torch.randn(4, 4))

    def forward(self, x: T, tags: T) -> T:
        scores = self.scores(x)
        alpha = scores[:, 0]
        path = scores[:, 0].gather(1, tags[:, :1]).squeeze(1)
        for t in range(1, x.shape[1]):
            alpha = torch.logsumexp(alpha.unsqueeze(2) + self.move, 1) + scores[:, t]
            path = path + self.move[tags[:, t - 1], tags[:, t]]
            path = path + scores[:, t].gather(1, tags[:, t : t + 1]).squeeze(1)
        return (alpha.logsumexp(1) - path).mean()


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


class Meta(nn.Module):
    """MAML: a step of descent inside the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: T, y: T) -> T:
        weights = dict(self.net.named_parameters())
        first = F.mse_loss(torch.func.functional_call(self.net, weights, (x[:3],)), y[:3])
        grads = torch.autograd.grad(first, list(weights.values()), create_graph=True)
        quick = {k: w - 0.1 * g for (k, w), g in zip(weights.items(), grads, strict=True)}
        return F.mse_loss(torch.func.functional_call(self.net, quick, (x[3:],)), y[3:])


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


class Scan(nn.Module):
    """A selective state space, step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.rate, self.both = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 12)
        self.decay, self.head = nn.Parameter(torch.randn(8, 6)), nn.Linear(8, 4)
        self.conv = nn.Conv1d(8, 8, 3, groups=8, padding=2)

    def forward(self, x: T) -> T:
        y = self.inner(x)
        y = F.silu(self.conv(y.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        rate, (into, out) = F.softplus(self.rate(y)), self.both(y).chunk(2, -1)
        keep = torch.exp(-rate.unsqueeze(-1) * self.decay.exp())
        state, found = torch.zeros_like(keep[:, 0]), []
        for t in range(x.shape[1]):
            state = keep[:, t] * state + (rate * y)[:, t].unsqueeze(-1) * into[:, t].unsqueeze(1)
            found.append((state * out[:, t].unsqueeze(1)).sum(-1))
        return self.head(torch.stack(found, 1))


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


class Transport(nn.Module):
    """Sinkhorn's iterations between two sets of learned points."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(3, 2)

    def forward(self, x: T, y: T) -> T:
        cost = torch.cdist(self.net(x), self.net(y)).square()
        f, g = torch.zeros(x.shape[0], dtype=x.dtype), torch.zeros(y.shape[0], dtype=x.dtype)
        for _ in range(5):
            f = -0.5 * torch.logsumexp((g - cost) / 0.5, 1)
            g = -0.5 * torch.logsumexp((f.unsqueeze(1) - cost) / 0.5, 0)
        return (torch.exp((f.unsqueeze(1) + g - cost) / 0.5) * cost).sum()


class Attentive(nn.Module):
    """Graph attention over a dense adjacency, top-k pooling and a Laplacian."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.pair, self.score = nn.Linear(5, 8), nn.Bilinear(8, 8, 1), nn.Linear(8, 1)

    def forward(self, x: T, linked: T) -> T:
        h = self.inner(x)
        n = x.shape[0]
        pair = self.pair(
            h.unsqueeze(1).expand(n, n, 8).reshape(-1, 8), h.unsqueeze(0).expand(n, n, 8).reshape(-1, 8)
        ).view(n, n)
        links = (linked > 0.3) | torch.eye(n, dtype=torch.bool)
        weight = F.leaky_relu(pair, 0.2).masked_fill(~links, -torch.inf).softmax(1)
        degree = links.to(x.dtype).sum(1)
        smooth = torch.diag(degree.rsqrt()) @ links.to(x.dtype) @ torch.diag_embed(degree.rsqrt())
        h = F.elu(weight @ h) + smooth @ h
        score, kept = self.score(h).squeeze(1).tanh().topk(4)
        return h[kept] * score.unsqueeze(1)


class Quantised(nn.Module):
    """Quantisation-aware training with learned scales."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(6, 6), nn.Parameter(torch.tensor(0.1))

    def forward(self, x: T) -> T:
        w = torch.fake_quantize_per_tensor_affine(self.layer.weight, 0.05, 0, -128, 127)
        y = F.linear(x, w, self.layer.bias) / self.scale
        return (y + (y.round().clamp(-8, 7) - y).detach()) * self.scale


class Contrast(nn.Module):
    """BYOL: a moving average of the network is the target."""

    def __init__(self) -> None:
        super().__init__()
        self.online, self.target = nn.Linear(6, 4), nn.Linear(6, 4).requires_grad_(False)
        self.guess = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, a: T, b: T) -> T:
        with torch.no_grad():
            for mine, theirs in zip(self.target.parameters(), self.online.parameters(), strict=True):
                mine.lerp_(theirs, 0.01)
        return 2 - 2 * F.cosine_similarity(self.guess(self.online(a)), self.target(b)).mean()


def frames() -> Batch:
    return {"x": torch.randn(2, 3, 3, 6, 6)}


def moves() -> Batch:
    return {
        "state": torch.randn(6, 4),
        "after": torch.randn(6, 4),
        "action": torch.randint(0, 3, (6,)),
        "reward": torch.randn(6),
    }


def plays() -> Batch:
    return {
        "state": torch.randn(6, 4),
        "kind": torch.randint(0, 3, (6,)),
        "move": torch.randn(6, 2),
        "before": torch.randn(6) - 3,
        "gain": torch.randn(6),
    }


def families() -> list[Family]:
    return [
        plain("fourier operator", Fourier, tensors(x=(2, 17, 1))),
        plain("lora", LowRank, tensors(x=(3, 12))),
        plain("binary network", Binary, images(), classify),
        plain("normalising flow", Flow, tensors(x=(7, 6)), own),
        plain("neural ode", Ode, tensors(x=(5, 4))),
        plain("capsules", Capsules, images(), classify),
        plain("radiance field", Radiance, tensors(origin=(5, 3), direction=(5, 3))),
        plain("pointnet", Points, tensors(x=(3, 3, 11))),
        plain("cells with attention", Cells, tensors(x=(2, 5, 5), y=(2, 4, 5))),
        plain("convolutional lstm", Movie, frames),
        plain("q learning", Q, moves, own),
        plain("policy optimisation", Policy, plays, own),
        plain("random field", Tagger, tagged, own),
        plain("diffusion", Denoiser, noised, own),
        plain("meta-learning", Meta, tensors(x=(7, 3), y=(7, 1)), own),
        plain("mixture density", Density, tensors(x=(5, 4), y=(5, 2)), own),
        plain("state space", Scan, tensors(x=(2, 7, 4))),
        plain("splines", Splines, tensors(x=(5, 4))),
        plain("segmentation losses", Segment, labelled, own),
        plain("optimal transport", Transport, tensors(x=(5, 3), y=(7, 3)), own),
        plain("graph attention", Attentive, tensors(x=(7, 5), linked=(7, 7))),
        plain("quantised", Quantised, tensors(x=(5, 6))),
        plain("moving target", Contrast, tensors(a=(5, 6), b=(5, 6)), own, mode="train"),
    ]


def tagged() -> Batch:
    return {"x": torch.randn(3, 5, 6), "tags": torch.randint(0, 4, (3, 5))}


def noised() -> Batch:
    return {"x": torch.randn(2, 3, 8, 8), "when": torch.randint(0, 50, (2,)), "noise": torch.randn(2, 3, 8, 8)}


def labelled() -> Batch:
    return {"x": torch.randn(2, 3, 9, 9), "labels": torch.randint(0, 4, (2, 9, 9))}

"""Ways to learn: contrasts, decisions, experts, few examples, few weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from family import Batch
from torch import nn
from torch.utils.checkpoint import checkpoint

from plain.base import T, family, own, tensors


class Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Sequential(nn.Linear(7, 16), nn.Tanh(), nn.Linear(16, 5))

    def forward(self, *x: torch.Tensor) -> list[torch.Tensor]:
        return [F.normalize(self.tower(t), dim=1) for t in x]


def contrastive(model: nn.Module, batch: Batch) -> torch.Tensor:
    a, b, c = model(*batch.values())
    logits = a @ b.t() / 0.1
    return F.cross_entropy(logits, torch.arange(logits.shape[0])) + F.triplet_margin_loss(a, b, c)


class Contrast(nn.Module):
    """BYOL, whose target is a moving average of the network."""

    def __init__(self) -> None:
        super().__init__()
        self.online, self.target = nn.Linear(6, 4), nn.Linear(6, 4).requires_grad_(False)
        self.guess = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, a: T, b: T) -> T:
        with torch.no_grad():
            for mine, theirs in zip(self.target.parameters(), self.online.parameters(), strict=True):
                mine.lerp_(theirs, 0.01)
        return 2 - 2 * F.cosine_similarity(self.guess(self.online(a)), self.target(b)).mean()


class Q(nn.Module):
    """A duelling Q-network: value and advantage."""

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


def moves() -> Batch:
    return {
        "state": torch.randn(6, 4),
        "after": torch.randn(6, 4),
        "action": torch.randint(0, 3, (6,)),
        "reward": torch.randn(6),
    }


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


def plays() -> Batch:
    return {
        "state": torch.randn(6, 4),
        "kind": torch.randint(0, 3, (6,)),
        "move": torch.randn(6, 2),
        "before": torch.randn(6) - 3,
        "gain": torch.randn(6),
    }


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


class LowRank(nn.Module):
    """LoRA: a frozen layer and two thin trained ones."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(12, 12).requires_grad_(False)
        self.down, self.up = nn.Linear(12, 2, bias=False), nn.Linear(2, 12, bias=False)

    def forward(self, x: T) -> T:
        return self.base(x) + 2.0 * self.up(self.down(x))


class Quantised(nn.Module):
    """Quantisation-aware training with learned scales."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(6, 6), nn.Parameter(torch.tensor(0.1))

    def forward(self, x: T) -> T:
        w = torch.fake_quantize_per_tensor_affine(self.layer.weight, 0.05, 0, -128, 127)
        y = F.linear(x, w, self.layer.bias) / self.scale
        return (y + (y.round().clamp(-8, 7) - y).detach()) * self.scale


class Mixture(nn.Module):
    """Experts chosen by topk, computed densely."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(6, 4), nn.ModuleList(nn.Linear(6, 6) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, which = self.gate(x).softmax(1).topk(2, 1)
        dense = torch.zeros(x.shape[0], 4, dtype=x.dtype).scatter(1, which, weights)
        outs = torch.stack([e(x) for e in self.experts], 1)
        return (outs * dense.unsqueeze(2)).sum(1)


class MovingAverage(nn.Module):
    """A vector quantiser: nearest code, straight-through gradient, codes by moving averages."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(6, 4), nn.Linear(4, 6)
        self.register_buffer("codes", torch.randn(9, 4))
        self.register_buffer("count", torch.ones(9))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.encode(x)
        near = torch.cdist(z, self.codes).argmin(1)
        picked = F.embedding(near, self.codes)
        with torch.no_grad():
            hot = F.one_hot(near, 9).to(z.dtype)
            self.count = self.count * 0.9 + hot.sum(0) * 0.1
            self.codes.mul_(0.9).add_(hot.t() @ z / self.count.unsqueeze(1), alpha=0.1)
        return self.decode(z + (picked - z).detach()) - x


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.GELU()) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + checkpoint(layer, x, use_reentrant=False)
        return x


FAMILIES = [
    family("siamese", Siamese, tensors(a=(5, 7), b=(5, 7), c=(5, 7)), contrastive),
    family("moving target", Contrast, tensors(a=(5, 6), b=(5, 6)), own, mode="train"),
    family("q learning", Q, moves, own),
    family("policy optimisation", Policy, plays, own),
    family("meta-learning", Meta, tensors(x=(7, 3), y=(7, 1)), own),
    family("lora", LowRank, tensors(x=(3, 12))),
    family("quantised", Quantised, tensors(x=(5, 6))),
    family("dense mixture", Mixture, tensors(x=(5, 6))),
    family("vector quantiser", MovingAverage, tensors(x=(7, 6)), mode="train"),
    family("checkpointed", Checkpointed, tensors(x=(4, 8))),
]

"""Graphs, tables and sets of points."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from family import Batch
from torch import nn

from plain.base import T, family, own, tensors


class Graph(nn.Module):
    """Message passing by gather and scatter, then by a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        h = F.relu(self.first(x))
        count = torch.zeros(x.shape[0], dtype=x.dtype).index_add(0, target, torch.ones_like(target, dtype=x.dtype))
        messages = torch.zeros_like(h).index_add(0, target, self.second(h[source])) / count.clamp(min=1).unsqueeze(1)
        score = (h[source] * h[target]).sum(1)
        top = torch.zeros(x.shape[0], dtype=x.dtype).scatter_reduce(0, target, score, "amax", include_self=False)
        weight = (score - top[target]).exp()
        total = torch.zeros(x.shape[0], dtype=x.dtype).index_add(0, target, weight)
        attended = torch.zeros_like(h).index_add(0, target, h[source] * (weight / total[target]).unsqueeze(1))
        return self.head(h + messages + attended)


def edges() -> Batch:
    return {"x": torch.randn(7, 5), "source": torch.randint(0, 7, (19,)), "target": torch.randint(0, 7, (19,))}


class Tabular(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(n, 4) for n in (5, 7, 11))
        self.bag = nn.EmbeddingBag(13, 4, mode="mean")
        self.net = nn.Sequential(
            nn.BatchNorm1d(19), nn.Linear(19, 16), nn.SELU(), nn.AlphaDropout(0.1), nn.Linear(16, 1)
        )

    def forward(self, x: torch.Tensor, kinds: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        parts = [table(kinds[:, i]) for i, table in enumerate(self.tables)]
        return self.net(torch.cat([x, *parts, self.bag(words)], 1))


def table() -> Batch:
    return {"x": torch.randn(6, 3), "kinds": torch.randint(0, 5, (6, 3)), "words": torch.randint(0, 13, (6, 4))}


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


FAMILIES = [
    family("graph network", Graph, edges),
    family("tabular", Tabular, table),
    family("pointnet", Points, tensors(x=(3, 3, 11))),
    family("optimal transport", Transport, tensors(x=(5, 3), y=(7, 3)), own),
    family("graph attention", Attentive, tensors(x=(7, 5), linked=(7, 7))),
]

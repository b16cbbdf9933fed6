"""Families made of torch.nn alone: the shapes that training code really has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from coverage_family import Batch, Family, Task, scalar_loss
from torch import nn
from torch.utils.checkpoint import checkpoint


def plain(
    name: str,
    make: Callable[[], nn.Module],
    batch: Callable[[], Batch],
    loss: Callable[[nn.Module, Batch], torch.Tensor] | None = None,
    mode: str = "eval",
) -> Family:
    """A family whose model gets the batch's tensors in order."""

    def forward(model: nn.Module, given: Batch) -> torch.Tensor:
        return scalar_loss(model(*given.values()))

    return Family(name, "plain", lambda: Task(make(), batch(), loss or forward, mode=mode))


def tensors(**shapes: tuple[int, ...]) -> Callable[[], Batch]:
    return lambda: {name: torch.randn(shape) for name, shape in shapes.items()}


def images(channels: int = 3, size: int = 16, classes: int = 5) -> Callable[[], Batch]:
    return lambda: {"x": torch.randn(3, channels, size, size), "y": torch.randint(0, classes, (3,))}


def classify(model: nn.Module, batch: Batch) -> torch.Tensor:
    return F.cross_entropy(model(batch["x"]), batch["y"])


class Language(nn.Module):
    """Embedding, a recurrence or transformer, tied output."""

    def __init__(self, core: nn.Module, width: int = 12, tied: bool = True) -> None:
        super().__init__()
        self.embed, self.core, self.drop = nn.Embedding(31, width), core, nn.Dropout(0.2)
        self.head = nn.Linear(width, 31)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        y = self.core(self.drop(self.embed(tokens)))
        return self.head(y[0] if isinstance(y, tuple) else y)


def next_token(model: nn.Module, batch: Batch) -> torch.Tensor:
    logits = model(batch["x"][:, :-1])
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), batch["x"][:, 1:].reshape(-1))


def tokens() -> Batch:
    return {"x": torch.randint(0, 31, (3, 9))}


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


class Wave(nn.Module):
    """Dilated causal convolutions with gates."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, 8, 1)
        self.layers = nn.ModuleList(
            nn.utils.parametrizations.weight_norm(nn.Conv1d(8, 16, 2, dilation=2**i)) for i in range(3)
        )
        self.mix = nn.ModuleList(nn.Conv1d(8, 8, 1) for _ in range(3))
        self.head = nn.Conv1d(8, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        for layer, mix in zip(self.layers, self.mix, strict=True):
            a, b = layer(F.pad(y, (layer.dilation[0], 0))).chunk(2, 1)
            y = y + mix(a.tanh() * b.sigmoid())
        return self.head(F.elu(y))


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


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.GELU()) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + checkpoint(layer, x, use_reentrant=False)
        return x


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


class Spatial(nn.Module):
    """A spatial transformer: a grid that is learned, sampled bilinearly."""

    def __init__(self) -> None:
        super().__init__()
        self.where, self.net = nn.Sequential(nn.Flatten(), nn.Linear(192, 6)), nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        theta = self.where(x).view(-1, 2, 3) * 0.1 + torch.eye(2, 3, dtype=x.dtype)
        return self.net(F.grid_sample(x, F.affine_grid(theta, list(x.shape), align_corners=False), align_corners=False))


class Detector(nn.Module):
    """Anchors, boxes, focal loss and IoU: what detection heads compute."""

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


def own(model: nn.Module, batch: Batch) -> torch.Tensor:
    return model(*batch.values())


def _recurrent() -> list[Family]:
    variants: dict[str, dict[str, Any]] = {
        "": {},
        " two layers": {"num_layers": 2},
        " dropout": {"num_layers": 2, "dropout": 0.3},
        " both ways": {"bidirectional": True},
    }
    found = []
    for kind, cell in (("lstm", nn.LSTM), ("gru", nn.GRU), ("rnn", nn.RNN)):
        for name, options in variants.items():
            width = 6 if "both" in name else 12
            found.append(
                plain(
                    f"{kind} language{name}",
                    lambda c=cell, o=options, w=width: Language(c(12, w, batch_first=True, **o)),
                    tokens,
                    next_token,
                )
            )
    return found


def families() -> list[Family]:
    layer = {"d_model": 12, "nhead": 3, "dim_feedforward": 16, "batch_first": True}
    return [
        *_recurrent(),
        plain(
            "transformer encoder",
            lambda: Language(nn.TransformerEncoder(nn.TransformerEncoderLayer(**layer), 2)),
            tokens,
            next_token,
        ),
        plain(
            "transformer encoder first",
            lambda: Language(
                nn.TransformerEncoder(
                    nn.TransformerEncoderLayer(**layer, norm_first=True, activation="gelu"),
                    2,
                    enable_nested_tensor=False,
                )
            ),
            tokens,
            next_token,
        ),
        plain(
            "transformer",
            lambda: nn.Transformer(num_encoder_layers=1, num_decoder_layers=1, **layer),
            tensors(a=(2, 5, 12), b=(2, 4, 12)),
        ),
        plain(
            "transformer decoder",
            lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(**layer), 2),
            tensors(a=(2, 5, 12), b=(2, 4, 12)),
        ),
        plain(
            "multihead attention",
            lambda: nn.MultiheadAttention(12, 3, dropout=0.1, batch_first=True),
            tensors(q=(2, 5, 12), k=(2, 4, 12), v=(2, 4, 12)),
        ),
        plain(
            "mlp",
            lambda: nn.Sequential(nn.Flatten(), nn.Linear(768, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 5)),
            images(),
            classify,
        ),
        plain("unet", UNet, tensors(x=(2, 3, 16, 16))),
        plain("vae", VAE, tensors(x=(3, 1, 16, 16), noise=(3, 4)), elbo),
        plain("critic with penalty", Critic, tensors(real=(3, 3, 16, 16), fake=(3, 3, 16, 16)), penalty),
        plain("siamese", Siamese, tensors(a=(5, 7), b=(5, 7), c=(5, 7)), contrastive),
        plain("wavenet", Wave, tensors(x=(2, 1, 23))),
        plain("graph network", Graph, edges),
        plain("tabular", Tabular, table),
        plain("checkpointed", Checkpointed, tensors(x=(4, 8))),
        plain("vector quantiser", MovingAverage, tensors(x=(7, 6)), mode="train"),
        plain("dense mixture", Mixture, tensors(x=(5, 6))),
        plain("spatial transformer", Spatial, tensors(x=(2, 3, 8, 8))),
        plain("detector", Detector, boxes, own),
        plain(
            "spectral norm",
            lambda: nn.Sequential(
                nn.utils.parametrizations.spectral_norm(nn.Conv2d(3, 4, 3)),
                nn.Flatten(),
                nn.utils.parametrizations.spectral_norm(nn.Linear(64, 2)),
            ),
            tensors(x=(2, 3, 6, 6)),
            mode="train",
        ),
        plain("old spectral norm", lambda: nn.utils.spectral_norm(nn.Linear(6, 4)), tensors(x=(3, 6)), mode="train"),
        plain(
            "orthogonal",
            lambda: nn.utils.parametrizations.orthogonal(nn.Linear(4, 4), orthogonal_map="cayley"),
            tensors(x=(3, 4)),
        ),
        plain(
            "super resolution",
            lambda: nn.Sequential(
                nn.Conv2d(3, 16, 5, padding=2), nn.Tanh(), nn.Conv2d(16, 12, 3, padding=1), nn.PixelShuffle(2)
            ),
            tensors(x=(2, 3, 8, 8)),
        ),
        plain(
            "group norm",
            lambda: nn.Sequential(
                nn.Conv2d(3, 8, 3, bias=False), nn.GroupNorm(4, 8), nn.Mish(), nn.AdaptiveMaxPool2d(2)
            ),
            tensors(x=(2, 3, 9, 9)),
        ),
        plain(
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
        plain(
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

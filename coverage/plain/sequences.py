"""Sequences: recurrence, attention, causal convolutions, tagging."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from family import Batch, Family
from torch import nn

from plain.base import T, family, own, tensors

#: a transformer layer
LAYER: dict[str, Any] = {"d_model": 12, "nhead": 3, "dim_feedforward": 16, "batch_first": True}


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


class Cells(nn.Module):
    """A translator made of recurrent cells, with additive attention."""

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


def frames() -> Batch:
    return {"x": torch.randn(2, 3, 3, 6, 6)}


class Tagger(nn.Module):
    """A conditional random field: the forward algorithm compared with the given path."""

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


def tagged() -> Batch:
    return {"x": torch.randn(3, 5, 6), "tags": torch.randint(0, 4, (3, 5))}


class Scan(nn.Module):
    """A selective state space model, computed step by step."""

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
                family(
                    f"{kind} language{name}",
                    lambda c=cell, o=options, w=width: Language(c(12, w, batch_first=True, **o)),
                    tokens,
                    next_token,
                )
            )
    return found


FAMILIES = [
    *_recurrent(),
    family(
        "transformer encoder",
        lambda: Language(nn.TransformerEncoder(nn.TransformerEncoderLayer(**LAYER), 2)),
        tokens,
        next_token,
    ),
    family(
        "transformer encoder first",
        lambda: Language(
            nn.TransformerEncoder(
                nn.TransformerEncoderLayer(**LAYER, norm_first=True, activation="gelu"), 2, enable_nested_tensor=False
            )
        ),
        tokens,
        next_token,
    ),
    family(
        "transformer",
        lambda: nn.Transformer(num_encoder_layers=1, num_decoder_layers=1, **LAYER),
        tensors(a=(2, 5, 12), b=(2, 4, 12)),
    ),
    family(
        "transformer decoder",
        lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(**LAYER), 2),
        tensors(a=(2, 5, 12), b=(2, 4, 12)),
    ),
    family(
        "multihead attention",
        lambda: nn.MultiheadAttention(12, 3, dropout=0.1, batch_first=True),
        tensors(q=(2, 5, 12), k=(2, 4, 12), v=(2, 4, 12)),
    ),
    family("wavenet", Wave, tensors(x=(2, 1, 23))),
    family("cells with attention", Cells, tensors(x=(2, 5, 5), y=(2, 4, 5))),
    family("convolutional lstm", Movie, frames),
    family("random field", Tagger, tagged, own),
    family("state space", Scan, tensors(x=(2, 7, 4))),
]

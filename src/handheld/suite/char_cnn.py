"""Char-CNN (Kim et al., 2016): convolutions over the letters of words, a highway layer and two LSTM layers.

Each word predicts the next. x[n, t, letters] holds the words of a text, letter by letter; y[n, t] holds the
word that follows each.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from handheld.suite.synthetic import Parts, seeded, sgd, token_loss, tokens

LETTERS = 51  # In the Penn treebank.
LETTER_WIDTH = 15


class Highway(nn.Module):
    """A layer that learns how much of its input to pass on unchanged."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.change, self.gate = nn.Linear(width, width), nn.Linear(width, width)
        nn.init.constant_(self.gate.bias, -2.0)

    def forward(self, x: Tensor) -> Tensor:
        open_ = torch.sigmoid(self.gate(x))
        return open_ * F.relu(self.change(x)) + (1 - open_) * x


class CharCnn(nn.Module):
    """For each kernel width w from 1 to `widths`, there are `filters` * w convolutions, but at most `most`."""

    def __init__(
        self,
        vocabulary: int,
        width: int,
        filters: int,
        widths: int,
        most: int = 10_000,
        highways: int = 1,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(LETTERS, LETTER_WIDTH)
        self.convs = nn.ModuleList(
            nn.Conv1d(LETTER_WIDTH, min(filters * size, most), size) for size in range(1, widths + 1)
        )
        total = sum(min(filters * size, most) for size in range(1, widths + 1))
        self.highways = nn.Sequential(*(Highway(total) for _ in range(highways)))
        self.lstm1 = nn.LSTM(total, width, batch_first=True)
        self.lstm2 = nn.LSTM(width, width, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, x: Tensor) -> Tensor:
        n, t, letters = x.shape
        y = self.embed(x).view(n * t, letters, -1).transpose(1, 2)
        y = torch.cat([torch.tanh(conv(y)).amax(2) for conv in self.convs], 1)
        y = self.highways(y).view(n, t, -1)
        y, _ = self.lstm1(y)
        y, _ = self.lstm2(self.dropout(y))
        scores: Tensor = self.head(self.dropout(y))
        return scores


def make(
    *,
    seed: int = 0,
    vocabulary: int = 500,
    width: int = 96,
    filters: int = 8,
    widths: int = 4,
    length: int = 16,
    letters: int = 10,
) -> Parts:
    model = seeded(lambda: CharCnn(vocabulary, width, filters, widths), seed)
    return model, token_loss, sgd(model.parameters(), 0.5)


def batch(
    n: int,
    seed: int,
    *,
    vocabulary: int = 500,
    width: int = 96,
    filters: int = 8,
    widths: int = 4,
    length: int = 16,
    letters: int = 10,
) -> tuple[Tensor, Tensor]:
    """Words follow each other by a fixed rule, and each word always has the same letters."""
    rows = tokens(n, seed, length + 1, vocabulary)
    spelling = torch.randint(LETTERS, (vocabulary, letters), generator=torch.Generator().manual_seed(20))
    return spelling[rows[:, :-1]], rows[:, 1:].contiguous()

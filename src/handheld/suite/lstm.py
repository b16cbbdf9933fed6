"""A language model with two LSTM layers. Each token predicts the next."""

from __future__ import annotations

from torch import Tensor, nn

from handheld.suite.synthetic import Parts, seeded, sgd, token_loss, tokens


class LstmLm(nn.Module):
    def __init__(self, vocabulary: int, width: int, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, x: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.embed(x))
        scores: Tensor = self.head(hidden)
        return scores


def make(*, seed: int = 0, vocabulary: int = 256, width: int = 128, length: int = 32, rate: float = 0.5) -> Parts:
    model = seeded(lambda: LstmLm(vocabulary, width), seed)
    return model, token_loss, sgd(model.parameters(), rate)


def batch(
    n: int, seed: int, *, vocabulary: int = 256, width: int = 128, length: int = 32, rate: float = 0.5
) -> tuple[Tensor, Tensor]:
    rows = tokens(n, seed, length + 1, vocabulary)
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

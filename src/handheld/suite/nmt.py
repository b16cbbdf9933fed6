"""NMT: translation with attention (Luong et al., 2015), as in TensorFlow's tutorial for IWSLT15.

The encoder has one LSTM layer per direction, the decoder two LSTM layers, with scaled multiplicative attention.
The result of attention is not fed back into the next time step (no input feeding), so each LSTM layer is one op.
x[n, 2 t] holds the sentence and then the translation so far; y[n, t] holds the next word of the translation.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from handheld.suite.synthetic import Parts, seeded, token_loss, tokens


class Nmt(nn.Module):
    def __init__(self, words: int, vocabulary: int, width: int, dropout: float = 0.2) -> None:
        super().__init__()
        self.read, self.write = nn.Embedding(words, width), nn.Embedding(vocabulary, width)
        self.encoder = nn.LSTM(width, width, bidirectional=True, batch_first=True)
        self.decoder = nn.LSTM(width, width, 2, batch_first=True)
        self.memory = nn.Linear(2 * width, width, bias=False)
        self.scale = nn.Parameter(torch.ones(()))
        self.mix = nn.Linear(3 * width, width, bias=False)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        sentence, so_far = x.chunk(2, 1)
        seen, state = self.encoder(self.dropout(self.read(sentence)))  # [n, t, 2 width]
        # The two directions of the encoder initialise the two layers of the decoder.
        decoded, _ = self.decoder(self.dropout(self.write(so_far)), state)
        scores = decoded @ self.memory(seen).transpose(1, 2) * self.scale  # [n, t, t]
        context = scores.softmax(2) @ seen
        mixed = torch.tanh(self.mix(torch.cat([decoded, context], 2)))
        words: Tensor = self.head(self.dropout(mixed))
        return words


def make(*, seed: int = 0, words: int = 300, vocabulary: int = 300, width: int = 64, length: int = 12) -> Parts:
    model = seeded(lambda: Nmt(words, vocabulary, width), seed)
    return model, token_loss, torch.optim.Adam(model.parameters(), lr=1e-3)


def batch(
    n: int, seed: int, *, words: int = 300, vocabulary: int = 300, width: int = 64, length: int = 12
) -> tuple[Tensor, Tensor]:
    """The translation is the sentence in reverse order, word for word. It begins with 0."""
    sentence = tokens(n, seed, length, min(words, vocabulary))
    translation = sentence.flip(1)
    shifted = torch.cat([torch.zeros(n, 1, dtype=torch.int64), translation[:, :-1]], 1)
    return torch.cat([sentence, shifted], 1), translation

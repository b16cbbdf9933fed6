"""Sequences of different lengths: packed sequences around recurrent layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence, pad_sequence

from handheld.conformance.case import Case, ints, module, normal, of


def _lengths(*values: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.tensor(values)


class _Packed(nn.Module):
    """Packs, runs the layer and pads: outputs, final states and lengths."""

    def __init__(self, layer: nn.Module, is_sorted: bool = False, **padding: Any) -> None:
        super().__init__()
        self.layer, self.is_sorted, self.padding = layer, is_sorted, padding

    def forward(self, x: torch.Tensor, lengths: torch.Tensor, *state: torch.Tensor) -> Any:
        first = self.layer.batch_first
        packed = pack_padded_sequence(x, lengths, batch_first=first, enforce_sorted=self.is_sorted)
        given = (state if isinstance(self.layer, nn.LSTM) else state[0]) if state else None
        output, last = self.layer(packed, given)
        return (*pad_packed_sequence(output, batch_first=first, **self.padding), last)


def _layers() -> Iterator[Case]:
    whole: dict[str, Any] = {"num_layers": 2, "bidirectional": True, "batch_first": True}
    for cell in (nn.LSTM, nn.GRU, nn.RNN):
        name = f"packed {cell.__name__.lower()}"
        yield module(name, lambda c=cell: _Packed(c(3, 5)), normal(6, 4, 3), _lengths(3, 6, 1, 4))
        yield module(
            f"{name} sorted",
            lambda c=cell: _Packed(c(3, 5, bias=False), is_sorted=True),
            normal(6, 4, 3),
            _lengths(6, 4, 4, 1),
        )
        yield module(
            f"{name} both ways, two layers",
            lambda c=cell: _Packed(c(3, 5, **whole), total_length=9, padding_value=2.0),
            normal(4, 7, 3),
            _lengths(3, 7, 1, 4),
        )
        states = [normal(2, 4, 5)] * (2 if cell is nn.LSTM else 1)
        yield module(
            f"{name} with state",
            lambda c=cell: _Packed(c(3, 5, bidirectional=True)),
            normal(6, 4, 3),
            _lengths(3, 6, 1, 5),
            *states,
        )
    yield module(
        "packed rnn relu",
        lambda: _Packed(nn.RNN(3, 5, 2, nonlinearity="relu", bidirectional=True)),
        normal(5, 3, 3),
        _lengths(3, 5, 1),
    )
    yield module(
        "packed lstm projected",
        lambda: _Packed(nn.LSTM(3, 5, 2, proj_size=2, bidirectional=True)),
        normal(5, 3, 3),
        _lengths(3, 5, 1),
    )


class _Captions(nn.Module):
    """A loss over the rows of packed outputs and packed targets, as in image captioning."""

    def __init__(self, reduction: str) -> None:
        super().__init__()
        self.embed, self.lstm, self.head = nn.Embedding(7, 3), nn.LSTM(3, 5, batch_first=True), nn.Linear(5, 7)
        self.loss = nn.CrossEntropyLoss(reduction=reduction)

    def forward(self, words: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(self.embed(words), lengths, batch_first=True, enforce_sorted=False)
        targets = pack_padded_sequence(words, lengths, batch_first=True, enforce_sorted=False).data
        hidden, _ = self.lstm(packed)
        scores = self.head(hidden[0])
        loss: torch.Tensor = self.loss(F.relu(scores) + scores, targets)
        return loss


class _Repacked(nn.Module):
    """Layers of single rows between the packing and the recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.gru = nn.Embedding(7, 3), nn.GRU(3, 5, bidirectional=True)

    def forward(self, words: torch.Tensor, lengths: torch.Tensor) -> Any:
        packed = pack_padded_sequence(words, lengths, enforce_sorted=False)
        rows = F.log_softmax(F.dropout(self.embed(packed.data), 0.1, self.training and False), dim=1) * 0.5
        again = PackedSequence(rows, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
        output, last = self.gru(again)
        return pad_packed_sequence(output)[0], last, F.mse_loss(output.data, output.data * 0.5), rows.sum()


class _Idioms(nn.Module):
    """What models do with lengths: masks, means, the last output, sorting by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(3, 5, batch_first=True)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Any:
        ordered, order = lengths.sort(descending=True)
        packed = pack_padded_sequence(x[order], ordered.cpu(), batch_first=True)
        output, given = pad_packed_sequence(self.gru(packed)[0], batch_first=True, total_length=x.size(1))
        output = output[order.argsort()]
        mask = (torch.arange(x.size(1)) < lengths[:, None]).unsqueeze(2)
        mean = (output * mask).sum(1) / lengths[:, None]
        return mean, output[torch.arange(x.size(0)), lengths - 1], given


def _pads(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> Any:
    packed = pack_sequence([x, y, z], enforce_sorted=False)
    return pad_sequence([x, y, z], batch_first=True), *pad_packed_sequence(packed, padding_value=-1.0)


def _ctc(
    name: str, steps: int, classes: int, labels: torch.Tensor, inputs: list[int], targets: list[int], **options: Any
) -> Case:
    """The CTC loss of random scores, with lengths as tensors of the batch."""

    def loss(scores: torch.Tensor, *batch: torch.Tensor) -> torch.Tensor:
        return F.ctc_loss(scores.log_softmax(-1), *batch, **options)

    tensors = (lambda: labels, _lengths(*inputs), _lengths(*targets))
    return of(f"ctc {name}", loss, normal(steps, len(inputs), classes), *tensors)


def _ctc_cases() -> Iterator[Case]:
    padded = torch.tensor([[1, 2, 2, 3, 1], [4, 4, 4, 0, 0], [3, 0, 0, 0, 0]])
    lengths = [11, 9, 7], [5, 3, 1]
    for kind in ("mean", "sum", "none"):
        yield _ctc(kind, 11, 6, padded, *lengths, reduction=kind)
    last = padded + (padded == 0) * 9 - 1  # The classes are 0 to 3, the last one is the blank, padding is 8.
    yield _ctc("last blank", 11, 5, last, *lengths, blank=4, reduction="none")
    yield _ctc("joined", 11, 6, torch.tensor([1, 2, 2, 3, 1, 4, 4, 4, 3]), *lengths, reduction="none")
    yield _ctc("empty target", 7, 5, padded, [7, 5, 1], [0, 2, 0], reduction="none")
    yield _ctc("no labels", 4, 5, torch.zeros(2, 0, dtype=torch.long), [4, 2], [0, 0], reduction="none")
    yield _ctc("no steps", 7, 5, padded, [0, 0, 7], [0, 2, 1], reduction="none", zero_infinity=True)
    for zero in (False, True):
        # The second target needs five steps, because of its equal labels.
        yield _ctc(f"infeasible {zero}", 7, 5, padded, [7, 4, 3], [5, 3, 1], reduction="none", zero_infinity=zero)
    yield _ctc("infeasible mean", 7, 5, padded, [7, 4, 3], [5, 3, 1], zero_infinity=True)
    many = torch.randint(1, 29, (3, 67), generator=torch.Generator().manual_seed(0))
    yield _ctc("long", 200, 29, many, [200, 199, 131], [67, 3, 61], reduction="none")
    yield of(
        "ctc one sample",
        lambda x, y, n, k: F.ctc_loss(x.log_softmax(1), y, n, k),
        normal(9, 4),
        ints(4, 3, low=1),
        lambda: torch.tensor(8),
        lambda: torch.tensor(3),
    )
    yield of(
        "ctc batch first",
        lambda x, y, n, k: nn.CTCLoss(reduction="sum")(x.log_softmax(2).transpose(0, 1), y, n // 2, k),
        normal(3, 11, 5),
        lambda: padded,
        _lengths(22, 18, 15),
        _lengths(5, 3, 1),
    )


def sequence_cases() -> list[Case]:
    words, lengths = ints(7, 3, 6), _lengths(4, 6, 2)
    return [
        *_layers(),
        *_ctc_cases(),
        *(module(f"packed captions {kind}", lambda k=kind: _Captions(k), words, lengths) for kind in ("mean", "sum")),
        module("packed rows", _Repacked, ints(7, 6, 3), lengths),
        module("packed idioms", _Idioms, normal(3, 6, 3), lengths),
        of("pack sequence", _pads, normal(4, 3), normal(6, 3), normal(2, 3)),
    ]

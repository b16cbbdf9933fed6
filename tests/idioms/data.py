"""Idioms of data: loaders, dictionaries, lengths that change, augmentation, evaluation."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.optim import SGD, Adam
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import handheld
from handheld.errors import HandheldError
from helpers.small_models import bert
from idioms.idiom import (
    DEVICE,
    assert_same,
    assert_trains_alike,
    batches,
    idiom,
    mlp,
    samples,
    torch_loop,
    torch_steps,
    twin,
)


@idiom("data", "`DataLoader(dataset, batch_size=32)`, whose last batch is short")
def loader_with_short_batch() -> None:
    loader = DataLoader(TensorDataset(*samples(50)), batch_size=32)
    model = mlp()
    other = twin(model)
    step = handheld.capture(model, F.cross_entropy, SGD(model.parameters(), 0.1), next(iter(loader)))
    with step.plan(DEVICE).start() as trainer:
        history = trainer.fit(loader, epochs=2)
    optimizer = SGD(other.parameters(), 0.1)
    for _ in range(2):
        torch_loop(other, F.cross_entropy, optimizer, loader)
    assert history.steps == 4
    assert_same(step, other)


@idiom("data", "`DataLoader(…, shuffle=True, drop_last=True)`")
def loader_shuffled() -> None:
    loader = DataLoader(TensorDataset(*samples(50)), batch_size=32, shuffle=True, drop_last=True)
    model = mlp()
    step = handheld.capture(model, F.cross_entropy, SGD(model.parameters(), 0.1), next(iter(loader)))
    with step.plan(DEVICE).start() as trainer:
        history = trainer.fit(loader, epochs=2)
    assert history.steps == 2


class Flipped(Dataset[Any]):
    """Images with a random flip, made when they are asked for."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = torch.full((1, 8, 8), index / 12)
        return (image.flip(-1) if torch.rand(()) < 0.5 else image), index % 3


@idiom("data", "a `Dataset` of one's own with transforms, read by workers (`num_workers=2`)")
def dataset_with_workers() -> None:
    torch.manual_seed(0)
    loader = DataLoader(Flipped(), batch_size=4, num_workers=2)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 3))
    step = handheld.capture(model, F.cross_entropy, SGD(model.parameters(), 0.1), next(iter(loader)))
    with step.plan(DEVICE).start() as trainer:
        assert trainer.fit(loader, epochs=2).steps == 6


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        x, y = samples(48)
        yield from zip(x, y, strict=True)


@idiom("data", "`IterableDataset`, or a generator per epoch")
def stream() -> None:
    loader = DataLoader(Stream(), batch_size=16)
    model = mlp()
    step = handheld.capture(model, F.cross_entropy, SGD(model.parameters(), 0.1), next(iter(loader)))
    with step.plan(DEVICE).start() as trainer:
        assert trainer.fit(loader, epochs=2).steps == 6
        assert trainer.fit(lambda epoch: iter(batches(2, seed=epoch)), epochs=2).steps == 4


@idiom("data", "a generator, which can be read only once, for two epochs", "error: a list, or a function per epoch")
def spent_generator() -> None:
    model = mlp()
    step = handheld.capture(model, F.cross_entropy, SGD(model.parameters(), 0.1), samples(16))
    with step.plan(DEVICE).start() as trainer, pytest.raises(HandheldError, match=r"only once.*Try"):
        trainer.fit(iter(batches(2)), epochs=2)


class Named(nn.Module):
    """A model that takes keywords and returns its loss, as those of Hugging Face do."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()

    def forward(self, features: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        logits = self.net(features)
        output = {"logits": logits}
        return output if labels is None else {"loss": F.cross_entropy(logits, labels), **output}


@idiom("data", "dictionaries as batches: `model(**batch).loss`")
def dictionaries() -> None:
    data = [{"features": x, "labels": y} for x, y in batches(4)]
    model = Named()
    other = twin(model)
    step = handheld.capture(model, None, SGD(model.parameters(), 0.1), data[0])
    with step.plan(DEVICE).start() as trainer:
        trainer.fit(data, epochs=1)
        logits = trainer.predict({"features": data[0]["features"]})
    torch_steps(lambda batch: other(**batch)["loss"], SGD(other.parameters(), 0.1), data)
    assert_same(step, other)
    with torch.no_grad():
        expected = other(data[0]["features"])["logits"].numpy()
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)


@idiom("data", "`model(input_ids=…, attention_mask=…, labels=…).loss` (Hugging Face)")
def hugging_face() -> None:
    torch.manual_seed(0)
    model = bert()
    other = twin(model)
    data = [
        {
            "input_ids": torch.randint(64, (4, 10)),
            "attention_mask": torch.ones(4, 10, dtype=torch.int64),
            "labels": torch.randint(3, (4,)),
        }
        for _ in range(3)
    ]
    step = handheld.capture(model, None, torch.optim.AdamW(model.parameters(), 1e-3), data[0])
    with step.plan(DEVICE).start() as trainer:
        trainer.fit(data, epochs=1)
        scores = trainer.predict({k: v for k, v in data[0].items() if k != "labels"})
    torch_steps(lambda batch: other(**batch).loss, torch.optim.AdamW(other.parameters(), 1e-3), data)
    other.eval()
    with torch.no_grad():
        expected = other(input_ids=data[0]["input_ids"], attention_mask=data[0]["attention_mask"]).logits.numpy()
    np.testing.assert_allclose(scores, expected, rtol=2e-3, atol=2e-4)


@idiom("data", "`pack_padded_sequence` around an LSTM or GRU")
def packed_sequences() -> None:
    class Tagger(nn.Module):
        def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
            super().__init__()
            self.rnn = kind(4, 6, batch_first=True, bidirectional=True)
            self.head = nn.Linear(12, 3)

        def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
            out, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=x.shape[1])
            return self.head(out).mean(1)

    for kind in (nn.LSTM, nn.GRU):
        torch.manual_seed(0)
        model = Tagger(kind)
        data = [(torch.randn(5, 7, 4), torch.randint(1, 8, (5,)), torch.randint(3, (5,))) for _ in range(4)]
        assert_trains_alike(model, data=data, inputs=2)


@idiom("data", "`nn.CTCLoss` with lengths that change per batch")
def ctc() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.LogSoftmax(-1))
    data = [
        (torch.randn(12, 4, 6), torch.randint(1, 5, (4, 4)), torch.randint(9, 13, (4,)), torch.randint(1, 5, (4,)))
        for _ in range(3)
    ]
    assert_trains_alike(model, nn.CTCLoss(), data)


@idiom("data", "batches padded to their own longest sentence", "error: pad to one length, or to a few")
def lengths_per_batch() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 8), nn.Flatten(0, 1), nn.Linear(8, 20))
    optimizer = SGD(model.parameters(), 0.1)
    step = handheld.capture(model, lambda out, y: F.cross_entropy(out, y.flatten()), optimizer, _tokens(6))
    with step.plan(DEVICE).start() as trainer, pytest.raises(HandheldError, match=r"shape.*Try.*pad"):
        trainer.step(*_tokens(7))


def _tokens(length: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(20, (4, length)), torch.randint(20, (4, length))


@idiom("data", "mixup: soft labels as a second float tensor")
def mixup() -> None:
    data = []
    for x, y in batches(4):
        order, share = torch.randperm(len(y)), 0.3
        hot = F.one_hot(y, 3).float()
        data.append((share * x + (1 - share) * x[order], share * hot + (1 - share) * hot[order]))
    assert_trains_alike(mlp(), data=data)


@idiom("evaluation", "`model.eval(); with torch.no_grad(): …` over 50 samples in batches of 32")
def evaluate_all() -> None:
    x, y = samples(50)
    loader = DataLoader(TensorDataset(x, y), batch_size=32)
    model = nn.Sequential(mlp(), nn.Dropout(0.5))
    step = handheld.capture(model, F.cross_entropy, SGD(model.parameters(), 0.1), samples(32))
    model.eval()
    with torch.no_grad():
        scores = model(x)
    loss, right = float(F.cross_entropy(scores, y)), float((scores.argmax(1) == y).float().mean())
    with step.plan(DEVICE).start() as trainer:
        got, _ = trainer.evaluate(x, y)
        np.testing.assert_allclose(trainer.predict(x), scores.numpy(), rtol=1e-4, atol=1e-5)
        trainer.set_rate(0.0)
        history = trainer.fit(batches(1, 32), epochs=1, test=loader)
    assert float(got) == pytest.approx(loss, rel=1e-5)
    assert history.test["loss"] == pytest.approx(loss, rel=1e-5)
    assert history.test["accuracy"] == pytest.approx(right)


@idiom("evaluation", "scikit-learn metrics on the predictions")
def sklearn_metrics() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    x, y = samples(50)
    model = mlp()
    step = handheld.capture(model, F.cross_entropy, Adam(model.parameters(), 0.05), samples(16))
    with step.plan(DEVICE).start() as trainer:
        trainer.fit(batches(8), epochs=5)
        guess = trainer.predict(x).argmax(1)
    assert metrics.f1_score(y.numpy(), guess, average="macro") > 0.8


@idiom("data", "`mse_loss` of [32, 1] against [32]", "PyTorch's warning, with your line")
def broadcast_loss() -> None:
    model = nn.Linear(8, 1)
    with pytest.warns(UserWarning, match="target size"):
        handheld.capture(model, F.mse_loss, SGD(model.parameters(), 0.1), (torch.randn(32, 8), torch.randn(32)))


@idiom("data", "a float64 or bfloat16 batch for a float32 model", "error: both dtypes")
def wrong_dtype() -> None:
    x, y = samples(16)
    model = mlp()
    step = handheld.capture(model, F.cross_entropy, SGD(model.parameters(), 0.1), (x, y))
    with step.plan(DEVICE).start() as trainer:
        with pytest.raises(HandheldError, match=r"bfloat16.*float32"):
            trainer.step(x.bfloat16(), y)
        with pytest.raises(HandheldError, match=r"float32.*int64|int64"):
            trainer.step(x, y.float())


@idiom("data", "labels outside the classes", "error: the value and the range")
def wrong_labels() -> None:
    x, y = samples(16)
    model = mlp()
    step = handheld.capture(model, F.cross_entropy, SGD(model.parameters(), 0.1), (x, y))
    with step.plan(DEVICE).start() as trainer, pytest.raises(HandheldError, match="0 to 2"):
        trainer.step(x, y + 5)


@idiom("data", "`torch.manual_seed` for the same result twice", "works; `capture(seed=…)` starts dropout's numbers")
def seeds() -> None:
    def run(seed: int) -> np.ndarray:
        model = nn.Sequential(mlp(), nn.Dropout(0.5))
        step = handheld.capture(model, F.cross_entropy, SGD(model.parameters(), 0.1), samples(16), seed=seed)
        with step.plan(DEVICE).start() as trainer, warnings.catch_warnings():
            trainer.fit(batches(3), epochs=1)
        return step.state()["0.0.weight"]

    assert np.array_equal(run(3), run(3)) and not np.array_equal(run(3), run(4))

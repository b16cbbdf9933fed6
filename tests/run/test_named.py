"""Dictionaries as batches, models that return their own loss, and predictions without labels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import handheld
from handheld.data.batches import ArrayData
from handheld.errors import DataError, HandheldError
from handheld.run.metrics import Arrays, default_metrics
from helpers.sizes import samples
from helpers.small_models import bert


class Named(nn.Module):
    """Takes keywords and returns its loss, as the models of Hugging Face do."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(6, 3)

    def forward(self, labels: torch.Tensor | None = None, *, features: torch.Tensor, scale: torch.Tensor):
        logits = self.net(features) * scale
        return {"logits": logits} if labels is None else {"loss": F.cross_entropy(logits, labels), "logits": logits}


class NeedsLabels(Named):
    def forward(self, labels: torch.Tensor | None = None, *, features: torch.Tensor, scale: torch.Tensor):
        if labels is None:
            raise ValueError("labels are required")
        return super().forward(labels, features=features, scale=scale)


def named(count: int) -> dict[str, np.ndarray]:
    x, y = samples(count)
    return {"labels": y, "features": x, "scale": np.full((count, 1), 2, np.float32)}


class Rows(Dataset):
    def __init__(self, count: int) -> None:
        self.arrays = named(count)

    def __len__(self) -> int:
        return len(self.arrays["labels"])

    def __getitem__(self, index: int):
        return {name: torch.from_numpy(array)[index] for name, array in self.arrays.items()}


def captured(model: nn.Module | None = None, size: int = 32):
    torch.manual_seed(0)
    model = model or Named()
    batch = {name: torch.from_numpy(array) for name, array in named(size).items()}
    return model, handheld.capture(model, None, torch.optim.SGD(model.parameters(), 0.1), batch)


def data(kind: str, count: int):
    if kind == "loader":
        return DataLoader(Rows(count), batch_size=32)
    arrays = named(count)
    if kind == "list":
        return [{n: a[i : i + 32] for n, a in arrays.items()} for i in range(0, count, 32)]
    options = {"batch_size": 32, "keep_short": True, "shuffle": False}
    return ArrayData(arrays, **options) if kind == "dictionary" else ArrayData(**arrays, **options)


@pytest.mark.parametrize("kind", ["loader", "list", "dictionary", "keywords"])
def test_fit_takes_dictionaries(kind):
    model, step = captured()
    with step.plan("opencl").start() as trainer:
        history = trainer.fit(data(kind, 50), epochs=2, test=data(kind, 50))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for batch in list(data("loader", 50)) * 2:
        optimizer.zero_grad()
        model(**batch)["loss"].backward()
        optimizer.step()
    np.testing.assert_allclose(step.state()["net.weight"], model.net.weight.detach().numpy(), rtol=1e-4, atol=1e-6)
    whole = {name: torch.from_numpy(array) for name, array in named(50).items()}
    with torch.no_grad():
        out = model(**whole)
    assert history.test["loss"] == pytest.approx(float(out["loss"]), rel=1e-5)
    right = (out["logits"].argmax(1) == whole["labels"]).float().mean()
    assert history.test["accuracy"] == pytest.approx(float(right))  # The labels are not the last array.


def test_predict_takes_no_labels():
    model, step = captured()
    assert [given.name for given in step.graphs["predict"].inputs] == ["features", "scale"]
    arrays = named(50)
    with step.plan("opencl").start() as trainer:
        got = trainer.predict({name: arrays[name] for name in ("scale", "features")})
        again = trainer.predict(arrays)  # Labels are not used.
    with torch.no_grad():
        expected = model(features=torch.from_numpy(arrays["features"]), scale=torch.tensor(2.0))["logits"].numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(got, again)


def test_a_model_that_needs_labels_has_no_prediction(tmp_path):
    _, step = captured(NeedsLabels())
    assert list(step.graphs) == ["train", "evaluate"]
    step.save(tmp_path / "net.step")
    for one in (step, handheld.load(tmp_path / "net.step")):
        with one.plan("null").start() as trainer:
            match = r"no graph for predictions: without labels, the model raises ValueError: labels are required.*Try: "
            with pytest.raises(HandheldError, match=match):
                trainer.predict(named(32))


def test_with_a_loss_the_model_gets_the_names_it_takes():
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(6, 3)

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            return self.net(features)

    model = Plain()
    x, y = (torch.from_numpy(a) for a in samples(32))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    step = handheld.capture(model, F.cross_entropy, optimizer, {"features": x, "labels": y})
    with step.plan("opencl").start() as trainer:
        loss = trainer.step({"labels": y, "features": x})
        assert float(loss) == pytest.approx(float(F.cross_entropy(model(x), y).detach()), rel=1e-5)
        assert trainer.predict({"features": x}).shape == (32, 3)


def test_metrics_find_arrays_by_name_or_order():
    x, y = samples(8)
    arrays = Arrays({"labels": y, "features": x})
    assert arrays[-1] is x and arrays["labels"] is y and len(arrays) == 2 and arrays[:1][0] is y
    scores = {"output.logits": np.eye(3, dtype=np.float32)[y]}
    assert default_metrics(scores, arrays)["accuracy"](scores, arrays) == (8.0, 8.0)
    tokens = np.arange(12).reshape(2, 6)
    masked = np.where(tokens > 8, -100, tokens)
    # A language model that gets its tokens as labels shifts them itself: the outputs do not belong to these labels.
    logits = {"output.logits": np.zeros((2, 6, 12), np.float32)}
    for labels in (tokens, masked):
        assert default_metrics(logits, Arrays({"input_ids": tokens, "labels": labels})) == {}
    assert "accuracy" in default_metrics(logits, Arrays({"input_ids": tokens, "labels": tokens[::-1]}))


def test_named_arrays():
    x, y = samples(10)
    one = ArrayData({"x": x, "y": y}, batch_size=4, shuffle=False)
    (batch,) = next(one.epoch(0))
    assert list(batch) == ["x", "y"] and np.array_equal(batch["x"], x[:4])
    with pytest.raises(DataError, match=r"with and without names. Try: "):
        ArrayData(x, y=y, batch_size=4)


# ── Hugging Face ──────────────────────────────────────────────────────────────────────────────────


def small(kind: str):
    """A model with random weights, and its whole batch."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    ids = torch.randint(1, 64, (50, 10))
    if kind == "bert":
        model = bert()
        mask = (torch.arange(10) < torch.randint(4, 11, (50, 1))).long()
        return model, {"input_ids": ids, "attention_mask": mask, "labels": torch.randint(3, (50,))}
    config = transformers.GPT2Config(
        vocab_size=64, n_embd=32, n_layer=1, n_head=2, n_positions=16, bos_token_id=0, eos_token_id=0
    )
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    return transformers.GPT2LMHeadModel(config), {"input_ids": ids, "labels": ids}


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_hugging_face_models(kind):
    model, whole = small(kind)
    encoding = pytest.importorskip("transformers").BatchEncoding
    batches = [encoding({name: value[i : i + 32] for name, value in whole.items()}) for i in (0, 32)]
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    step = handheld.capture(model, None, optimizer, batches[0])
    with step.plan("opencl").start() as trainer:
        history = trainer.fit(batches, epochs=2, test=batches)
        scores = trainer.predict({name: value for name, value in whole.items() if name != "labels"})
    for batch in batches * 2:
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        out = model(**whole)
    np.testing.assert_allclose(scores, out.logits.numpy(), rtol=1e-2, atol=1e-3)
    assert history.test["loss"] == pytest.approx(float(out.loss), rel=1e-3)
    assert ("accuracy" in history.test) == (kind == "bert")


@pytest.mark.parametrize("wrap", [lambda batch: batch, lambda batch: (batch,), lambda batch: [batch]])
@pytest.mark.parametrize("tensors", [False, True])
def test_the_first_batch_of_named_data_is_captured(wrap, tensors):
    data = ArrayData(**named(64), batch_size=32)
    batch = next(iter(data))
    assert isinstance(batch, tuple) and isinstance(batch[0], dict)
    given = {name: torch.from_numpy(a) for name, a in batch[0].items()} if tensors else batch[0]
    torch.manual_seed(0)
    model = Named()
    step = handheld.capture(model, None, torch.optim.SGD(model.parameters(), 0.1), wrap(given))
    assert {i.name for i in step.graphs["train"].inputs} == {"labels", "features", "scale"}
    assert "labels" not in {i.name for i in step.graphs["predict"].inputs}
    with step.plan("reference").start() as trainer:
        trainer.step(*batch)
        trainer.step(batch[0])
        assert trainer.fit(data, epochs=1).steps == 2
    _, other = captured()  # From a dictionary of tensors, as before.
    assert [n.op for n in step.graphs["train"].nodes] == [n.op for n in other.graphs["train"].nodes]


def test_a_named_batch_in_a_tuple_is_shared_between_model_and_loss():
    class Scores(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(6, 3)

        def forward(self, features):
            return self.net(features)

    x, y = samples(64)
    data = ArrayData(features=x, labels=y, batch_size=32)
    model = Scores()
    step = handheld.capture(model, F.cross_entropy, torch.optim.SGD(model.parameters(), 0.1), next(iter(data)))
    with step.plan("reference").start() as trainer:
        assert trainer.fit(data, epochs=1).steps == 2


def test_a_model_that_takes_the_dictionary_itself_still_gets_it():
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(6, 3)

        def forward(self, batch):
            return F.cross_entropy(self.net(batch["features"]), batch["labels"])

    x, y = map(torch.from_numpy, samples(32))
    model = Whole()
    step = handheld.capture(
        model, None, torch.optim.SGD(model.parameters(), 0.1), ({"features": x, "labels": y},), evaluate=False
    )
    with step.plan("reference").start() as trainer:
        assert np.isfinite(float(trainer.step(*[x, y])))

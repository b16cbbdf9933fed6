"""Commands on a model that takes a dictionary and returns its own loss, as those of Hugging Face do."""

from __future__ import annotations

import json

import numpy as np
import pytest

import handheld
from helpers.commands import fails

FACTORY = """
import torch
from torch import nn
from torch.nn import functional as F


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(20, 8), nn.Linear(8, 3)

    def forward(self, input_ids, attention_mask, labels=None):
        mask = attention_mask[..., None].float()
        logits = self.out((self.table(input_ids) * mask).sum(1) / mask.sum(1))
        return {"loss": None if labels is None else F.cross_entropy(logits, labels), "logits": logits}


def make():
    torch.manual_seed(0)
    model = Named()
    batch = {
        "input_ids": torch.zeros(16, 5, dtype=torch.long),
        "attention_mask": torch.ones(16, 5, dtype=torch.long),
        "labels": torch.zeros(16, dtype=torch.long),
    }
    return model, None, torch.optim.Adam(model.parameters(), 0.05), batch


def without_batch():
    return make()[:3]
"""


@pytest.fixture(scope="module")
def named(work):
    (work / "named.py").write_text(FACTORY)
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 203)
    ids = labels[:, None] * 6 + rng.integers(0, 6, (203, 5))
    mask = (np.arange(5) < rng.integers(2, 6, (203, 1))).astype(np.int64)
    np.savez(work / "named.npz", labels=labels, input_ids=ids, attention_mask=mask)
    np.savez(work / "unnamed.npz", x=ids, y=labels)
    return work


def test_train_a_factory_with_a_dictionary(run, named):
    words = ("train", "named.py:make", "--data", "named.npz", "--epochs", "8", "--on", "reference:cpu")
    result = run(*words, "--export", "named.step", "--force", "--json")
    report = json.loads(result.stdout)
    assert report["test"]["accuracy"] > 0.9 and report["batch"] == 16
    step = handheld.load(named / "named.step")
    assert [given.name for given in step.graphs["predict"].inputs] == ["input_ids", "attention_mask"]
    with step.plan("reference:cpu").start() as trainer, np.load(named / "named.npz") as arrays:
        scores = trainer.predict({"attention_mask": arrays["attention_mask"], "input_ids": arrays["input_ids"]})
        assert (scores.argmax(1) == arrays["labels"]).mean() > 0.9
    again = run("train", "named.step", "--data", "named.npz", "--epochs", "1", "--lr", "0", "--on", "reference:cpu")
    assert again.exit_code == 0 and "test accuracy" in again.stdout, again.output


def test_package_several_sizes_of_a_dictionary(run, named):
    words = ("package", "named.py:make", "--batch", "16,4", "--out", "named_sizes.step", "--force", "--json")
    assert {"predict@4", "train@16"} <= set(json.loads(run(*words).stdout)["graphs"])


def test_missing_names_are_an_error(run, named):
    result = run("train", "named.py:make", "--data", "unnamed.npz")
    fails(result, "no 'input_ids', which the model takes", "Try: numpy.savez")

"""The largest image and the longest sequence that train."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from handheld.errors import HandheldError
from handheld.limits.growing import regrown

WORDS = """
import torch
from torch import nn

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.out = nn.Linear(16, 50)

    def forward(self, x):
        assert x.shape[1] <= 100, "no more than 100 words"
        return self.out(self.embed(x)).transpose(1, 2)

def make():
    model = Words()
    words = torch.zeros(4, 8, dtype=torch.int64)
    return model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), 0.1), (words, words)
"""

LARGE = """
import torch
from torch import nn

def make():
    layers = nn.Conv2d(3, 4, 41, stride=8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    model = nn.Sequential(*layers)
    batch = torch.rand(2, 3, 96, 96), torch.zeros(2, dtype=torch.int64)
    return model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), 0.1), batch
"""


def test_images_masks_and_classes() -> None:
    x, mask, label = torch.rand(2, 3, 8, 8), torch.zeros(2, 8, 8, dtype=torch.int64), torch.tensor([0, 1])
    images, masks, labels = regrown((x, mask, label), "image", 12)
    assert images.shape == (2, 3, 12, 12) and masks.shape == (2, 12, 12) and labels is label
    assert torch.equal(images[..., :8, :8], x) and torch.equal(images[..., 8:, 8:], x[..., :4, :4])


def test_words_and_their_targets() -> None:
    batch = {"x": np.arange(12).reshape(2, 6), "y": np.arange(12).reshape(2, 6), "kind": np.zeros(2)}
    grown = regrown(batch, "length", 9)
    assert grown["x"].tolist()[0] == [0, 1, 2, 3, 4, 5, 0, 1, 2] and grown["y"].shape == (2, 9)
    assert grown["kind"] is batch["kind"]
    assert regrown(batch, "length", 4)["x"].shape == (2, 4)


def test_a_batch_without_them() -> None:
    with pytest.raises(HandheldError, match="no images"):
        regrown((torch.rand(2, 8), torch.tensor([0, 1])), "image", 12)


def test_the_largest_image(run) -> None:
    words = ("fit", "squeezenet", "--largest", "image", "--batch", "4", "--on", "adreno-740", "--memory-limit", "16MiB")
    found = json.loads(run(*words, "--json").stdout)
    fits = [tried["size"] for tried in found["tried"] if tried["fits"]]
    too_large = [tried for tried in found["tried"] if not tried["fits"] and tried["size"] > found["largest"]]
    assert found["largest"] == max(fits) > 32 and found["exact"]
    assert min(tried["size"] for tried in too_large) == found["largest"] + 32
    assert all(tried["bytes"] > 16 << 20 for tried in too_large)


def test_the_longest_sequence_of_a_users_model(run, tmp_path) -> None:
    """The model refuses longer ones, although there is memory."""
    file = tmp_path / "words.py"
    file.write_text(WORDS)
    shown = run("fit", f"{file}:make", "--largest", "length", "--on", "adreno-740")
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.startswith("The largest sequence that trains in")
    assert "is 96" in shown.stdout and "no more than 100 words" in shown.stdout


@pytest.mark.parametrize(("what", "kind"), [("gpt", "image"), ("squeezenet", "length")])
def test_sizes_that_a_model_does_not_have(run, what: str, kind: str) -> None:
    refused = run("fit", what, "--largest", kind, "--on", "adreno-740")
    assert refused.exit_code == 1 and "Try: --largest batch" in refused.output


def test_a_workload_of_one_size(run) -> None:
    refused = run("fit", "lenet5", "--largest", "image", "--on", "adreno-740")
    assert refused.exit_code == 1 and "lenet5 has no images whose size can be chosen" in refused.output


def test_a_model_that_takes_no_small_images(run, tmp_path) -> None:
    """The search begins with the model's own size. Its sizes below 64 pixels do not run."""
    file = tmp_path / "large.py"
    file.write_text(LARGE)
    words = ("fit", f"{file}:make", "--largest", "image", "--on", "adreno-740", "--memory-limit", "8MiB")
    found = json.loads(run(*words, "--json").stdout)
    assert found["largest"] > 96 and found["exact"] and not found["why_no_larger"]
    assert min(tried["size"] for tried in found["tried"]) == 96

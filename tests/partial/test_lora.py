"""LoRA on every kind of layer: it equals PyTorch, merges, and keeps the names of the model."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import handheld
from handheld.adapters import taken
from handheld.errors import HandheldError
from helpers.partial_steps import captured, errors, shaken, trained


class Layers(nn.Module):
    """An embedding, a convolution with a stride, a 1x1 and a depthwise one, and linear layers; one weight is tied."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(19, 12)
        self.wide = nn.Conv1d(12, 10, 3, stride=2, padding=1)
        self.depth = nn.Conv1d(10, 10, 3, groups=10)
        self.point = nn.Conv1d(10, 12, 1)
        self.norm = nn.BatchNorm1d(12)
        self.out = nn.Linear(12, 12)
        self.head = nn.Linear(12, 19, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        y = self.point(torch.relu(self.depth(self.wide(self.embed(x).transpose(1, 2)))))
        return self.head(torch.tanh(self.out(self.norm(y).mean(2))))


def layers() -> nn.Module:
    torch.manual_seed(0)
    return Layers()


def batch(seed: int = 0):
    g = torch.Generator().manual_seed(seed)
    return torch.randint(0, 19, (6, 11), generator=g), torch.randint(0, 19, (6,), generator=g)


def loss(model, b):
    return F.cross_entropy(model(b[0]), b[1])


def test_the_default_is_every_linear_layer_and_convolution_without_groups_and_ties():
    model = layers()
    before = model(batch()[0])
    names = handheld.lora(model, rank=3)
    assert {n.rpartition(".")[0] for n in names} == {"wide", "point", "out"}
    assert all(n.endswith((".lora_a", ".lora_b")) for n in names)
    model.norm.train()  # It is in eval mode now, because it is frozen.
    assert torch.equal(model(batch()[0]), before), "an untrained adapter changes nothing"
    assert isinstance(model.out, nn.Linear) and "LoraLinear" in repr(model)


def test_lora_equals_pytorch_in_float64():
    model = layers()
    handheld.lora(model, rank=3, alpha=5)
    shaken(model)
    step = captured(model, F.cross_entropy, batch(), evaluate=False)
    found = errors(step, model, loss, [batch(i) for i in range(3)])
    assert max(found.values()) < 1e-4, found


def test_an_embedding_gets_lora_if_it_is_named():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(19, 12), nn.Flatten(), nn.Linear(12 * 11, 19))
    assert handheld.lora(model, rank=2, targets=["0"]) == ["0.lora_a", "0.lora_b"]
    step = captured(shaken(model), F.cross_entropy, batch(), evaluate=False)
    found = errors(step, model, loss, [batch(i) for i in range(2)])
    assert max(found.values()) < 1e-4, found


def test_merging_keeps_what_the_model_computes_and_restores_its_names():
    model = layers()
    plain = list(model.state_dict())
    handheld.lora(model, rank=3)
    shaken(model).eval()
    before, state = model(batch()[0]), {k: v.numpy().copy() for k, v in model.state_dict().items()}
    assert handheld.merge_lora(model) == ["wide", "point", "out"]
    assert list(model.state_dict()) == plain and type(model.wide) is nn.Conv1d
    torch.testing.assert_close(model(batch()[0]), before, rtol=1e-5, atol=1e-6)
    merged = taken(state, "merged")
    assert set(merged) == set(plain)
    for name, value in model.state_dict().items():
        np.testing.assert_allclose(merged[name], value.numpy(), rtol=1e-5, atol=1e-6)
    adapter = taken(state, "adapter")
    assert len(adapter) == 9 and set(adapter) | set(plain) == set(state) == set(taken(state, "all"))


def test_gpt2_layers_of_hugging_face_are_transposed():
    from transformers.pytorch_utils import Conv1D

    torch.manual_seed(0)
    model = nn.Sequential(Conv1D(12, 12), nn.GELU(), Conv1D(5, 12))
    assert len(handheld.lora(model, rank=2)) == 4
    x, y = torch.randn(6, 12), torch.randint(0, 5, (6,))
    step = captured(shaken(model), F.cross_entropy, (x, y), evaluate=False)
    found = errors(step, model, lambda m, b: F.cross_entropy(m(b[0].double()), b[1]), [(x, y)] * 2)
    assert max(found.values()) < 1e-4, found
    before = model(x)
    handheld.merge_lora(model)
    torch.testing.assert_close(model(x), before, rtol=1e-5, atol=1e-6)


def test_only_the_adapters_are_captured_and_copied_back():
    model = layers()
    names = handheld.lora(model, rank=2)
    step = captured(model, F.cross_entropy, batch())
    train = step.graphs["train"]
    written = {w.slot for w in train.writes if step.slots[w.slot].role == "parameter"}
    assert written == set(names)
    other = copy.deepcopy(model)
    with step.plan("reference:cpu").start() as trainer:
        trainer.step(*batch())
    step.copy_to(other)
    changed = [n for n, p in other.named_parameters() if not torch.equal(p, dict(model.named_parameters())[n])]
    assert changed and set(changed) <= set(names) and len(trained(other)) == len(names)


def test_bad_calls_say_what_to_do():
    with pytest.raises(HandheldError, match=r"'outs' matches no layer that LoRA can be added to\. The nearest .* out"):
        handheld.lora(layers(), targets="outs")
    with pytest.raises(HandheldError, match="matches no layer"):
        handheld.lora(layers(), targets="head")  # Its weight is also that of the embedding.
    with pytest.raises(HandheldError, match="rank=0"):
        handheld.lora(layers(), rank=0)
    model = layers()
    with pytest.raises(HandheldError, match="no LoRA to merge"):
        handheld.merge_lora(model)
    handheld.lora(model)
    with pytest.raises(HandheldError, match="has LoRA already"):
        handheld.lora(model)
    with pytest.raises(HandheldError, match="there is no LoRA"):
        taken({"a": np.zeros(1)}, "adapter")
    with pytest.raises(HandheldError, match="merged, adapter or all"):
        taken({}, "both")

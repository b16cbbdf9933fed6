"""Frozen weights in 8 and 4 bits: every reader computes with the same values, and the state stays small."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import handheld
from handheld.data import ArrayData
from handheld.errors import HandheldError
from handheld.graph.check import check
from handheld.passes import unpack
from helpers.partial_steps import captured, errors


class Words(nn.Module):
    """An embedding of whole blocks, linear layers with and without whole blocks, and a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(128, 64)
        self.up, self.down = nn.Linear(64, 131), nn.Linear(131, 64)
        self.mix = nn.Conv1d(64, 64, 3, padding=1)
        self.head = nn.Linear(64, 128, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        y = self.embed(x)
        y = y + self.down(F.gelu(self.up(y)))
        y = y + self.mix(y.transpose(1, 2)).transpose(1, 2)
        return self.head(y)


def batch(seed: int = 0):
    g = torch.Generator().manual_seed(seed)
    return torch.randint(0, 128, (3, 5), generator=g), torch.randint(0, 128, (3, 5), generator=g)


def words() -> nn.Module:
    torch.manual_seed(0)
    model = Words()
    handheld.lora(model, rank=2)
    return model


class Tied(nn.Module):
    """An embedding that is also the head, and one trained vector: few kernels, because OpenCL compiles each."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(128, 64).requires_grad_(False)
        self.shift = nn.Parameter(torch.zeros(64))

    def forward(self, x):
        return F.linear(self.embed(x) + self.shift, self.embed.weight)


def entropy(scores, tokens):
    return F.cross_entropy(scores.flatten(0, 1), tokens.flatten())


def loss(model, b):
    return entropy(model(b[0]), b[1])


@pytest.mark.parametrize(
    ("bits", "device", "large"), [(8, "reference:cpu", None), (4, "reference:cpu", None), (4, "opencl", 8192)]
)
def test_training_equals_pytorch_with_the_same_quantised_weights(bits, device, large, monkeypatch):
    """With `large`, products with more bytes of weights are cut: the head by columns, its gradient by terms."""
    if large:
        monkeypatch.setattr(unpack, "LARGE", large)
    model = Tied() if device == "opencl" else words()
    step = captured(model, entropy, batch(), evaluate=False)
    small = handheld.quantise(step, bits)
    assert "head.weight" not in small.slots and step.slots["embed.weight"].shape == (128, 64)
    ops = [node.op for node in small.graphs["train"].nodes]
    assert ("assign" in ops) is bool(large)
    found = errors(small, model, loss, [batch(i) for i in range(3)], device)
    assert max(found.values()) < 1e-4, found


def test_other_values_than_the_quantised_ones_would_be_noticed():
    """The test above can fail: the weights before packing give another loss."""
    model = words()
    small = handheld.quantise(captured(model, entropy, batch(), evaluate=False), 4)
    with small.plan("reference:cpu").start() as trainer:
        got = float(trainer.step(*batch()))
    assert abs(got - loss(model, batch()).item()) > 1e-3


def test_a_product_is_cut_at_both_ends(monkeypatch):
    monkeypatch.setattr(unpack, "LARGE", 4096)
    model = words()
    step = captured(model, entropy, batch(), evaluate=False)
    small = handheld.quantise(step, 4)
    graph = check(small.graphs["train"], small.slots)
    parts = [t for t in graph.tensors.values() if t.role == "workspace" and t.name == "embed.weight"]
    assert len(parts) == 16 and all(t.shape == (16, 64) for t in parts)
    uses = [n for n in graph.nodes if n.op == "matmul" and n.origin.path == "head"]
    assert sorted(n.origin.phase for n in uses) == ["backward"] * 8 + ["forward"] * 8


def test_one_unpacked_weight_is_in_memory_at_a_time():
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(8)))
    handheld.lora(model, rank=1)
    x = torch.randn(2, 256)
    step = captured(model, F.mse_loss, (x, x), evaluate=False)
    small = handheld.quantise(step, 4)
    weight, state = 256 * 256 * 4, 8 * 256 * 256 * (1 / 2 + 4 / 64)
    plan = small.plan("opencl")
    assert plan.arena_bytes < 3 * weight, "an unpacked weight and the panels of its product, but not eight weights"
    assert state < plan.bytes - plan.arena_bytes < state + 0.2 * 8 * weight
    assert step.plan("opencl").bytes > 8 * weight


def test_step_files_and_checkpoints_hold_the_small_weights(tmp_path):
    model = words()
    step = captured(model, entropy, batch())
    small = handheld.quantise(step, 4)
    sizes = [path.save(tmp_path / name).stat().st_size for path, name in ((step, "a.step"), (small, "b.step"))]
    assert sizes[0] - sizes[1] > 0.7 * 4 * sum(p.numel() for p in model.parameters() if p.dim() > 1)
    again = handheld.load(tmp_path / "b.step")
    assert again.packings() == small.packings()
    state, want = again.state_dict(), small.state_dict()
    assert set(state) == set(model.state_dict()) and all(torch.equal(state[n], want[n]) for n in want)
    x, y = torch.cat([batch(i)[0] for i in range(2)]), torch.zeros(6, 5, dtype=torch.int64)
    data = ArrayData(x, y, batch_size=3)

    def trained(epochs: int, resume: bool) -> dict[str, np.ndarray]:
        own = captured(words(), entropy, (x[:3], y[:3]))
        with handheld.quantise(own, 4).plan("reference:cpu").start() as trainer:
            trainer.fit(data, epochs=epochs, checkpoint=tmp_path / "c", resume=resume)
            return trainer.state()

    whole = trained(2, False)
    (tmp_path / "c").unlink()
    trained(1, False)
    assert (tmp_path / "c").stat().st_size < sizes[0]
    continued = trained(2, True)
    assert all(np.array_equal(continued[n], whole[n]) for n in whole if n != "handheld.seed")


def test_other_batch_sizes_read_the_packed_weights_too():
    model = words()
    small = handheld.quantise(captured(model, entropy, batch()), 4)
    with small.plan("reference:cpu").start() as trainer:
        several = trainer.predict(torch.cat([batch(i)[0] for i in range(3)])[:7])
    assert "predict@7" in small.added or any("@" in name for name in small.added)
    assert not any(name in small.slots for name in small.packings())
    small.copy_to(model)
    want = model.eval()(torch.cat([batch(i)[0] for i in range(3)])[:7]).detach().numpy()
    np.testing.assert_allclose(several.reshape(want.shape), want, rtol=1e-4, atol=1e-5)


def test_only_frozen_weights_that_are_named_and_large_are_packed():
    model = words()
    step = captured(model, entropy, batch(), evaluate=False)
    assert set(handheld.quantise(step, 8, targets="*.weight").packings()) == {
        "embed.weight",
        "up.weight",
        "down.weight",
        "mix.weight",
    }
    assert set(handheld.quantise(step, 8, targets=["up", "down"]).packings()) == {"up.weight", "down.weight"}
    twice = handheld.quantise(handheld.quantise(step, 8, targets="up"), 4)
    assert {name: p.bits for name, p in twice.packings().items()}["up.weight"] == 8 and len(twice.packings()) == 4


def test_bad_calls_say_what_to_do():
    step = captured(words(), entropy, batch(), evaluate=False)
    with pytest.raises(HandheldError, match=r"'heads' matches no frozen weight\. "):
        handheld.quantise(step, targets="heads")
    with pytest.raises(HandheldError, match=r"bits=3 is not possible\. Try: 8 or 4"):
        handheld.quantise(step, 3)
    plain = nn.Linear(4, 4)
    full = handheld.capture(plain, F.mse_loss, torch.optim.SGD(plain.parameters(), 0.1), (torch.zeros(2, 4),) * 2)
    with pytest.raises(HandheldError, match="every parameter of the step is trained"):
        handheld.quantise(full)
    plain.weight.requires_grad_(False)
    small = captured(plain, F.mse_loss, (torch.zeros(2, 4),) * 2)
    with pytest.raises(HandheldError, match=r"no frozen weight has two dimensions and 4,096 values"):
        handheld.quantise(small)
    with step.plan("reference:cpu").start(), pytest.raises(HandheldError, match="being trained"):
        handheld.quantise(step)

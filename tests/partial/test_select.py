"""What trains: words and patterns, batch norms, and that nothing of what is frozen is captured or planned."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import handheld
from handheld.errors import HandheldError
from handheld.partial.select import retarget
from helpers.partial_steps import captured, errors, sgd, trained


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.body = nn.Sequential(nn.Linear(8 * 36, 64), nn.ReLU(), nn.LayerNorm(64), nn.Linear(64, 64, bias=False))
        self.head = nn.Linear(64, 5)

    def forward(self, x):
        return self.head(self.body(torch.relu(self.norm(self.stem(x))).flatten(1)))


def net() -> nn.Module:
    torch.manual_seed(0)
    return Net()


def batch(seed: int = 0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(8, 3, 6, 6, generator=g), torch.randint(0, 5, (8,), generator=g)


@pytest.mark.parametrize(
    ("what", "names"),
    [
        (["last:1"], ["head.weight", "head.bias"]),
        (["last:2"], ["body.3.weight", "head.weight", "head.bias"]),
        (["biases"], ["stem.bias", "norm.bias", "body.0.bias", "body.2.bias", "head.bias"]),
        (["norms"], ["norm.weight", "norm.bias", "body.2.weight", "body.2.bias"]),
        (["body"], ["body.0.weight", "body.0.bias", "body.2.weight", "body.2.bias", "body.3.weight"]),
        (["*.weight", "head"], ["stem.weight", "norm.weight", "body.0.weight", "body.2.weight", "body.3.weight"]),
    ],
)
def test_words_name_parameters(what, names):
    model = net()
    got = handheld.train_only(model, *what)
    assert got[: len(names)] == names and len(got) <= len(names) + 2
    assert [n for n, p in model.named_parameters() if p.requires_grad] == got


def test_freeze_leaves_the_others_as_they_are():
    model = net()
    model.body.requires_grad_(False)
    assert handheld.freeze(model, "stem", "head.bias") == ["norm.weight", "norm.bias", "head.weight"]


def test_a_pattern_that_matches_nothing_names_the_nearest_names():
    with pytest.raises(HandheldError, match=r"'heads' matches no parameter\. The nearest names are head"):
        handheld.train_only(net(), "heads")
    with pytest.raises(HandheldError, match=r"'body\.1\.\*' matches no parameter\. The nearest names are .*body\."):
        handheld.freeze(net(), "body.1.*")
    with pytest.raises(HandheldError, match=r"'qqqq' matches no parameter\. Names are, for example, stem\.weight"):
        handheld.train_only(net(), "qqqq")
    with pytest.raises(HandheldError, match="from last:1 to last:6"):
        handheld.train_only(net(), "last:7")
    with pytest.raises(HandheldError, match="the model has no norms"):
        handheld.train_only(nn.Linear(2, 2), "norms")
    with pytest.raises(HandheldError, match="needs to know what trains"):
        handheld.train_only(net())


def test_a_batch_norm_trains_its_statistics_only_with_its_weight():
    for what, training in (("norms", True), ("biases", False), ("last:1", False)):
        model = net()
        handheld.train_only(model, what)
        assert model.norm.training is training and model.body.training
        step = captured(model, F.cross_entropy, batch(), evaluate=False)
        written = {write.slot for write in step.graphs["train"].writes}
        assert ("norm.running_mean" in written) is training


def test_what_is_frozen_is_neither_captured_nor_planned():
    """No gradient, no optimizer state, no update and no backward pass of a frozen layer; less memory on the device."""
    full = captured(net(), F.cross_entropy, batch(), evaluate=False)
    model = net()
    handheld.train_only(model, "head")
    part = captured(model, F.cross_entropy, batch(), evaluate=False)
    train = part.graphs["train"]
    assert {s for s in part.slots if s.startswith("optimizer.") and s.endswith("momentum_buffer")} == {
        "optimizer.head.weight.momentum_buffer",
        "optimizer.head.bias.momentum_buffer",
    }
    paths = {node.origin.path for node in train.nodes if node.origin.phase == "backward"}
    assert paths <= {"head", "loss"}
    shapes = {t.shape for t in train.tensors.values() if t.role == "gradient"}
    assert model.body[0].weight.shape not in shapes and model.stem.weight.shape not in shapes
    backward = [sum(n.origin.phase == "backward" for n in step.graphs["train"].nodes) for step in (full, part)]
    assert backward[1] <= 3 and backward[0] >= 8
    plans = [step.plan("opencl") for step in (full, part)]
    weights = sum(p.numel() for p in model.parameters()) * 4
    assert plans[0].bytes > 3 * weights and plans[1].bytes < 1.3 * weights


def test_partial_training_equals_pytorch():
    model = net()
    handheld.train_only(model, "last:2", "norms")
    step = captured(model, F.cross_entropy, batch(), evaluate=False)
    found = errors(step, model, lambda m, b: F.cross_entropy(m(b[0].double()), b[1]), [batch(i) for i in range(3)])
    assert max(found.values()) < 1e-4, found


def test_the_optimizer_gets_what_trains():
    model = net()
    groups = [{"params": model.stem.parameters(), "lr": 0.5}, {"params": model.head.parameters()}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    handheld.train_only(model, "head.bias", "body.3")
    retarget(optimizer, model)
    got = [[id(p) for p in group["params"]] for group in optimizer.param_groups]
    assert got == [[id(model.body[3].weight)], [id(model.head.bias)]]
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.1]
    assert len(trained(model)) == 2 and sgd(trained(model))

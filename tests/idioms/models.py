"""Idioms of models and losses: frozen layers, adapters, several networks, Python control flow."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD
from torch.utils.checkpoint import checkpoint

import handheld
from handheld.errors import HandheldError
from idioms.idiom import (
    DEVICE,
    assert_same,
    assert_trains_alike,
    assert_wrapped_trains_alike,
    batches,
    idiom,
    mlp,
    torch_loop,
    train,
    twin,
)


@idiom("model", "freeze a backbone: `p.requires_grad = False`")
def frozen_backbone() -> None:
    model = mlp()
    model[0].requires_grad_(False)
    assert_trains_alike(model)


@idiom("model", "frozen parameters given to the optimizer all the same")
def frozen_in_optimizer() -> None:
    model = mlp()
    model[0].requires_grad_(False)
    assert_trains_alike(model, optimizer=lambda m: SGD(m.parameters(), 0.1))


@idiom("model", "unfreeze layers after some epochs", "error: capture again")
def unfreeze() -> None:
    model, data = mlp(), batches(2)
    model[0].requires_grad_(False)
    step = handheld.capture(model, F.cross_entropy, SGD(model.parameters(), 0.1), data[0])
    with step.plan(DEVICE).start() as trainer:
        trainer.step(*data[0])
        model[0].requires_grad_(True)
        with pytest.raises(HandheldError, match=r"requires_grad.*Try"):
            for _ in range(20):  # Looking at every parameter takes time, so the trainer looks now and then.
                trainer.step(*data[1])


class Lora(nn.Module):
    """A frozen layer and a trained product of two small matrices."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, layer.in_features) * 0.1)
        self.b = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + x @ self.a.t() @ self.b.t()


@idiom("model", "LoRA: small trained matrices beside frozen layers")
def lora() -> None:
    model = mlp()
    model[0], model[2] = Lora(model[0], 2), Lora(model[2], 2)  # type: ignore[arg-type]
    assert_trains_alike(model)


@idiom("model", "tied weights: `head.weight = embedding.weight`")
def tied_weights() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(12, 6), nn.Linear(6, 12)
            self.head.weight = self.embedding.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.embedding(x)).flatten(0, 1)

    torch.manual_seed(0)
    data = [(torch.randint(12, (4, 5)), torch.randint(12, (20,))) for _ in range(4)]
    assert_trains_alike(Tied(), data=data)


@idiom("model", "batch norm: running statistics in training, used in eval")
def batch_norm() -> None:
    torch.manual_seed(0)
    assert_trains_alike(nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)))


@idiom("model", "`torch.compile(model)`", "works; captured uncompiled")
def compiled() -> None:
    assert_wrapped_trains_alike(torch.compile)


@idiom("model", "`torch.utils.checkpoint` around a block")
def activation_checkpointing() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = nn.Sequential(nn.Linear(8, 16), nn.Tanh()), nn.Linear(16, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden: torch.Tensor = checkpoint(self.inner, x, use_reentrant=False)  # type: ignore[assignment]
            return self.head(hidden)

    torch.manual_seed(0)
    assert_trains_alike(Block())


@idiom("model", "a custom `autograd.Function`")
def custom_function() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clamp(min=0)

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return 0.5 * grad

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(Double.apply(self.first(x)))  # type: ignore[no-untyped-call]

    torch.manual_seed(0)
    assert_trains_alike(Model())


@idiom("model", "forward hooks, and `tensor.register_hook` on gradients")
def hooks() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.first(x)
            if hidden.requires_grad:
                hidden.register_hook(lambda g: g * 0.5)
            return self.second(hidden.relu())

    torch.manual_seed(0)
    model = Scaled()
    model.first.register_forward_hook(lambda module, args, out: out * 2)
    assert_trains_alike(model)


@idiom("model", "`if x.mean() > 0: …` in `forward`", "warning with the line; `torch.where` instead")
def decision_in_forward() -> None:
    class Decides(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(-x if x.mean() > 0 else x)

    model = Decides()
    with pytest.warns(UserWarning, match=r"models\.py.*torch\.where"):
        handheld.capture(model, F.cross_entropy, SGD(model.parameters(), 0.1), batches(1)[0])


@idiom("model", "`print(x.shape)` and asserts on shapes in `forward`")
def shapes_in_forward() -> None:
    class Asserts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert x.shape[1] == 8 and x.is_floating_point()
            return self.net(x.view(x.size(0), -1))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_trains_alike(Asserts())


@idiom("model", "`nn.DataParallel(model)`", "works")
def data_parallel() -> None:
    assert_wrapped_trains_alike(nn.DataParallel)


@idiom("loss", "class weights, label smoothing and `ignore_index` in cross entropy")
def weighted_loss() -> None:
    criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5]), label_smoothing=0.1, ignore_index=0)
    assert_trains_alike(mlp(), criterion)


@idiom("loss", "several outputs and a sum of losses; an auxiliary head")
def several_losses() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.one, self.two = nn.Linear(8, 16), nn.Linear(16, 3), nn.Linear(16, 1)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            hidden = self.body(x).relu()
            return self.one(hidden), self.two(hidden)

    def loss(outputs: Any, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(outputs[0], y) + 0.4 * F.mse_loss(outputs[1].squeeze(1), y.float())

    torch.manual_seed(0)
    assert_trains_alike(Heads(), loss)


@idiom("loss", "an L1 penalty over `model.parameters()`")
def penalty() -> None:
    model, data = mlp(), batches(4)
    other = twin(model)

    def of(net: nn.Module) -> Any:
        def loss(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(output, y) + 1e-3 * sum(p.abs().sum() for p in net.parameters())

        return loss

    step = train(model, of(model), SGD(model.parameters(), 0.1), data)
    torch_loop(other, of(other), SGD(other.parameters(), 0.1), data)
    assert_same(step, other)

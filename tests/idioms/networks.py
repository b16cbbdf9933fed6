"""Idioms with several networks or inputs: siamese, distillation, GAN, target networks, policies."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam

import handheld
from idioms.idiom import (
    DEVICE,
    assert_function_trains_alike,
    assert_trains_alike,
    batches,
    idiom,
    mlp,
    torch_loop,
    twin,
)


@idiom("loss", "a siamese network with a triplet loss: three inputs, one model")
def triplet() -> None:
    torch.manual_seed(0)
    data = [tuple(torch.randn(5, 6) for _ in range(3)) for _ in range(3)]

    def loss(net: nn.Module, batch: Any) -> torch.Tensor:
        return F.triplet_margin_loss(*(net(part) for part in batch))

    assert_function_trains_alike(loss, nn.Linear(6, 4), data)


@idiom("loss", "distillation from a teacher under `torch.no_grad()`")
def distillation() -> None:
    model, teacher = mlp(), mlp(seed=3)

    def loss(net: nn.Module, batch: Any) -> torch.Tensor:
        with torch.no_grad():
            target = teacher(batch[0]).softmax(1)
        return F.kl_div(net(batch[0]).log_softmax(1), target, reduction="batchmean")

    data = [(x,) for x, _ in batches(3)]
    assert_function_trains_alike(loss, model, data, {"student": model, "teacher": teacher})


@idiom("loss", "a gradient penalty: `torch.autograd.grad(…, create_graph=True)`")
def gradient_penalty() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))

    def loss(net: nn.Module, batch: Any) -> torch.Tensor:
        x = batch[0].detach().requires_grad_()
        out = net(x).sum()
        (slope,) = torch.autograd.grad(out, x, create_graph=True)
        return out.square() * 1e-3 + (slope.norm(dim=1) - 1).square().mean()

    assert_function_trains_alike(loss, model, [(x,) for x, _ in batches(3)], evaluate=False)


@idiom("networks", "a GAN: two networks, two optimizers", "works, as two graphs of `handheld.Capture`")
def gan() -> None:
    torch.manual_seed(0)
    nets = {"g": nn.Linear(4, 8), "d": nn.Linear(8, 1)}
    others = {name: twin(net) for name, net in nets.items()}
    real, noise = batches(3), [torch.randn(16, 4) for _ in range(3)]

    def d_loss(of: Any, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return F.softplus(-of["d"](x)).mean() + F.softplus(of["d"](of["g"](z).detach())).mean()

    def g_loss(of: Any, z: torch.Tensor) -> torch.Tensor:
        return F.softplus(-of["d"](of["g"](z))).mean()

    builder = handheld.Capture(nets)
    builder.train(lambda b: d_loss(nets, *b), Adam(nets["d"].parameters(), 0.01), (real[0][0], noise[0]), "d")
    builder.train(lambda b: g_loss(nets, *b), Adam(nets["g"].parameters(), 0.01), (noise[0],), "g")
    step = builder.step()
    with step.plan(DEVICE).start() as trainer:
        for (x, _), z in zip(real, noise, strict=True):
            trainer.run("d", x, z)
            trainer.run("g", z)
    d, g = Adam(others["d"].parameters(), 0.01), Adam(others["g"].parameters(), 0.01)
    for (x, _), z in zip(real, noise, strict=True):
        d.zero_grad()
        d_loss(others, x, z).backward()
        d.step()
        g.zero_grad()
        g_loss(others, z).backward()
        g.step()
    state = step.state()
    for name, net in others.items():
        for key, value in net.state_dict().items():
            np.testing.assert_allclose(state[f"{name}.{key}"], value.numpy(), rtol=1e-4, atol=1e-5)


@idiom(
    "networks", "a target network or an average of weights (DQN, BYOL, EMA)", "works, as `Capture.copy(…, weight=…)`"
)
def target_network() -> None:
    nets = {"online": mlp(), "target": mlp(seed=5).requires_grad_(False)}
    online, target = (twin(net) for net in nets.values())
    data = batches(3)
    builder = handheld.Capture(nets)
    optimizer = SGD(nets["online"].parameters(), 0.1)
    builder.train(lambda b: F.cross_entropy(nets["online"](b[0]), b[1]), optimizer, data[0])
    builder.copy("average", [(nets["target"], nets["online"])], weight=0.25)
    with builder.step().plan(DEVICE).start() as trainer:
        for batch in data:
            trainer.step(*batch)
            trainer.run("average")
        state = trainer.state()

    def average() -> None:
        with torch.no_grad():
            for ours, theirs in zip(target.parameters(), online.parameters(), strict=True):
                ours.lerp_(theirs, 0.25)

    torch_loop(online, F.cross_entropy, SGD(online.parameters(), 0.1), data, after_update=average)
    for name, value in target.state_dict().items():
        np.testing.assert_allclose(state[f"target.{name}"], value.numpy(), rtol=2e-5, atol=2e-5)


@idiom("networks", "REINFORCE: `(-log_prob * reward).mean()` on actions taken outside")
def policy_gradient() -> None:
    torch.manual_seed(0)
    data = [(torch.randn(8, 8), torch.randint(3, (8,)), torch.randn(8)) for _ in range(3)]

    def loss(output: torch.Tensor, action: torch.Tensor, reward: torch.Tensor) -> torch.Tensor:
        log_prob: torch.Tensor = torch.distributions.Categorical(logits=output).log_prob(action)
        return (-log_prob * reward).mean()

    assert_trains_alike(mlp(), loss, data)

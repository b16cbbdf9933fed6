"""Optimizers without a rule: what can be followed is captured as it is, everything else is an error with a way out."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim

import handheld
from handheld.errors import CaptureError
from handheld.step import Step
from helpers.custom_optimizers import GroupCounter, Lion, NumberAdam, TensorAdamW

X, Y = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)), torch.zeros(5, 2)
Body = Callable[[Any, dict[str, Any], torch.Tensor, dict[str, Any]], None]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


def made_of(body: Body) -> Callable[..., optim.Optimizer]:
    """An optimizer that calls body(self, group, parameter, state) for each parameter."""

    class Own(optim.Optimizer):
        def __init__(self, params: Any, lr: float = 0.1) -> None:
            super().__init__(params, {"lr": lr})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        body(self, group, p, self.state[p])

    return Own


def captured(net: nn.Module, optimizer: optim.Optimizer) -> Step:
    return handheld.capture(net, F.mse_loss, optimizer, (X, Y), evaluate=False)


def assert_equal_runs(make: Callable[[Any], optim.Optimizer], steps: int = 5) -> None:
    ours, theirs = model(), model()
    step = captured(ours, make(ours.parameters()))
    with step.plan("reference:cpu").start() as trainer:
        for _ in range(steps):
            trainer.step(X, Y)
        state = trainer.state()
    optimizer = make(theirs.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        F.mse_loss(theirs(X), Y).backward()
        optimizer.step()
    for name, value in theirs.named_parameters():
        np.testing.assert_allclose(state[name], value.detach(), rtol=2e-5, atol=2e-6, err_msg=name)


# ── what is followed ─────────────────────────────────────────────────────────────────────────────


def squared_rate(_: Any, group: Any, p: Any, state: Any) -> None:
    p.sub_(p.grad, alpha=group["lr"] ** 2)


def new_data(_: Any, group: Any, p: Any, state: Any) -> None:
    p.data = p.data - group["lr"] * p.grad


def falling_rate(_: Any, group: Any, p: Any, state: Any) -> None:
    p.sub_(group["lr"] * p.grad)
    group["lr"] = group["lr"] * 0.9


def mean_of_parameters(_: Any, group: Any, p: Any, state: Any) -> None:
    p.sub_(group["lr"] * p.grad)
    state["mean"] = p.mean()  # A new tensor of another shape, made of the new parameter.
    p.sub_(0.01 * state["mean"])


def counted_from_one(_: Any, group: Any, p: Any, state: Any) -> None:
    if "steps" not in state:
        state["steps"] = 1
    else:
        state["steps"] += 1
    p.sub_(group["lr"] / (0.5 + state["steps"]) * p.grad)


def number_product(_: Any, group: Any, p: Any, state: Any) -> None:
    state["product"] = state.get("product", 1.0) * 0.8
    p.sub_(group["lr"] * (1 - state["product"]) * p.grad)


@pytest.mark.parametrize(
    "body", [squared_rate, new_data, falling_rate, mean_of_parameters, counted_from_one, number_product]
)
def test_it_is_captured_as_it_is(body: Body) -> None:
    assert_equal_runs(made_of(body))


def test_a_subclass_of_torch_optim_keeps_its_rule() -> None:
    class Mine(optim.Adam):
        pass

    class Stepping(optim.AdamW):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    assert_equal_runs(lambda p: Mine(p, lr=0.01))
    assert_equal_runs(lambda p: Stepping(p, lr=0.01))
    net = model()
    ops = {n.origin.torch_op for n in captured(net, Mine(net.parameters(), lr=0.01)).graphs["train"].nodes}
    assert "optim.mine" in ops


def test_a_rate_of_a_tensor() -> None:
    assert_equal_runs(lambda p: Lion(p, lr=torch.tensor(0.01)))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [Lion, TensorAdamW, NumberAdam, GroupCounter])
def test_the_users_objects_are_left_alone(kind: Callable[..., optim.Optimizer]) -> None:
    net = model()
    optimizer = kind(net.parameters(), lr=0.1)
    before, groups = [p.detach().clone() for p in net.parameters()], [dict(g) for g in optimizer.param_groups]
    state = torch.get_rng_state()
    captured(net, optimizer)
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    assert all(p.grad is None for p in net.parameters())
    assert not optimizer.state and optimizer.param_groups == groups
    assert torch.equal(torch.get_rng_state(), state)


def test_state_has_names_and_goes_through_a_step_file(tmp_path: Any) -> None:
    net = model()
    step = captured(net, TensorAdamW(net.parameters(), lr=0.01))
    assert {"optimizer.0.weight.m", "optimizer.0.weight.v", "optimizer.0.weight.step"} <= set(step.state())
    with step.plan("reference:cpu").start() as trainer:
        trainer.step(X, Y)
    loaded = handheld.load(step.save(tmp_path / "own.step"))
    with step.plan("reference:cpu").start() as first, loaded.plan("reference:cpu").start() as second:
        first.step(X, Y)
        second.step(X, Y)
        ours, theirs = first.state(), second.state()
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    assert ours["optimizer.0.weight.step"] == 2


def test_it_goes_on_from_the_state_it_has() -> None:
    net = model()
    optimizer = NumberAdam(net.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        F.mse_loss(net(X), Y).backward()
        optimizer.step()
    step = captured(net, optimizer)
    assert step.state()["optimizer.step"] == 3
    with step.plan("reference:cpu").start() as trainer:
        trainer.step(X, Y)
        got = trainer.state()["0.weight"]
    optimizer.zero_grad()
    F.mse_loss(net(X), Y).backward()
    optimizer.step()
    np.testing.assert_allclose(got, net[0].weight.detach(), rtol=1e-5, atol=1e-6)  # type: ignore[index]


def test_a_step_that_differs_from_the_first_can_be_captured_later() -> None:
    def body(_: Any, group: Any, p: Any, state: Any) -> None:
        if "mean" in state:
            state["mean"].lerp_(p.grad, 0.1)
        else:
            state["mean"] = p.grad.clone()
        p.sub_(group["lr"] * state["mean"])

    net = model()
    optimizer = made_of(body)(net.parameters())
    for kind in (optimizer, made_of(body)(net.parameters(), lr=1e-9)):
        with pytest.raises(CaptureError, match=r"first step differs .*Try: make one step in PyTorch before capture"):
            captured(net, kind)
    F.mse_loss(net(X), Y).backward()
    optimizer.step()
    step = captured(net, optimizer)
    with step.plan("reference:cpu").start() as trainer:
        trainer.step(X, Y)
        got = trainer.state()["0.weight"]
    optimizer.zero_grad()
    F.mse_loss(net(X), Y).backward()
    optimizer.step()
    np.testing.assert_allclose(got, net[0].weight.detach(), rtol=1e-5, atol=1e-6)  # type: ignore[index]


def test_half_precision_skips_a_bad_step() -> None:
    net = model()
    step = captured(net, Lion(net.parameters(), lr=0.01))
    with step.plan("opencl", precision="half").start() as trainer:
        trainer.step(X, Y)
        before = trainer.state()
        trainer.step(X, Y + 1e38)  # The gradient overflows.
        after = trainer.state()
    assert np.array_equal(before["0.weight"], after["0.weight"])
    assert np.array_equal(before["optimizer.0.weight.exp_avg"], after["optimizer.0.weight.exp_avg"])


# ── what is not ──────────────────────────────────────────────────────────────────────────────────


def compares_step(_: Any, group: Any, p: Any, state: Any) -> None:
    state["step"] = state.get("step", 0) + 1
    p.sub_((group["lr"] if state["step"] == 1 else 0.1) * p.grad)


def every_fifth(_: Any, group: Any, p: Any, state: Any) -> None:
    state["step"] = state.get("step", 0) + 1
    p.sub_((state["step"] % 5) * p.grad)


def compares_norm(_: Any, group: Any, p: Any, state: Any) -> None:
    if p.grad.norm() > 1:
        p.sub_(group["lr"] * p.grad)


def history(_: Any, group: Any, p: Any, state: Any) -> None:
    state.setdefault("history", []).append(p.grad.clone())


def counts_itself(self: Any, group: Any, p: Any, state: Any) -> None:
    self.count = getattr(self, "count", 0) + 1
    p.sub_(group["lr"] / self.count * p.grad)


def changes_itself(self: Any, group: Any, p: Any, state: Any) -> None:
    if not hasattr(self, "total"):
        self.total = torch.zeros(())
    self.total += 1


def numpy_number(_: Any, group: Any, p: Any, state: Any) -> None:
    p.sub_(float(np.sqrt(group["lr"])) * p.grad)


def tensor_of_rate(_: Any, group: Any, p: Any, state: Any) -> None:
    p.sub_(torch.tensor(group["lr"]) * p.grad)


def other_state(self: Any, group: Any, p: Any, state: Any) -> None:
    self.state["all"]["count"] = self.state["all"].get("count", 0) + 1


def decomposition(_: Any, group: Any, p: Any, state: Any) -> None:
    p.sub_(group["lr"] * torch.linalg.svdvals(p.grad.reshape(p.shape[0], -1)).sum())


def changes_text(_: Any, group: Any, p: Any, state: Any) -> None:
    group["betas"] = (0.5, 0.5)
    p.sub_(group["lr"] * p.grad)


def raises(_: Any, group: Any, p: Any, state: Any) -> None:
    raise KeyError("missing")


def half_state(_: Any, group: Any, p: Any, state: Any) -> None:
    state["mean"] = p.grad.bfloat16()


WRONG: dict[Body, str] = {
    compares_step: r"compares a number that changes .*test_own_optimizers\.py:\d+ .*Try: tensor ops",
    every_fifth: r"rounds a number that changes .*test_own_optimizers\.py:\d+ .*Try: tensor ops",
    compares_norm: r"decides by the value of a tensor \(.*test_own_optimizers\.py:\d+ .*Try: torch\.where",
    history: r"history of its state is a list\. Try: tensors and numbers",
    counts_itself: r"changes the attribute count, .*Try: keep it in self\.state\[p\]",
    changes_itself: r"changes the attribute total, .*Try: keep it in self\.state\[p\]",
    numpy_number: r"in a way that cannot be followed.*Try: tensor ops",
    tensor_of_rate: r"in a way that cannot be followed.*Try: tensor ops",
    other_state: r"keeps state for str 'all'.*Try: state per parameter",
    decomposition: r"has no lowering.*Try: compute it outside",
    changes_text: r"changes 'betas' of a parameter group, which is no number\. Try:",
    raises: r"raised KeyError: 'missing' \(.*test_own_optimizers\.py:\d+ .*Try:",
    half_state: r"mean of its state is bfloat16\. Try: dense float32 state",
}


@pytest.mark.parametrize("body", WRONG)
def test_what_cannot_be_followed_is_an_error(body: Body) -> None:
    net = model()
    before = [p.detach().clone() for p in net.parameters()]
    with pytest.raises(CaptureError, match=WRONG[body]):
        captured(net, made_of(body)(net.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))


def test_refused_optimizers_say_why() -> None:
    net = model()

    class NeedsClosure(optim.SGD):
        def step(self, closure: Any) -> Any:  # type: ignore[override]
            return closure()

    class WithoutRate(optim.Optimizer):
        def __init__(self, params: Any) -> None:
            super().__init__(params, {})

        def step(self, closure: Any = None) -> Any:
            pass

    for optimizer, match in (
        (optim.LBFGS(net.parameters()), r"computes the loss several times per step\. Try:"),
        (optim.SparseAdam(net.parameters()), r"needs sparse gradients.*Try: torch\.optim\.Adam"),
        (NeedsClosure(net.parameters(), 0.1), r"its step\(\) needs closure.*Try:"),
        (WithoutRate(net.parameters()), r"no number as learning rate 'lr'\. Try:"),
    ):
        with pytest.raises(CaptureError, match=match):
            captured(net, optimizer)


def test_hooks_that_do_not_run_are_reported() -> None:
    net, calls = model(), list[int]()
    for kind in (Lion, optim.SGD):
        optimizer = kind(net.parameters(), lr=0.1)
        optimizer.register_step_post_hook(lambda *_: calls.append(1))
        with pytest.warns(UserWarning, match=r"hooks of the optimizer's step\(\) do not run"):
            captured(net, optimizer)
    handle = net[0].weight.register_post_accumulate_grad_hook(lambda p: calls.append(1))  # type: ignore[index, union-attr]
    with pytest.warns(UserWarning, match="register_post_accumulate_grad_hook do not run"):
        captured(net, optim.SGD(net.parameters(), 0.1))
    handle.remove()
    assert not calls
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        captured(net, optim.SGD(net.parameters(), 0.1))

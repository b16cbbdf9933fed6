"""Optimizers as people write them: with tensors or Python numbers in their state, created in the first step."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch.optim import Optimizer


class Lion(Optimizer):
    """As published: sign of an interpolated momentum, decoupled weight decay through p.data."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                p.data.mul_(1 - group["lr"] * group["weight_decay"])
                grad, state = p.grad, self.state[p]
                if len(state) == 0:
                    state["exp_avg"] = torch.zeros_like(p)
                exp_avg, (beta1, beta2) = state["exp_avg"], group["betas"]
                update = exp_avg * beta1 + grad * (1 - beta1)
                p.add_(update.sign_(), alpha=-group["lr"])
                exp_avg.mul_(beta2).add_(grad, alpha=1 - beta2)


class Momentum(Optimizer):
    """SGD as in old PyTorch: the first gradient becomes the buffer."""

    def __init__(self, params: Iterable[Any], lr: float, momentum: float = 0.9, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                d_p = p.grad.data.add(p.data, alpha=group["weight_decay"])
                state = self.state[p]
                if "momentum_buffer" not in state:
                    buffer = state["momentum_buffer"] = torch.clone(d_p).detach()
                else:
                    buffer = state["momentum_buffer"]
                    buffer.mul_(group["momentum"]).add_(d_p)
                p.data.add_(buffer, alpha=-group["lr"])


class GroupCounter(Optimizer):
    """SGD whose rate falls with a step that the group holds, as in pytorch_optimizer."""

    def __init__(self, params: Iterable[Any], lr: float, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            if "step" in group:
                group["step"] += 1
            else:
                group["step"] = 1
            rate = group["lr"] / (1 + 0.1 * group["step"])
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(rate * (p.grad + group["weight_decay"] * p))


class PerParameter(Optimizer):
    """What the optimizers below share: `step` calls `update` for each parameter that has a gradient."""

    def __init__(self, params: Iterable[Any], lr: float, weight_decay: float = 0.0, **options: Any) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, **options})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.update(p, p.grad, self.state[p], group)

    def update(self, p: torch.Tensor, grad: torch.Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        raise NotImplementedError


class TensorAdamW(PerParameter):
    """AdamW with its step as a tensor, and new tensors instead of updates in place."""

    def __init__(self, params: Iterable[Any], lr: float, weight_decay: float = 0.01) -> None:
        super().__init__(params, lr, weight_decay, betas=(0.9, 0.99), eps=1e-8)

    def update(self, p: torch.Tensor, grad: torch.Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        if not state:
            state.update(step=torch.zeros(()), m=torch.zeros_like(p), v=torch.zeros_like(p))
        state["step"] += 1
        state["m"] = torch.lerp(state["m"], grad, 1 - beta1)
        state["v"] = state["v"] * beta2 + grad.square() * (1 - beta2)
        m = state["m"] / (1 - beta1 ** state["step"])
        v = state["v"] / (1 - beta2 ** state["step"])
        p.mul_(1 - group["lr"] * group["weight_decay"])
        p.sub_(group["lr"] * m / (v.sqrt() + group["eps"]))


class NumberAdam(PerParameter):
    """Adam with its step as a Python number, and bias corrections of the math module."""

    def __init__(self, params: Iterable[Any], lr: float, weight_decay: float = 0.0) -> None:
        super().__init__(params, lr, weight_decay, betas=(0.9, 0.999), eps=1e-8)

    def update(self, p: torch.Tensor, grad: torch.Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        if len(state) == 0:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(p)
            state["exp_avg_sq"] = torch.zeros_like(p)
        state["step"] += 1
        grad = grad.add(p, alpha=group["weight_decay"])
        state["exp_avg"].mul_(beta1).add_(grad, alpha=1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        correction = 1 - beta2 ** state["step"]
        size = group["lr"] * math.sqrt(correction) / (1 - beta1 ** state["step"])
        denominator = state["exp_avg_sq"].sqrt().add_(group["eps"] * math.sqrt(correction))
        p.addcdiv_(state["exp_avg"], denominator, value=-size)


class SignSGD(PerParameter):
    def update(self, p: torch.Tensor, grad: torch.Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        p.copy_(p - group["lr"] * (torch.sign(grad) + group["weight_decay"] * p))


class Lars(PerParameter):
    """A trust ratio of norms, chosen with torch.where, and momentum."""

    def __init__(self, params: Iterable[Any], lr: float, weight_decay: float = 0.0) -> None:
        super().__init__(params, lr, weight_decay, momentum=0.9, trust=0.02)

    def update(self, p: torch.Tensor, grad: torch.Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        ours, theirs = torch.norm(p), torch.norm(grad)
        ratio = group["trust"] * ours / (theirs + ours * group["weight_decay"] + 1e-8)
        ratio = torch.where((ours > 0) & (theirs > 0), ratio, torch.ones_like(ratio))
        buffer = state.setdefault("momentum_buffer", torch.zeros_like(p))
        buffer.mul_(group["momentum"]).add_((grad + group["weight_decay"] * p) * ratio, alpha=group["lr"])
        p.sub_(buffer)


class ItemLars(PerParameter):
    """The same trust ratio with numbers that are read from tensors."""

    def update(self, p: torch.Tensor, grad: torch.Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        ratio = p.norm().item() / (grad.norm().item() + 1e-8)
        p.add_(grad + group["weight_decay"] * p, alpha=-group["lr"] * 0.02 * ratio)


ALL: tuple[type[Optimizer], ...] = (Lion, Momentum, TensorAdamW, NumberAdam, GroupCounter, SignSGD, Lars, ItemLars)

"""The same training in PyTorch: in float32, and in float64 as the reference."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from family import Task
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


def unsettle(model: nn.Module) -> None:
    """Adds noise to parameters whose elements are all equal. Zero biases and unit scales put many values on the
    corner of an activation at zero, where every rounding error gives a different gradient."""
    with torch.no_grad():
        for p in model.parameters():
            if p.numel() and p.dtype.is_floating_point and bool((p == p.reshape(-1)[0]).all()):
                p.add_(torch.randn_like(p), alpha=0.1)


def still(task: Task, model: nn.Module) -> nn.Module:
    """The model with dropout off and batch statistics on, so that results can be compared."""
    model.train(task.mode == "train")
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.train()
        elif "Drop" in type(module).__name__:
            module.training = False  # Only this module: some wrap a whole layer.
    return model


class Narrow(TorchDispatchMode):
    """Notices float32 results where all should be float64, because a model casts."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.seen |= isinstance(result, torch.Tensor) and result.dtype == torch.float32
        return result


class Wide(TorchFunctionMode):
    """Gives float64 where a model asks for float32 by name, so that it computes everything in float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def wide(value: Any) -> Any:
            return torch.float64 if value is torch.float32 else value

        func = torch.Tensor.double if func is torch.Tensor.float else func
        return func(*map(wide, args), **{k: wide(v) for k, v in (kwargs or {}).items()})

    def __enter__(self) -> Any:
        torch.set_default_dtype(torch.float64)
        return super().__enter__()

    def __exit__(self, *problem: Any) -> None:
        torch.set_default_dtype(torch.float32)
        super().__exit__(*problem)


def make_optimizer(task: Task, model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=task.rate, momentum=0.9)


class Eager:
    """The training of one task in PyTorch."""

    wide: Any = nullcontext()

    def __init__(self, task: Task, model: nn.Module, dtype: torch.dtype) -> None:
        self.task, self.model = task, still(task, model.to(dtype))
        self.batch = {k: v.to(dtype) if v.dtype.is_floating_point else v for k, v in task.batch.items()}
        self.optimizer = make_optimizer(task, model)

    @staticmethod
    def exact(task: Task, model: nn.Module) -> Eager:
        """The training in float64, also for a model that asks for float32 by name."""
        eager = Eager(task, model, torch.float64)
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                task.loss(copy.deepcopy(eager.model), eager.batch)
        except RuntimeError:
            eager.wide = Wide()
        return eager

    def step(self) -> float:
        with self.wide:
            loss = self.task.loss(self.model, self.batch)
            self.optimizer.zero_grad()
            loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def _tensors(self) -> dict[str, torch.Tensor]:
        """Parameters, buffers and momenta under their names in a trainer's state."""
        tensors: dict[str, torch.Tensor] = {}
        for name, tensor in [*self.model.named_parameters(), *self.model.named_buffers()]:
            tensors[name] = tensor.detach()
            held = self.optimizer.state.get(tensor, {}).get("momentum_buffer")
            if held is not None:
                tensors[f"optimizer.{name}.momentum_buffer"] = held
        return tensors

    def state(self) -> dict[str, np.ndarray]:
        return {k: (v.double() if v.dtype.is_floating_point else v).numpy().copy() for k, v in self._tensors().items()}

    def load(self, state: dict[str, np.ndarray]) -> None:
        for name, tensor in self._tensors().items():
            tensor.copy_(torch.from_numpy(np.asarray(state[name])).reshape(tensor.shape))

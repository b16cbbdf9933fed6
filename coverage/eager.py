"""The same training in PyTorch: in float32, and in float64 as the measure."""

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
    """Noise on parameters whose elements are all equal. Zero biases and unit scales put means on
    zero, and with them the corners of activations: there every rounding is another gradient."""
    with torch.no_grad():
        for p in model.parameters():
            if p.numel() and p.dtype.is_floating_point and bool((p == p.reshape(-1)[0]).all()):
                p.add_(torch.randn_like(p), alpha=0.1)


def still(task: Task, model: nn.Module) -> nn.Module:
    """Dropout off, batch statistics on: what can be compared."""
    model.train(task.mode == "train")
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.train()
        elif "Drop" in type(module).__name__:
            module.training = False  # not what is inside: some wrap the whole layer
    return model


class Narrow(TorchDispatchMode):
    """Notices float32 where all should be float64: models that cast on their way."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.seen |= isinstance(made, torch.Tensor) and made.dtype == torch.float32
        return made


class Wide(TorchFunctionMode):
    """float64 where a model asks for float32 by name, and then mixes the two: what it computes
    without that, exactly."""

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
    """The same training in PyTorch itself."""

    wide: Any = nullcontext()

    def __init__(self, task: Task, model: nn.Module, dtype: torch.dtype) -> None:
        self.task, self.model = task, still(task, model.to(dtype))
        self.batch = {k: v.to(dtype) if v.dtype.is_floating_point else v for k, v in task.batch.items()}
        self.optimizer = make_optimizer(task, model)

    @staticmethod
    def exact(task: Task, model: nn.Module) -> Eager:
        """In float64, also where the model would not run in it by itself."""
        made = Eager(task, model, torch.float64)
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                task.loss(copy.deepcopy(made.model), made.batch)
        except RuntimeError:
            made.wide = Wide()
        return made

    def step(self) -> float:
        with self.wide:
            loss = self.task.loss(self.model, self.batch)
            self.optimizer.zero_grad()
            loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def _tensors(self) -> dict[str, torch.Tensor]:
        """Parameters, buffers and momenta under the names that a trainer's state has."""
        found: dict[str, torch.Tensor] = {}
        for name, tensor in [*self.model.named_parameters(), *self.model.named_buffers()]:
            found[name] = tensor.detach()
            held = self.optimizer.state.get(tensor, {}).get("momentum_buffer")
            if held is not None:
                found[f"optimizer.{name}.momentum_buffer"] = held
        return found

    def state(self) -> dict[str, np.ndarray]:
        return {k: (v.double() if v.dtype.is_floating_point else v).numpy().copy() for k, v in self._tensors().items()}

    def load(self, state: dict[str, np.ndarray]) -> None:
        for name, tensor in self._tensors().items():
            tensor.copy_(torch.from_numpy(np.asarray(state[name])).reshape(tensor.shape))

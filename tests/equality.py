"""The engine's measure: one step at a time, against PyTorch in float64 and in float32.

Each step starts from the reference's state, rounded to float32. `ours` and PyTorch's own float32
make one step from it; both are compared with PyTorch in float64. A value passes if our error is at
most four times PyTorch's own plus 1e-6 (relative norm). Random ops draw the same masks on all sides.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from handheld.graph.interpret import PHILOX_KEY, philox


def uniform(shape: tuple[int, ...], seed: int, step: int, key: int) -> np.ndarray:
    """The numbers that a `random` instruction draws."""
    index = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)
    zero = np.zeros_like(index)
    word = philox((index, zero + step, zero + key, zero), (zero + seed, zero + PHILOX_KEY))[0]
    return (word >> 8).astype(np.float64) * 2.0**-24


class SameMasks(TorchDispatchMode):
    """PyTorch's dropout with Handheld's random numbers."""

    def __init__(self, step: int, seed: int = 0) -> None:
        super().__init__()
        self.step, self.seed, self.key = step, seed, 0

    def draw(self, shape: Any) -> torch.Tensor:
        self.key += 1
        return torch.from_numpy(uniform(tuple(shape), self.seed, self.step, self.key))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten.bernoulli_.float:
            tensor, p = args[0], args[1] if len(args) > 1 else 0.5
            return tensor.copy_((self.draw(tensor.shape) >= 1 - p).to(tensor.dtype))
        if func is torch.ops.aten.native_dropout.default:
            x, p = args[0], args[1]
            mask = self.draw(x.shape) >= p
            return torch.where(mask, x * (1 / (1 - p)), 0), mask
        return func(*args, **kwargs)


def eager_step(model: Any, fn: Callable[[Any, Any], Any], optimizer: torch.optim.Optimizer, batch: Any, step: int) -> float:
    optimizer.zero_grad()
    with SameMasks(step):
        loss = fn(model, batch)
        loss.backward()
    optimizer.step()
    return float(loss)


def snapshot(model: Any, optimizer: torch.optim.Optimizer) -> dict[str, np.ndarray]:
    """State under Handheld's names, in the model's own precision."""
    state = {k: v.detach().numpy().copy() for k, v in model.named_parameters()}
    state |= {k: v.detach().numpy().copy() for k, v in model.named_buffers()}
    names = {id(p): n for n, p in model.named_parameters()}
    for p, fields in optimizer.state.items():
        for field, value in fields.items():
            if isinstance(value, torch.Tensor) and field != "step":
                state[f"optimizer.{names[id(p)]}.{field}"] = value.numpy().copy()
    return state


def restore(model: Any, optimizer: torch.optim.Optimizer, state: dict[str, np.ndarray]) -> None:
    with torch.no_grad():
        for k, v in [*model.named_parameters(), *model.named_buffers()]:
            v.copy_(torch.from_numpy(np.asarray(state[k])))
        names = {id(p): n for n, p in model.named_parameters()}
        for p, fields in optimizer.state.items():
            for field, value in fields.items():
                key = f"optimizer.{names[id(p)]}.{field}"
                if key in state:
                    value.copy_(torch.from_numpy(np.asarray(state[key])))


def relative(got: np.ndarray, want: np.ndarray) -> float:
    scale = float(np.linalg.norm(want)) or 1.0
    return float(np.linalg.norm(got.astype(np.float64) - want)) / scale


def compare(model: Any, fn: Callable[[Any, Any], Any], make_optimizer: Callable[[Any], torch.optim.Optimizer],
            trainer: Any, batches: list[Any]) -> list[tuple[str, float, float]]:
    """The worst entries over all steps: (what, our error, PyTorch's float32 error), worst first."""
    single, double = copy.deepcopy(model), copy.deepcopy(model).double()
    opt32, opt64 = make_optimizer(single), make_optimizer(double)
    rows: list[tuple[str, float, float]] = []
    for step, batch in enumerate(batches):
        wide = tuple(t.double() if t.is_floating_point() else t for t in batch)
        if step:
            start = {k: v.astype(np.float32) if v.dtype.kind == "f" else v
                     for k, v in snapshot(double, opt64).items()}
            restore(double, opt64, start)
            restore(single, opt32, start)
            trainer.load(start, strict=False)
        ours = float(trainer.step(*batch))
        theirs = eager_step(single, fn, opt32, batch, step)
        truth = eager_step(double, fn, opt64, wide, step)
        rows.append((f"step {step}: loss", abs(ours - truth) / abs(truth), abs(theirs - truth) / abs(truth)))
        got, fp32, fp64 = trainer.state(), snapshot(single, opt32), snapshot(double, opt64)
        rows += [(f"step {step}: {k}", relative(got[k], want), relative(fp32[k], want)) for k, want in fp64.items()]
    return sorted(rows, key=lambda r: -(r[1] / (4 * r[2] + 1e-6)))

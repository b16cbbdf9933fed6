"""Compares training steps with PyTorch in float64 and in float32, one step at a time.

Each step starts from the reference's state, rounded to float32. Handheld and PyTorch in float32 run one
step from it, and both are compared with PyTorch in float64. A value passes if its error is at most four
times PyTorch's own plus 1e-6 (relative norm). Random ops draw the same masks on all sides.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from handheld.graph.interpret import philox, random_key

Modules = dict[str, Any]
#: State of torch.optim that is one number per parameter, equal in a whole group. Handheld keeps it once per group.
SHARED = ("mu_product", "eta", "mu")


def uniform(shape: tuple[int, ...], seed: int, step: int, key: int) -> np.ndarray:
    """The numbers that a `random` instruction draws."""
    index = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)
    zero = np.zeros_like(index)
    word = philox((index, zero + step), random_key(zero + seed, key))[0]
    return (word >> 8).astype(np.float64) * 2.0**-24


class SameMasks(TorchDispatchMode):
    """PyTorch's dropout with Handheld's random numbers."""

    def __init__(self, step: int, seed: int = 0) -> None:
        super().__init__()
        self.step, self.seed = step, seed
        self.keys = torch.Generator().manual_seed(0)  # the recorder draws keys in the same way

    def draw(self, shape: Any) -> torch.Tensor:
        key = int(torch.randint(2**31 - 1, (), dtype=torch.int64, generator=self.keys))
        return torch.from_numpy(uniform(tuple(shape), self.seed, self.step, key))

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


@dataclass(frozen=True)
class Update:
    """One graph of a step, and how PyTorch computes it."""

    graph: str
    loss: Callable[[Modules, Any], torch.Tensor]
    optimizer: Callable[[Modules], torch.optim.Optimizer]
    name: str = "optimizer"  # the prefix of the optimizer's slots


class Eager:
    """The same training in PyTorch, in one precision."""

    def __init__(self, modules: Modules, updates: Sequence[Update], dtype: torch.dtype) -> None:
        self.modules = {k: copy.deepcopy(m).to(dtype) for k, m in modules.items()}
        self.optimizers = {u.graph: u.optimizer(self.modules) for u in updates}
        self.updates = {u.graph: u for u in updates}
        self.dtype = dtype
        self.steps = 0

    def step(self, graph: str, batch: Any) -> float:
        batch = tuple(t.to(self.dtype) if t.is_floating_point() else t for t in batch)
        optimizer = self.optimizers[graph]
        optimizer.zero_grad()
        with SameMasks(self.steps):
            loss = self.updates[graph].loss(self.modules, batch)
            loss.backward()
        optimizer.step()
        self.steps += 1
        return loss.item()

    def _tensors(self) -> dict[str, torch.Tensor]:
        """Everything a step may change, under Handheld's names."""
        found: dict[str, torch.Tensor] = {}
        for prefix, module in self.modules.items():
            dot = f"{prefix}." if prefix else ""
            found |= {dot + k: v for k, v in [*module.named_parameters(), *module.named_buffers()]}
        names = {id(p): k for k, p in found.items()}
        for graph, optimizer in self.optimizers.items():
            groups = {id(p): n for n, group in enumerate(optimizer.param_groups) for p in group["params"]}
            for p, fields in optimizer.state.items():
                for field, value in fields.items():
                    if isinstance(value, torch.Tensor) and field != "step":
                        owner = groups[id(p)] if field in SHARED else names[id(p)]
                        key = f"{field}.{owner}" if field in SHARED else f"{owner}.{field}"
                        found[f"{self.updates[graph].name}.{key}"] = value
        return found

    def state(self) -> dict[str, np.ndarray]:
        return {k: v.detach().numpy().copy() for k, v in self._tensors().items()}

    def load(self, state: dict[str, np.ndarray]) -> None:
        """Loads values. (Shared numbers are equal in all parameters already, and have float32 values in PyTorch.)"""
        with torch.no_grad():
            for k, v in self._tensors().items():
                if k in state:
                    v.copy_(torch.from_numpy(np.asarray(state[k])))


def relative(got: np.ndarray, want: np.ndarray) -> float:
    scale = float(np.linalg.norm(want)) or 1.0
    return float(np.linalg.norm(got.astype(np.float64) - want)) / scale


Row = tuple[str, float, float]


@dataclass
class Comparison:
    """`rows`: (name, our error, PyTorch's float32 error) of every value, worst first. `kinks`: rows over the
    limit because the step lies on a kink, where float64 PyTorch itself changes as much when its start changes
    by less than float32 can resolve."""

    rows: list[Row]
    kinks: list[Row]

    @property
    def over(self) -> list[Row]:
        return [r for r in self.rows if excess(r) > 1]


def compare_updates(modules: Modules, updates: Sequence[Update], trainer: Any, batches: Sequence[Any]) -> Comparison:
    """Compares every value of every step. `batches` holds one batch per update for each step."""
    single, double = Eager(modules, updates, torch.float32), Eager(modules, updates, torch.float64)
    found = Comparison([], [])
    first = True
    for step, group in enumerate(batches):
        for update, batch in zip(updates, group, strict=True):
            if not first:
                start = {k: v.astype(np.float32) if v.dtype.kind == "f" else v for k, v in double.state().items()}
                double.load(start)
                single.load(start)
                trainer.load(start, strict=True)
            first = False
            before = copy.deepcopy(double)
            ours = float(trainer.run(update.graph, *batch))
            theirs, truth = single.step(update.graph, batch), double.step(update.graph, batch)
            got, fp32, want = trainer.state(), single.state(), double.state()
            rows = [("loss", abs(ours - truth) / abs(truth), abs(theirs - truth) / abs(truth))]
            rows += [(k, relative(got[k], v), relative(fp32[k], v)) for k, v in want.items()]
            kinks = _kinks(
                [r for r in rows if excess(r) > 1], before, update.graph, batch, {**want, "loss": np.array(truth)}
            )
            where = f"step {step} {update.graph}"
            for row in rows:
                into = found.kinks if row in kinks else found.rows
                into.append((f"{where}: {row[0]}", row[1], row[2]))
    found.rows.sort(key=lambda r: -excess(r))
    return found


def _kinks(over: list[Row], before: Eager, graph: str, batch: Any, want: dict[str, np.ndarray]) -> list[Row]:
    """Rows whose float64 value changes by at least a quarter of our error when each number of the start changes
    by at most 2**-21 of itself."""
    left = list(over)
    for seed in range(24):
        if not left:
            break
        rng = np.random.default_rng(seed)
        moved = copy.deepcopy(before)
        moved.load(
            {
                k: v * (1 + rng.uniform(-1, 1, v.shape) * 2.0**-21) if v.dtype.kind == "f" else v
                for k, v in moved.state().items()
            }
        )
        loss = moved.step(graph, batch)
        there = {**moved.state(), "loss": np.array(loss)}
        left = [r for r in left if relative(there[r[0]], want[r[0]]) < r[1] / 4]
    return [r for r in over if r not in left]


def excess(row: Row) -> float:
    """The error divided by its limit: at most 1 if the value passes."""
    value = row[1] / (4 * row[2] + 1e-6)
    return math.inf if math.isnan(value) else value


def compare(
    model: Any,
    fn: Callable[[Any, Any], Any],
    make_optimizer: Callable[[Any], torch.optim.Optimizer],
    trainer: Any,
    batches: Sequence[Any],
) -> list[Row]:
    """`compare_updates` for one model and one update; returns the rows, worst first."""
    update = Update("train", lambda m, b: fn(m[""], b), lambda m: make_optimizer(m[""]))
    return compare_updates({"": model}, [update], trainer, [(b,) for b in batches]).rows

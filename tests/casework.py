"""Runs op cases: captured, on a device, against PyTorch in float64."""

from __future__ import annotations

import copy
import warnings
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from case import Case
from handheld.capture.capture import Capture
from handheld.step import Step


class Held(nn.Module):
    """A case as a model: its floating-point tensors are parameters, so that they get gradients."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        torch.manual_seed(zlib.crc32(case.name.encode()))
        fn, tensors = case.make()
        self.fn = fn if isinstance(fn, nn.Module) else None
        self.call: Callable[..., Any] = fn
        self.anchor = nn.Parameter(torch.ones(()))  # so that there is always something to train
        self.places: list[tuple[bool, int]] = []  # (is a parameter, its number)
        self.given = nn.ParameterList()
        self.batch: list[torch.Tensor] = []
        for tensor in tensors:
            if tensor.dtype.is_floating_point:
                self.places.append((True, len(self.given)))
                self.given.append(nn.Parameter(tensor))
            else:
                self.places.append((False, len(self.batch)))
                self.batch.append(tensor)

    def forward(self, batch: Sequence[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The loss and all outputs."""
        tensors = [self.given[n] if trained else batch[n] for trained, n in self.places]
        call = self.fn if self.fn is not None else self.call
        outputs = [o for o in pytree.tree_leaves(call(*tensors)) if isinstance(o, torch.Tensor)]
        loss = self.anchor * 1.0
        for number, output in enumerate(outputs):
            if output.dtype.is_floating_point:
                weights = np.random.default_rng(number).standard_normal(tuple(output.shape)).astype(np.float32)
                loss = loss + (output * torch.from_numpy(np.asarray(weights)).to(output.dtype)).sum()
        return loss, [o * 1 if o.dtype.is_floating_point else o for o in outputs]


@dataclass
class Results:
    """Everything a case gives: loss, outputs, gradients, buffers."""

    values: dict[str, np.ndarray]


def reference(held: Held, dtype: torch.dtype = torch.float64) -> Results:
    """PyTorch itself, from the same float32 values."""
    twin = copy.deepcopy(held).to(dtype)
    batch = [b.clone() for b in held.batch]
    loss, outputs = twin(batch)
    loss.backward()
    found = {"loss": loss.detach().numpy()}
    found |= {f"output {i}": o.detach().numpy() for i, o in enumerate(outputs)}
    found |= {f"gradient {n}": p.grad.numpy() for n, p in twin.named_parameters() if p.grad is not None}
    found |= {f"buffer {n}": b.numpy() for n, b in twin.named_buffers()}
    return Results({k: np.asarray(v, np.float64) if v.dtype.kind == "f" else v for k, v in found.items()})


def captured(held: Held, name: str = "case") -> Step:
    """The case as a step; the momentum after one step is the gradient."""
    optimizer = torch.optim.SGD(held.parameters(), lr=0.1, momentum=0.9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Capture(held).train(lambda b: held(b), optimizer, list(held.batch)).step(name=name)


def run(step: Step, held: Held, device: str, **options: Any) -> Results:
    """One step on a device."""
    with step.plan(device).start(**options) as trainer:
        loss = trainer.step(*held.batch)
        session: Any = trainer.session
        outputs = trainer.outputs()
        found: dict[str, np.ndarray] = {"loss": np.asarray(float(loss))}
        if options.get("float64"):
            found["loss"] = session.read_tensor("train", trainer.plan.graphs["train"].graph.outputs[0][1].tensor)

        def slot(name: str) -> np.ndarray:
            return np.asarray(session._slots[name].numpy()) if options.get("float64") else session.read_slot(name)

        number = {f"output.{i}": i for i in range(len(outputs))}
        found |= {f"output {number[k]}": v for k, v in outputs.items()}
        for name in step.slots:
            if name.startswith("optimizer.") and name.endswith(".momentum_buffer"):
                found["gradient " + name.removeprefix("optimizer.").removesuffix(".momentum_buffer")] = slot(name)
            elif step.slots[name].role == "buffer":
                found[f"buffer {name}"] = slot(name)
        return Results({k: np.asarray(v, np.float64) if v.dtype.kind == "f" else v for k, v in found.items()})


def differences(got: Results, want: Results, limit: float) -> list[str]:
    """What differs by more than `limit` in relative norm; what is missing."""
    found = []
    for name, value in want.values.items():
        if name not in got.values:
            if not name.startswith("gradient ") or np.any(value):
                found.append(f"{name} is missing")
            continue
        other = got.values[name].reshape(value.shape)
        if value.dtype.kind != "f":
            if not np.array_equal(other.astype(value.dtype), value):
                found.append(f"{name} differs in {int((other.astype(value.dtype) != value).sum())} of {value.size} places")
            continue
        same = (np.isnan(value) & np.isnan(other)) | (value == other)
        gap = np.where(same, 0.0, other - value)
        scale = max(float(np.linalg.norm(value[np.isfinite(value)])), 0.1)
        error = float(np.linalg.norm(gap)) / scale
        if not error <= limit:
            found.append(f"{name} {error:.1e}")
    return found

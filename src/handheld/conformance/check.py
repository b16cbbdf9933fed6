"""Captures op cases, runs them on a device and compares them with PyTorch in float64."""

from __future__ import annotations

import copy
import warnings
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from handheld.conformance.case import Case
from handheld.frontend.capture import Capture
from handheld.plan.plan import Plan
from handheld.run.batch import check_batch
from handheld.step import Step

Results = dict[str, np.ndarray]


class Held(nn.Module):
    """A case as a model whose floating-point tensors are parameters, so that they get gradients."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        torch.manual_seed(zlib.crc32(case.name.encode()))
        fn, tensors = case.make()
        self.fn = fn if isinstance(fn, nn.Module) else None
        self.call: Callable[..., Any] = fn
        self.places: list[tuple[bool, int]] = []  # (whether it is a parameter, its index)
        self.given = nn.ParameterList()
        self.batch: list[torch.Tensor] = []
        for tensor in tensors:
            if tensor.dtype.is_floating_point:
                self.places.append((True, len(self.given)))
                self.given.append(nn.Parameter(tensor))
            else:
                self.places.append((False, len(self.batch)))
                self.batch.append(tensor)

    def forward(self, batch: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """All outputs, and the gradients of their sum weighted with fixed random numbers."""
        tensors = [self.given[n] if trained else batch[n] for trained, n in self.places]
        call = self.fn if self.fn is not None else self.call
        outputs = [o for o in pytree.tree_leaves(call(*tensors)) if isinstance(o, torch.Tensor)]
        found = {f"output {n}": o for n, o in enumerate(outputs)}
        trained = [(n, o) for n, o in enumerate(outputs) if o.requires_grad]
        parameters = dict(self.named_parameters())
        if trained and parameters:
            weights = [_weights(n, tuple(o.shape)).to(o.dtype) for n, o in trained]
            gradients = torch.autograd.grad(
                [o for _, o in trained], list(parameters.values()), weights, allow_unused=True
            )
            found |= {f"gradient {k}": g for k, g in zip(parameters, gradients, strict=True) if g is not None}
        return found


def _weights(number: int, shape: tuple[int, ...]) -> torch.Tensor:
    values = np.random.default_rng(number).standard_normal(shape).astype(np.float32)
    return torch.from_numpy(np.asarray(values))


def reference(held: Held, dtype: torch.dtype = torch.float64) -> Results:
    """The results of PyTorch in `dtype`, from the same float32 values."""
    twin = copy.deepcopy(held).to(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {k: v.detach().numpy() for k, v in twin([b.clone() for b in held.batch]).items()}
    found |= {f"buffer {n}": b.numpy() for n, b in twin.named_buffers()}
    return {k: _wide(v) for k, v in found.items()}


def captured(held: Held, name: str = "case") -> Step:
    """The case as a step with one graph, without a loss or an optimizer."""
    builder = Capture(held)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        builder._record("case", lambda b: (None, held(b)), list(held.batch), None)
        return builder.step(name=name)


def run(step: Step, held: Held, device: str, **options: Any) -> Results:
    """The results of one run on a device."""
    return run_plan(step.plan(device), held, **options)


def run_plan(plan: Plan, held: Held, **options: Any) -> Results:
    with plan.start(**options) as trainer:
        trainer.run("case", *held.batch)
        found = {k.removeprefix("output."): v for k, v in trainer.outputs().items()}
        session: Any = trainer.session
        for name, slot in plan.step.slots.items():
            if slot.role == "buffer":
                exact = options.get("float64")
                found[f"buffer {name}"] = session.exact_slot(name) if exact else session.read_slot(name)
        return {k: _wide(np.asarray(v)) for k, v in found.items()}


def run_by_kernel(plan: Plan, held: Held, tell: Callable[[str], None]) -> None:
    """Runs a case node by node, and tells before each one which kernels come, so that a crash has a name."""
    planned = plan.graphs["case"]
    with plan.start() as trainer:
        for given, array in zip(planned.graph.inputs, check_batch(planned.graph, tuple(held.batch)), strict=True):
            trainer.session.upload("case", given.tensor, array)
        trainer.session.finish()
        for i, (node, lowered) in enumerate(zip(planned.graph.nodes, planned.lowered, strict=True)):
            names = dict.fromkeys(launch.kernel for launch in lowered.launches)
            tell(f"in {', '.join(names) or 'no kernel'} of op {i} ({node.op})")
            trainer.session.run_node("case", i)
            trainer.session.finish()


def _wide(value: np.ndarray) -> np.ndarray:
    return value.astype(np.float64) if value.dtype.kind == "f" else value


def differences(got: Results, want: Results, limit: float) -> list[str]:
    """The results that differ by more than `limit` in relative norm, and those that are missing."""
    found = []
    for name, value in want.items():
        if name not in got:
            if not name.startswith("gradient ") or np.any(value):  # PyTorch writes zeros where no gradient flows.
                found.append(f"{name} is missing")
            continue
        other = got[name].reshape(value.shape)
        if value.dtype.kind != "f":
            wrong = int((other.astype(value.dtype) != value).sum())
            found += [f"{name} differs in {wrong} of {value.size} places"] if wrong else []
            continue
        same = (np.isnan(value) & np.isnan(other)) | (value == other)
        with np.errstate(invalid="ignore"):  # Infinity minus infinity.
            gap = np.where(same, 0.0, other - value)
        scale = max(float(np.linalg.norm(value[np.isfinite(value)])), 0.1)
        error = float(np.linalg.norm(gap)) / scale
        if not error <= limit:
            found.append(f"{name} {error:.1e}")
    return found


def limit_of(case: Case, exact: bool) -> float:
    """The largest allowed difference of a result from float64."""
    if exact:
        return 1e-6 if case.rounded else 1e-12
    return 1e-4 if case.long else 1e-5

"""A closure to record: how it is made from a model and a loss, and what its batch and its results are in the graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils import _pytree as pytree

from handheld.errors import CaptureError
from handheld.frontend import arguments
from handheld.frontend.layout import permute, physical_order
from handheld.frontend.packed import is_packed, padded_output
from handheld.frontend.reading import user_line
from handheld.frontend.record import Recorder
from handheld.frontend.state import ir_dtype
from handheld.graph.graph import GraphInput, View, contiguous_strides

#: What is recorded: `fn(batch)` returns `loss` or `(loss, outputs)`. The batch and the outputs are nests of tensors.
Closure = Callable[[Any], Any]


def bind_inputs(
    rec: Recorder, leaves: Sequence[object], batch: object, mode: FakeTensorMode | None
) -> tuple[list[object], list[GraphInput]]:
    """Makes every tensor of the batch an input of the graph. Other leaves (numbers, None) stay unchanged."""
    given, inputs = [], []
    for name, leaf in zip(leaf_names(batch), leaves, strict=True):
        if isinstance(leaf, np.ndarray):
            leaf = torch.from_numpy(leaf)
        if not isinstance(leaf, torch.Tensor):
            given.append(leaf)
            continue
        tensor = rec.new_tensor(tuple(leaf.shape), ir_dtype(leaf.dtype), "input", name)
        if mode is None:
            stand_in = leaf.detach().clone(memory_format=torch.contiguous_format)
        else:
            stand_in = torch.empty(leaf.shape, dtype=leaf.dtype)
        rec.bind_tensor(stand_in, tensor)
        if leaf.requires_grad:
            stand_in.requires_grad_()
        given.append(stand_in)
        inputs.append(GraphInput(name, tensor, torch_name(leaf)))
    return given, inputs


def leaf_names(batch: object) -> list[str]:
    return [
        ".".join(str(getattr(k, "key", getattr(k, "idx", k))) for k in path) or "batch"
        for path, _ in pytree.tree_flatten_with_path(batch)[0]
    ]


def torch_name(tensor: torch.Tensor) -> str:
    half = tensor.dtype in (torch.float16, torch.bfloat16)
    return "float32" if half else str(tensor.dtype).removeprefix("torch.")


def loss_and_outputs(result: object, training: bool) -> tuple[Any, object]:
    loss, outputs = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
    if not training and loss is None:
        return None, outputs
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise CaptureError(
            "the closure must return a scalar loss or (loss, outputs); it returned "
            + (
                f"a tensor of shape {tuple(loss.shape)}. Try: .mean() or .sum()"
                if isinstance(loss, torch.Tensor)
                else f"{type(loss).__name__}. Try: return the tensor itself, without .item()"
            )
        )
    return loss, outputs


def named_outputs(outputs: object) -> list[tuple[str, torch.Tensor]]:
    named = []
    outputs = pytree.tree_map(padded_output, outputs, is_leaf=is_packed)
    for path, leaf in pytree.tree_flatten_with_path(outputs)[0]:
        if isinstance(leaf, torch.Tensor):
            key = ".".join(str(getattr(k, "key", getattr(k, "idx", k))) for k in path)
            named.append((f"output.{key}" if key else "output", leaf))
    return named


def read_output(rec: Recorder, tensor: torch.Tensor) -> View:
    """Returns an output as a separate dense tensor, so that reading it takes one download."""
    view = rec.read(tensor)
    order = physical_order(tensor)
    whole = permute(view, order)
    role = rec.tensors[view.tensor].role
    if view.is_contiguous and whole.size == rec.tensors[view.tensor].size and role in ("activation", "gradient"):
        return View(view.tensor, view.shape, contiguous_strides(view.shape), 0)
    return rec.map(view.shape, [view], lambda a: a)


def closure(model: nn.Module, loss: Callable[..., torch.Tensor] | None, inputs: int) -> Closure:
    """Returns `fn(batch) -> (loss, outputs)`. Without `loss`, the model returns it itself or has it as `.loss`."""

    def fn(batch: Any) -> Any:
        if isinstance(batch, Mapping):
            output = model(**batch)
        elif isinstance(batch, torch.Tensor):
            output = model(batch)
        else:
            output = model(*batch[:inputs])
        if loss is None:
            value = output if isinstance(output, torch.Tensor) else getattr(output, "loss", None)
            return value, {k: v for k, v in output.items() if k != "loss"} if isinstance(output, Mapping) else None
        targets = () if isinstance(batch, (Mapping, torch.Tensor)) else tuple(batch[inputs:])
        arguments.check_call(loss, targets, inputs)
        return loss(output, *targets), output

    return fn


@contextmanager
def no_own_update() -> Iterator[None]:
    """While active, `loss.backward()` and `optimizer.step()` are errors: Handheld adds both to the step itself."""

    def refuse(what: str) -> Callable[..., None]:
        def call(*_: object, **__: object) -> None:
            raise CaptureError(
                f"the code to capture calls {what}, which Handheld does itself ({user_line()}). "
                "Try: return the loss, and leave out zero_grad(), backward() and step()"
            )

        return call

    backward = torch.Tensor.backward
    hook = register_optimizer_step_pre_hook(refuse("optimizer.step()"))
    torch.Tensor.backward = refuse("loss.backward()")  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.Tensor.backward = backward  # type: ignore[method-assign]
        hook.remove()

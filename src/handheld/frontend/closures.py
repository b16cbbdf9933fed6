"""A closure to record: how it is made from a model and a loss, and what its batch and its results are in the graph."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass
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
    if isinstance(outputs, Mapping):  # PyTorch's trees take the content of a dict, but not that of a subclass.
        outputs = dict(outputs)
    elif is_dataclass(outputs) and not isinstance(outputs, type):
        outputs = dict(vars(outputs))
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
    """Returns `fn(batch) -> (loss, outputs)`. Without `loss`, the model returns it itself or has it as `.loss`.

    A dictionary goes to the model as keyword arguments. With `loss`, those that the model does not take go to the loss.
    """

    def fn(batch: Any) -> Any:
        if isinstance(batch, Mapping):
            mine = batch if loss is None else keywords(model, batch)
            targets = tuple(value for key, value in batch.items() if key not in mine)
            output = model(**mine)
        elif isinstance(batch, torch.Tensor):
            targets, output = (), model(batch)
        else:
            targets, output = tuple(batch[inputs:]), model(*batch[:inputs])
        if loss is None:
            return _own_loss(output)
        arguments.check_call(loss, targets, inputs)
        return loss(output, *targets), output

    return fn


def keywords(model: nn.Module, batch: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of the batch that the model takes as keyword arguments."""
    parameters = inspect.signature(model.forward).parameters
    anything = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    return {key: value for key, value in batch.items() if anything or key in parameters}


def plain_batch(model: nn.Module | None, batch: object) -> object:
    """The batch with a plain dict instead of any other mapping, such as a BatchEncoding of Hugging Face.

    Data sets give a dictionary as a tuple of one, which is unwrapped, unless the model takes the dictionary itself.
    """
    if isinstance(batch, Mapping):
        return dict(batch)
    if model is not None and isinstance(batch, (tuple, list)) and len(batch) == 1 and isinstance(batch[0], Mapping):
        named = dict(batch[0])
        return named if _takes_names(model, named) else batch
    return batch


def _takes_names(model: nn.Module, batch: Mapping[str, Any]) -> bool:
    signature = inspect.signature(model.forward)
    if not signature.parameters.keys().isdisjoint(batch):
        return True
    try:
        signature.bind(**batch)
    except TypeError:
        return False
    return True


def _own_loss(output: Any) -> tuple[Any, Any]:
    """The loss and the other outputs of a model that computes its loss itself."""
    if isinstance(output, torch.Tensor):
        return output, None
    if isinstance(output, Mapping):
        return output.get("loss"), {key: value for key, value in output.items() if key != "loss"}
    if isinstance(output, tuple) and output and not hasattr(output, "loss"):
        return output[0], output[1:]
    return getattr(output, "loss", None), None


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

"""Checks the arguments of `capture`, so that wrong types and values are reported before anything is recorded."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from numbers import Real

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree

from handheld.errors import CaptureError

#: What `capture` may do if Python code reads values that change from step to step.
FROZEN = ("warn", "error", "accept")


def check_model(model: object, modules: object) -> None:
    if isinstance(model, nn.Module):
        return
    if isinstance(model, type) or not callable(model):
        raise CaptureError(
            f"the model is {_what(model)}; it should be an nn.Module, or a function fn(batch) that returns "
            "a loss, together with modules="
        )
    if modules is None:
        raise CaptureError(
            "to capture a closure, capture needs modules=, the nn.Module (or a dictionary of them) that it uses"
        )


def check_modules(modules: object) -> None:
    for module in modules.values() if isinstance(modules, Mapping) else [modules]:
        if not isinstance(module, nn.Module):
            raise CaptureError(f"modules should be an nn.Module or a dictionary of them, not {_what(module)}")
        if any(isinstance(part, torch.jit.ScriptModule) for part in module.modules()):
            raise CaptureError(
                "TorchScript modules cannot be captured. Try: the nn.Module that the TorchScript module was made from"
            )


def check_loss(loss: object) -> None:
    if loss is not None and (isinstance(loss, type) or not callable(loss)):
        raise CaptureError(
            f"the loss is {_what(loss)}; it should be a function loss(output, *targets) that returns a scalar, "
            "such as torch.nn.functional.cross_entropy or torch.nn.MSELoss()"
        )


def check_optimizer(optimizer: object) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise CaptureError(
            f"the optimizer is {_what(optimizer)}; it should be an optimizer from torch.optim, "
            "such as torch.optim.SGD(model.parameters(), lr=0.1)"
        )


def check_seed(seed: object) -> None:
    if type(seed) is not int or not -(2**31) <= seed < 2**31:
        raise CaptureError(f"seed={seed!r:.40} should be an integer that fits 32 bits")


def check_clipping(clip_norm: object, clip_value: object, accumulate: object) -> None:
    for name, value in (("clip_norm", clip_norm), ("clip_value", clip_value)):
        if value is not None and not (isinstance(value, Real) and 0 < float(value) < math.inf):
            raise CaptureError(f"{name}={value!r:.40} should be a number above 0, or None")
    if type(accumulate) is not int or accumulate < 1:
        raise CaptureError(f"accumulate={accumulate!r:.40} should be a whole number of batches, at least 1")


def check_batch(batch: object, inputs: object) -> None:
    leaves = pytree.tree_leaves(batch, is_leaf=lambda value: isinstance(value, PackedSequence))
    if any(isinstance(leaf, PackedSequence) for leaf in leaves):
        raise CaptureError(
            "the example batch has a PackedSequence, whose size changes from batch to batch, and the shapes of a step "
            "are fixed. Try: padded sequences and a tensor of lengths in the batch, and "
            "pack_padded_sequence(x, lengths, enforce_sorted=False) in the model"
        )
    tensors = [t for t in leaves if hasattr(t, "shape")]
    if not tensors:
        raise CaptureError(
            f"capture needs an example batch of tensors, which gives it their shapes and types; it got {_what(batch)}"
        )
    empty = [list(t.shape) for t in tensors if t.ndim and not t.shape[0]]
    if empty:
        raise CaptureError(
            f"the example batch has a tensor of shape {empty[0]}, without a sample. "
            "Try: a batch of the size that you want to train with"
        )
    most = len(batch) if isinstance(batch, (tuple, list)) else 1
    if type(inputs) is not int or not 1 <= inputs <= most:
        raise CaptureError(
            f"inputs={inputs!r:.40} should be the number of tensors of the batch that go to the model, from 1 to {most}"
        )


def check_frozen(frozen: object) -> None:
    if frozen not in FROZEN:
        raise CaptureError(f"frozen={frozen!r:.40} should be one of {', '.join(FROZEN)}")


def check_call(loss: Callable[..., torch.Tensor], targets: tuple[object, ...], inputs: int) -> None:
    """Raises CaptureError if the loss does not take as many targets as the batch has, before PyTorch fails."""
    call = loss.forward if isinstance(loss, nn.Module) else loss
    try:
        inspect.signature(call).bind(None, *targets)
    except TypeError as error:
        raise CaptureError(
            f"the loss gets the output of the model and {len(targets)} targets, which does not match its arguments: "
            f"{error}. The first {inputs} tensors of the batch go to the model, the rest to the loss. "
            "Try: a batch with all targets (data with labels), or another value of inputs="
        ) from None
    except ValueError:
        pass  # A function written in C does not describe its arguments.


def _what(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__} itself (write {value.__name__}(...))"
    return "None" if value is None else f"a {type(value).__name__}"


def check_weight(weight: object) -> None:
    """The share by which `Capture.copy` moves the target towards the source."""
    if not isinstance(weight, (int, float)) or not 0 < weight <= 1:
        raise CaptureError(f"weight={weight!r:.40} must be a number above 0 and at most 1. Try: 1 to copy")


def check_copy(key: str, target: torch.Tensor, source: torch.Tensor | None) -> None:
    """`Capture.copy` needs a tensor of the same shape in the source for each one of the target."""
    if source is None or source.shape != target.shape:
        has = "does not have it" if source is None else f"has {tuple(source.shape)}"
        raise CaptureError(
            f"copy: {key} of the target has shape {tuple(target.shape)}, and the source {has}. "
            "Try: two modules of the same class and sizes"
        )

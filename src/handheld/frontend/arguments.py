"""What `capture` is called with: wrong types and values are told before anything is recorded."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from handheld.errors import CaptureError

#: what may follow if Python code reads values that change from step to step
FROZEN = ("warn", "error", "accept")


def check_model(model: Any, modules: Any) -> None:
    if isinstance(model, nn.Module):
        return
    if isinstance(model, type) or not callable(model):
        raise CaptureError(
            f"the model is {_what(model)}; it should be an nn.Module, or a function "
            "fn(batch) of a loss together with modules="
        )
    if modules is None:
        raise CaptureError("capture of a closure needs modules=: the nn.Module (or a dict of them) it uses")


def check_modules(modules: Any) -> None:
    found = modules.values() if isinstance(modules, Mapping) else [modules]
    wrong = [module for module in found if not isinstance(module, nn.Module)]
    if wrong:
        raise CaptureError(f"modules should be an nn.Module or a dictionary of them; {_what(wrong[0])} is none")
    if any(isinstance(part, torch.jit.ScriptModule) for m in found for part in m.modules()):
        raise CaptureError("TorchScript modules cannot be captured. Try: the nn.Module that it was made from")


def check_loss(loss: Any) -> None:
    if loss is not None and (isinstance(loss, type) or not callable(loss)):
        raise CaptureError(
            f"the loss is {_what(loss)}; it should be a function "
            "loss(output, *targets) of a scalar, such as "
            "torch.nn.functional.cross_entropy or torch.nn.MSELoss()"
        )


def check_optimizer(optimizer: Any) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise CaptureError(
            f"the optimizer is {_what(optimizer)}; it should be one of torch.optim, "
            "such as torch.optim.SGD(model.parameters(), lr=0.1)"
        )


def check_seed(seed: Any) -> None:
    if type(seed) is not int or not -(2**31) <= seed < 2**31:
        raise CaptureError(f"seed={seed!r:.40} should be a whole number of 32 bits")


def check_clipping(clip_norm: Any, clip_value: Any, accumulate: Any) -> None:
    for name, value in (("clip_norm", clip_norm), ("clip_value", clip_value)):
        if value is not None and not (isinstance(value, Real) and 0 < float(value) < math.inf):
            raise CaptureError(f"{name}={value!r:.40} should be a number above 0, or None")
    if type(accumulate) is not int or accumulate < 1:
        raise CaptureError(f"accumulate={accumulate!r:.40} should be a whole number of batches from 1 on")


def check_batch(batch: Any, inputs: Any) -> None:
    tensors = [t for t in pytree.tree_leaves(batch) if hasattr(t, "shape")]
    if not tensors:
        raise CaptureError(
            f"capture needs an example batch of tensors, for their shapes and types; it got {_what(batch)}"
        )
    empty = [list(t.shape) for t in tensors if t.ndim and not t.shape[0]]
    if empty:
        raise CaptureError(
            f"the example batch has a tensor of shape {empty[0]}, without a sample. "
            "Try: a batch of the size to train with"
        )
    most = len(batch) if isinstance(batch, (tuple, list)) else 1
    if type(inputs) is not int or not 1 <= inputs <= most:
        raise CaptureError(
            f"inputs={inputs!r:.40} should say how many tensors of the batch go to the model: from 1 to {most}"
        )


def check_frozen(frozen: Any) -> None:
    if frozen not in FROZEN:
        raise CaptureError(f"frozen={frozen!r:.40} is none of {', '.join(FROZEN)}")


def check_call(loss: Callable[..., torch.Tensor], targets: tuple[Any, ...], inputs: int) -> None:
    """A loss that takes another number of arguments than the batch has is not PyTorch's error."""
    call = loss.forward if isinstance(loss, nn.Module) else loss
    try:
        inspect.signature(call).bind(None, *targets)
    except TypeError as error:
        raise CaptureError(
            f"the loss gets the model's output and {len(targets)} targets, which does not fit: "
            f"{error}. The first {inputs} of the batch go to the model (inputs=), "
            "the rest to the loss"
        ) from None
    except ValueError:
        pass  # a function of C tells nothing about its arguments


def _what(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__} itself (write {value.__name__}(...))"
    return "None" if value is None else f"a {type(value).__name__}"

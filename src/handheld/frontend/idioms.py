"""Parts of a PyTorch training loop that a captured step replaces: mixed precision and gradients.

Code of a training loop often contains them. Here each is reported, with what Handheld does instead.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.amp.autocast_mode import autocast
from torch.amp.grad_scaler import GradScaler

from handheld.errors import CaptureError

_IN_FLOAT32 = "Try: step.plan(device, precision='half'), or --precision half, to store values in 16 bits"


@contextmanager
def in_float32() -> Iterator[None]:
    """While active, torch.autocast has no effect and GradScaler.scale returns the loss itself. Both are reported."""
    enter, scale = autocast.__enter__, GradScaler.scale

    def entered(self: Any) -> Any:
        wanted, self._enabled = self._enabled, False
        if wanted:
            warnings.warn(
                f"torch.autocast has no effect here: values are computed in float32. {_IN_FLOAT32}", stacklevel=2
            )
        try:
            return enter(self)  # type: ignore[no-untyped-call]
        finally:
            self._enabled = wanted

    def scaled(self: GradScaler, outputs: Any) -> Any:
        if self.is_enabled():
            warnings.warn(
                f"GradScaler.scale has no effect here: gradients are computed in float32. {_IN_FLOAT32}. "
                "It scales the loss by itself",
                stacklevel=2,
            )
        return outputs

    active = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    with ExitStack() as stack:
        for kind in active:
            warnings.warn(
                f"torch.autocast around capture has no effect: values are computed in float32. {_IN_FLOAT32}",
                stacklevel=2,
            )
            stack.enter_context(torch.autocast(kind, enabled=False))
        autocast.__enter__, GradScaler.scale = entered, scaled  # type: ignore[method-assign]
        stack.callback(setattr, autocast, "__enter__", enter)
        stack.callback(setattr, GradScaler, "scale", scale)
        yield


@contextmanager
def fresh_gradients(parameters: Iterable[torch.Tensor]) -> Iterator[None]:
    """While active, no parameter has a gradient of earlier code. Their gradients are put back at the end."""
    kept = [(p, p.grad) for p in parameters]
    for p, _ in kept:
        p.grad = None
    try:
        yield
    finally:
        for p, grad in kept:
            p.grad = grad


def gradients(loss: torch.Tensor, parameters: list[torch.Tensor], seed: torch.Tensor) -> list[torch.Tensor | None]:
    """Returns the gradient of each parameter, or None where none reaches it."""
    computed = torch.autograd.grad(loss, parameters, seed, allow_unused=True)
    # Functions that run their own backward pass (reversible layers) leave gradients in p.grad.
    return [
        p.grad if g is None else g if p.grad is None else g + p.grad for p, g in zip(parameters, computed, strict=True)
    ]


def check_trainable(loss: torch.Tensor, parameters: list[torch.Tensor]) -> None:
    """Raises CaptureError if there is nothing to train: no parameters, or a loss without a gradient."""
    if not parameters:
        raise CaptureError(
            "the optimizer has no parameter with requires_grad=True, so there is nothing to train. "
            "Try: parameter.requires_grad_(True) for the parameters to train"
        )
    if not torch.is_grad_enabled():
        raise CaptureError(
            "capture was called under torch.no_grad() or torch.inference_mode(), so the loss has no gradient. "
            "Try: call capture outside of it"
        )
    if not loss.requires_grad:
        raise CaptureError(
            "the loss does not depend on any parameter of the optimizer: it has no gradient. "
            "Try: remove torch.no_grad(), detach() and .data between the parameters and the loss"
        )

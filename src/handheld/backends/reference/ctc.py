"""Connectionist temporal classification on PyTorch tensors, with PyTorch's own kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

T = torch.Tensor


def _losses(attrs: Mapping[str, Any], logp: T, targets: T, inputs: T, labels: T) -> tuple[T, T, T, list[Any]]:
    """Returns the losses, PyTorch's alphas, where a label is no class, and the arguments that PyTorch takes."""
    steps, classes, most = logp.shape[0], logp.shape[2], targets.shape[1]
    lengths = labels.clamp(0, most)
    used = torch.arange(most, device=targets.device) < lengths.unsqueeze(1)
    bad = (used & ((targets < 0) | (targets >= classes))).any(1)
    args = [
        logp,
        targets.long().clamp(0, classes - 1),
        inputs.clamp(0, steps).tolist(),
        lengths.tolist(),
        attrs["blank"],
    ]
    loss, alpha = torch.ops.aten._ctc_loss(*args)
    return loss, alpha, bad, args


def ctc(attrs: Mapping[str, Any], *inputs: T) -> tuple[T]:
    loss, _, bad, _ = _losses(attrs, *inputs)
    return (loss.masked_fill(bad, torch.nan),)


def ctc_grad(attrs: Mapping[str, Any], d: T, *inputs: T) -> tuple[T]:
    loss, alpha, bad, (logp, targets, steps, labels, blank) = _losses(attrs, *inputs)
    zero = bool(attrs["zero_infinity"])
    grad = torch.ops.aten._ctc_loss_backward(d, logp, targets, steps, labels, loss, alpha, blank, zero)
    inside = torch.arange(logp.shape[0], device=logp.device).unsqueeze(1) < inputs[2].unsqueeze(0)
    lost = bad | (loss.isinf() & (not zero))
    return (torch.where(inside.unsqueeze(2), grad.masked_fill(lost.view(1, -1, 1), torch.nan), 0.0),)

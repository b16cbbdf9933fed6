"""The memory layout of PyTorch tensors, and views that follow it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from handheld.errors import CaptureError
from handheld.graph.graph import View


def is_dense(tensor: torch.Tensor) -> bool:
    """Says whether a tensor fills its memory without gaps or overlaps, in any order of dimensions."""
    if tensor.is_contiguous():
        return True
    reach = 1
    for stride, size in sorted((tensor.stride(d), n) for d, n in enumerate(tensor.shape) if n != 1):
        if stride != reach:
            return tensor.numel() == 0
        reach *= size
    return True


def physical_order(tensor: torch.Tensor) -> list[int]:
    """Returns the dimensions in the order of memory, outermost first. The tensor must be dense in some order."""
    if tensor.is_contiguous():
        return list(range(tensor.dim()))
    strides = tensor.stride()
    return sorted(range(tensor.dim()), key=lambda d: (-strides[d] if tensor.shape[d] != 1 else 0, d))


def permute(view: View, order: Sequence[int]) -> View:
    """Returns the view with its dimensions in another order."""
    return View(view.tensor, tuple(view.shape[d] for d in order), tuple(view.strides[d] for d in order), view.offset)


def expand(view: View, shape: tuple[int, ...]) -> View:
    """Broadcasts a view to `shape` with strides of zero."""
    if view.shape == shape:
        return view
    lead = len(shape) - len(view.shape)
    strides = [0] * lead
    for n, s, target in zip(view.shape, view.strides, shape[lead:], strict=True):
        if n not in (target, 1):
            raise CaptureError(f"cannot broadcast {view.shape} to {shape}")
        strides.append(s if n == target else 0)
    return View(view.tensor, shape, tuple(strides), view.offset)

"""Replaces some PyTorch functions during a capture by ones that can be recorded.

The replacements of grid_sampler and embedding_bag are built from simpler functions, which autograd differentiates
instead of using special gradient kernels. Attention and the CTC loss become one custom op each (attention.py, ctc.py).
Reentrant checkpoints become non-reentrant ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
import torch.utils.checkpoint as checkpoints

from handheld.frontend import attention, ctc

T = torch.Tensor


def _grid_sampler(original: Callable[..., T]) -> Callable[..., T]:
    def grid_sampler(x: T, grid: T, mode: int, padding: int, corners: bool) -> T:
        if x.dim() != 4:
            return original(x, grid, mode, padding, corners)
        from torch._decomp.decompositions import _grid_sampler_2d

        return _grid_sampler_2d(x, grid, mode, padding, bool(corners))

    return grid_sampler


def _embedding_bag(original: Callable[..., T]) -> Callable[..., T]:
    def embedding_bag(
        input: T,
        weight: T,
        offsets: T | None = None,
        max_norm: float | None = None,
        norm_type: float = 2,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        per_sample_weights: T | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
    ) -> T:
        if max_norm is not None:
            return original(
                input,
                weight,
                offsets,
                max_norm,
                norm_type,
                scale_grad_by_freq,
                mode,
                sparse,
                per_sample_weights,
                include_last_offset,
                padding_idx,
            )
        rows = F.embedding(
            input, weight, None if padding_idx is None else padding_idx % weight.shape[0], None, 2.0, scale_grad_by_freq
        )
        there = (
            torch.ones_like(input, dtype=torch.bool) if padding_idx is None else input != padding_idx % weight.shape[0]
        )
        if per_sample_weights is not None:
            rows = rows * per_sample_weights.unsqueeze(-1)
        if input.dim() == 1:
            assert offsets is not None
            starts = offsets[:-1] if include_last_offset else offsets
            bag = (starts.unsqueeze(0) <= torch.arange(input.shape[0]).unsqueeze(1)).sum(1) - 1
            in_bag = (bag.unsqueeze(0) == torch.arange(starts.shape[0]).unsqueeze(1)) & there
            if mode != "max":
                total = torch.zeros(starts.shape[0], rows.shape[1], dtype=rows.dtype)
                total = total.index_add(0, bag, torch.where(there.unsqueeze(1), rows, 0.0))
                return total / in_bag.sum(1, keepdim=True).clamp(min=1) if mode == "mean" else total
            rows, there = rows.unsqueeze(0), in_bag
        kept = there.unsqueeze(-1)
        if mode == "max":
            best = torch.where(kept, rows, -torch.inf).amax(1)
            return torch.where(there.any(1, keepdim=True), best, 0.0)
        total = torch.where(kept, rows, 0.0).sum(1)
        return total / kept.sum(1).clamp(min=1) if mode == "mean" else total

    return embedding_bag


def _checkpoint(original: Callable[..., T]) -> Callable[..., T]:
    """Uses non-reentrant checkpoints. Reentrant ones run their own backward pass, which hides their parameters."""

    def apply(function: Callable[..., Any], preserve: bool, *args: object) -> Any:
        return checkpoints.checkpoint(function, *args, use_reentrant=False, preserve_rng_state=preserve)

    return apply


#: Where the function lives, its name, and the function that makes its replacement.
_REPLACED: tuple[tuple[Any, str, Callable[[Callable[..., T]], Callable[..., T]]], ...] = (
    (torch, "grid_sampler", _grid_sampler),
    (torch, "grid_sampler_2d", _grid_sampler),
    (F, "embedding_bag", _embedding_bag),
    (F, "scaled_dot_product_attention", attention.whole),
    (torch, "ctc_loss", ctc.whole),
    (checkpoints.CheckpointFunction, "apply", _checkpoint),
)


@contextmanager
def replaced_functions() -> Iterator[None]:
    """While active, these functions are replaced."""
    originals = [(place, name, vars(place).get(name)) for place, name, _ in _REPLACED]
    for place, name, make in _REPLACED:
        setattr(place, name, make(getattr(place, name)))
    try:
        yield
    finally:
        for place, name, original in originals:
            if original is None:
                delattr(place, name)
            else:
                setattr(place, name, original)

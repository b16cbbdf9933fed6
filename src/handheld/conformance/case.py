"""The definition of an op case, and helpers to write one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Made = tuple[Callable[..., Any], list[torch.Tensor]]


@dataclass(frozen=True)
class Case:
    """An op case. `make` returns a function or module and its tensors; it is called with a fixed seed."""

    name: str
    make: Callable[[], Made]
    #: for reductions so long that float32 reaches only 1e-4
    long: bool = False
    #: for constants that are float32 in the graph, such as interpolation weights: not exact in float64
    rounded: bool = False


def collect(*groups: Iterable[Case]) -> dict[str, Case]:
    found: dict[str, Case] = {}
    for group in groups:
        for case in group:
            assert case.name not in found, f"two cases are called {case.name!r}"
            found[case.name] = case
    return found


def of(name: str, fn: Callable[..., Any], *tensors: Callable[[], torch.Tensor], **flags: bool) -> Case:
    """A case of a function; its tensors are created when the case runs."""
    return Case(name, lambda: (fn, [make() for make in tensors]), **flags)


def module(name: str, make: Callable[[], nn.Module], *tensors: Callable[[], torch.Tensor], **flags: bool) -> Case:
    """A case of a module; its tensors are created when the case runs."""
    return Case(name, lambda: (make(), [t() for t in tensors]), **flags)


def normal(*shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(shape)


def positive(*shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.rand(shape) + 0.3


def inside(*shape: int) -> Callable[[], torch.Tensor]:
    """Numbers within (-0.9, 0.9)."""
    return lambda: torch.rand(shape) * 1.8 - 0.9


def ints(high: int, *shape: int, low: int = 0) -> Callable[[], torch.Tensor]:
    return lambda: torch.randint(low, high, shape)


def mask(*shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.rand(shape) > 0.4


def cl(*shape: int) -> Callable[[], torch.Tensor]:
    """With channels last in memory."""
    return lambda: torch.randn(shape).to(memory_format=torch.channels_last)

"""What each PyTorch op means, said once: a table from op name to the function that lowers it.

A lowering gets the recorder, the op's result (whose shape, type and layout it must fill) and the
op's arguments. Ops that are not in the table but have a decomposition in PyTorch are taken apart
and their parts looked up here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

#: ops that compute nothing
IGNORED = frozenset(
    {
        "prim.device.default",
        "prim.layout.default",
        "aten.sym_size.int",
        "aten.sym_stride.int",
        "aten.sym_numel.default",
        "aten.is_contiguous.default",
        "profiler._record_function_enter_new.default",
        "profiler._record_function_exit._RecordFunction",
    }
)

_OUTSIDE = "Matrix decompositions are not supported: compute it outside the step"
_CTC = "Compute the CTC loss outside the step, or use cross entropy over frames"

#: what to do instead, for ops that will not get a lowering
ADVICE = {
    "aten._ctc_loss.default": _CTC,
    "aten._ctc_loss.Tensor": _CTC,
    "aten._pack_padded_sequence.default": "Give the recurrence padded sequences, and mask the loss",
    "aten._linalg_svd.default": _OUTSIDE,
    "aten._linalg_eigh.default": _OUTSIDE,
    "aten.linalg_qr.default": _OUTSIDE,
}

Lowering = Callable[..., Any]
LOWERINGS: dict[str, Lowering] = {}


def lowering(*names: str) -> Callable[[Lowering], Lowering]:
    """Registers a function for `aten.<name>` (or a full name with a dot before it)."""

    def register(function: Lowering) -> Lowering:
        for name in names:
            full = name if name.startswith(("handheld.", "prims.", "aten.")) else f"aten.{name}"
            assert full not in LOWERINGS, full
            LOWERINGS[full] = function
        return function

    return register


#: ops that are taken apart into other PyTorch ops, where PyTorch has no such recipe or a bad one
DECOMPOSED: dict[str, Callable[..., Any]] = {}


def decomposed(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a function of PyTorch ops that computes what `aten.<name>` does."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            full = name if name.startswith(("prims.", "aten.")) else f"aten.{name}"
            assert full not in DECOMPOSED and full not in LOWERINGS, full
            DECOMPOSED[full] = function
        return function

    return register


#: results of ops whose own shape function refuses what their kernel takes
SHAPES: dict[str, Callable[..., Any]] = {}


def shape_of(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a function that makes an empty result for `aten.<name>`."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        SHAPES[f"aten.{name}"] = function
        return function

    return register


@cache
def functional_twin(func: Any) -> Any:
    """The overload that computes what an in-place or out= op writes."""
    schema = func._schema
    space, _, name = schema.name.partition("::")
    wanted = [(a.name, str(a.type)) for a in schema.arguments if not a.is_out]
    for base in (name.removesuffix("_"), f"{name}functional"):
        packet = getattr(getattr(torch.ops, space), base, None)
        for overload in packet.overloads() if packet is not None else ():
            twin = getattr(packet, overload)
            given = [(a.name, str(a.type)) for a in twin._schema.arguments]
            if not twin._schema.is_mutable and given == wanted:
                return twin
    return None


@cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """PyTorch's own table: how it takes an op apart."""
    from torch._decomp import decomposition_table

    return dict(decomposition_table)

"""The tables that say how each PyTorch op is recorded.

`LOWERINGS` maps the name of an op to the function that expresses it as nodes of the graph. A lowering gets the
recorder, the result of the op (it must assign a value of that shape, type and layout) and the arguments of the
op. Other ops are decomposed into simpler PyTorch ops: by `DECOMPOSED`, or by PyTorch's own decompositions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

#: Ops that compute nothing.
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

_OUTSIDE = "Matrix decompositions are not supported. Try: compute it outside the step"
_CTC = "Try: torch.nn.functional.ctc_loss or nn.CTCLoss, which are recorded"

#: What to do instead, for ops that will not get a lowering.
ADVICE = {
    "aten._ctc_loss.default": _CTC,
    "aten._ctc_loss.Tensor": _CTC,
    "aten._linalg_svd.default": _OUTSIDE,
    "aten._linalg_eigh.default": _OUTSIDE,
    "aten.linalg_qr.default": _OUTSIDE,
}

#: A function that takes the arguments of a PyTorch op. They differ from op to op.
Lowering = Callable[..., Any]
LOWERINGS: dict[str, Lowering] = {}


def lowering(*names: str) -> Callable[[Lowering], Lowering]:
    """Registers a lowering for `aten.<name>`, or for a full name that starts with aten, prims or handheld."""

    def register(function: Lowering) -> Lowering:
        for name in names:
            full = name if name.startswith(("handheld.", "prims.", "aten.")) else f"aten.{name}"
            assert full not in LOWERINGS, full
            LOWERINGS[full] = function
        return function

    return register


#: Decompositions into other PyTorch ops, where PyTorch has none or an unsuitable one.
DECOMPOSED: dict[str, Lowering] = {}


def decomposed(*names: str) -> Callable[[Lowering], Lowering]:
    """Registers a function that computes `aten.<name>` with other PyTorch ops."""

    def register(function: Lowering) -> Lowering:
        for name in names:
            full = name if name.startswith(("prims.", "aten.")) else f"aten.{name}"
            assert full not in DECOMPOSED and full not in LOWERINGS, full
            DECOMPOSED[full] = function
        return function

    return register


#: Shape functions for ops whose own shape function rejects arguments that the kernel accepts.
SHAPES: dict[str, Lowering] = {}


def shape_of(name: str) -> Callable[[Lowering], Lowering]:
    """Registers a function that returns an empty result of `aten.<name>`."""

    def register(function: Lowering) -> Lowering:
        SHAPES[f"aten.{name}"] = function
        return function

    return register


@cache
def functional_twin(func: Any) -> Any:
    """Returns the functional overload that computes what an in-place or out= op writes, or None."""
    schema = func._schema
    space, _, name = schema.name.partition("::")
    expected = [(a.name, str(a.type)) for a in schema.arguments if not a.is_out]
    for base in (name.removesuffix("_"), f"{name}functional"):
        packet = getattr(getattr(torch.ops, space), base, None)
        for overload in packet.overloads() if packet is not None else ():
            twin = getattr(packet, overload)
            given = [(a.name, str(a.type)) for a in twin._schema.arguments]
            if not twin._schema.is_mutable and given == expected:
                return twin
    return None


@cache
def decompositions() -> dict[Any, Lowering]:
    """Returns PyTorch's own table of decompositions."""
    from torch._decomp import decomposition_table

    return dict(decomposition_table)

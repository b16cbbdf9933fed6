"""Lowerings of ops that create tensors: constants, ranges, identity matrices, triangles."""

from __future__ import annotations

from typing import Any

import torch

from handheld.frontend.pointwise import elementwise, fit
from handheld.frontend.record import Recorder
from handheld.frontend.registry import lowering
from handheld.frontend.state import ir_dtype
from handheld.frontend.values import Val, iota


@lowering("fill.Scalar", "fill.Tensor")
def fill(rec: Recorder, out: torch.Tensor, x: torch.Tensor, value: torch.Tensor | float) -> None:
    elementwise(rec, out, [value], lambda a: a, ir_dtype(out.dtype))


@lowering("full.default", "full_like.default", "new_full.default", "scalar_tensor.default")
def full(rec: Recorder, out: torch.Tensor, *args: Any, **options: Any) -> None:
    value = args[-1] if len(args) > 1 else options.get("fill_value", args[0])
    elementwise(rec, out, [value], lambda a: a, ir_dtype(out.dtype))


@lowering(
    "zeros.default",
    "zeros_like.default",
    "new_zeros.default",
    "zero.default",
    "empty.memory_format",
    "empty_like.default",
    "new_empty.default",
    "empty_strided.default",
    "new_empty_strided.default",
    "empty_permuted.default",
)
def zeros(rec: Recorder, out: torch.Tensor, *args: object, **options: object) -> None:
    elementwise(rec, out, [0], lambda a: a, ir_dtype(out.dtype))


@lowering("ones.default", "ones_like.default", "new_ones.default")
def ones(rec: Recorder, out: torch.Tensor, *args: object, **options: object) -> None:
    elementwise(rec, out, [1], lambda a: a, ir_dtype(out.dtype))


@lowering("arange.default", "arange.start", "arange.start_step")
def arange(rec: Recorder, out: torch.Tensor, *args: float, **options: object) -> None:
    start = args[0] if len(args) > 1 else 0
    step = args[2] if len(args) > 2 else 1
    kind = ir_dtype(out.dtype)
    view = rec.map(tuple(out.shape), [], lambda b: iota(b, 0).to(kind) * fit(step, kind) + fit(start, kind))
    rec.bind(out, view)


@lowering("eye.default", "eye.m")
def eye(rec: Recorder, out: torch.Tensor, *args: object, **options: object) -> None:
    kind = ir_dtype(out.dtype)
    rec.bind(out, rec.map(tuple(out.shape), [], lambda b: iota(b, 0).eq(iota(b, 1)).to(kind)))


@lowering("tril.default", "triu.default")
def triangle(rec: Recorder, out: torch.Tensor, x: torch.Tensor, diagonal: int = 0) -> None:
    kind, rank, lower = ir_dtype(out.dtype), x.dim(), rec.torch_op == "aten.tril.default"

    def build(a: Val) -> Val:
        row, col = iota(a.builder, rank - 2), iota(a.builder, rank - 1)
        keep = col.le(row + diagonal) if lower else col.ge(row + diagonal)
        return keep.where(a, fit(0, kind))

    rec.bind(out, rec.map(tuple(out.shape), [rec.read(x)], build))

"""Lowerings of cumulative ops, sorts and top-k."""

from __future__ import annotations

import math
from typing import Any

import torch

from handheld.frontend.aten import Results
from handheld.frontend.record import Recorder
from handheld.frontend.registry import lowering
from handheld.frontend.state import ir_dtype
from handheld.frontend.values import iota
from handheld.graph.dtypes import BOOL, I32
from handheld.graph.graph import View, contiguous_strides


@lowering("cumsum.default", "cumprod.default")
def scan(rec: Recorder, out: torch.Tensor, x: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> None:
    kind, mode = ir_dtype(out.dtype), "add" if "cumsum" in rec.torch_op else "mul"
    view = rec.read(x)
    if x.dim() == 0:
        rec.bind(out, rec.map((), [view], lambda a: a.to(kind)))
        return
    dim = dim % x.dim()
    shape = tuple(x.shape)
    dense = rec.map(shape, [view], lambda a: a.to(kind)) if rec.dtype_of(view) != kind else rec.contiguous(view)
    flat_shape = (math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :]))
    outputs = rec.emit(
        "scan",
        [View(dense.tensor, flat_shape, contiguous_strides(flat_shape), 0)],
        [(shape, kind)],
        {"mode": mode, "reverse": False},
    )
    rec.bind(out, rec.dense(outputs[0]))


@lowering("cummax.default", "cummin.default")
def running_extreme(rec: Recorder, out: Results, x: torch.Tensor, dim: int) -> None:
    """One scan computes the values. A second scan computes the positions, from the places of new extremes."""
    view, kind = rec.read(x), ir_dtype(x.dtype)
    if x.dim() == 0:
        rec.bind(out[0], rec.map((), [view], lambda a: a))
        rec.bind(out[1], rec.map((), [view], lambda a: a.const(0, I32)))
        return
    dim, shape = dim % x.dim(), tuple(x.shape)
    flat_shape = (math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :]))
    mode = "max" if "cummax" in rec.torch_op else "min"

    def along(view: View, op: str, dtype: str) -> View:
        flat = View(rec.contiguous(view).tensor, flat_shape, contiguous_strides(flat_shape), 0)
        return rec.dense(rec.emit("scan", [flat], [(shape, dtype)], {"mode": op, "reverse": False})[0])

    best = along(view if kind != BOOL else rec.map(shape, [view], lambda a: a.to(I32)), mode, kind)
    position = rec.map(shape, [view, best], lambda a, b: a.eq(b).where(iota(a.builder, dim), 0))
    rec.bind(out[0], best)
    rec.bind(out[1], along(position, "max", I32))


def _sorted(rec: Recorder, x: torch.Tensor, dim: int, descending: bool) -> tuple[View, View]:
    """Sorts along `dim`. Returns values and positions as views in the shape of x."""
    view, rank = rec.read(x), x.dim()
    dim = dim % max(rank, 1)
    order = [d for d in range(rank) if d != dim] + ([dim] if rank else [])
    moved = View(view.tensor, tuple(view.shape[d] for d in order), tuple(view.strides[d] for d in order), view.offset)
    dense = rec.contiguous(moved)
    length = moved.shape[-1] if rank else 1
    rows = moved.size // max(length, 1)
    outputs = rec.emit(
        "sort",
        [View(dense.tensor, (rows, length), (length, 1), 0)],
        [(moved.shape, rec.dtype_of(view)), (moved.shape, I32)],
        {"descending": descending},
    )
    strides = contiguous_strides(moved.shape)
    back = tuple(strides[order.index(d)] for d in range(rank))
    return View(outputs[0], tuple(x.shape), back, 0), View(outputs[1], tuple(x.shape), back, 0)


@lowering("sort.default", "sort.stable")
def sort(rec: Recorder, out: Results, x: torch.Tensor, *args: Any, **options: Any) -> None:
    stable_overload = rec.torch_op.endswith("stable")
    names = ["stable", "dim", "descending"] if stable_overload else ["dim", "descending"]
    given = dict(zip(names, args, strict=False)) | options
    values, index = _sorted(rec, x, given.get("dim", -1), bool(given.get("descending", False)))
    rec.bind(out[0], values)
    rec.bind(out[1], index)


@lowering("topk.default")
def topk(
    rec: Recorder, out: Results, x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, is_sorted: bool = True
) -> None:
    values, index = _sorted(rec, x, dim, largest)
    for target, view in zip(out, (values, index), strict=True):
        rec.bind(target, View(view.tensor, tuple(target.shape), view.strides, 0))

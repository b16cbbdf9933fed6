"""Lowerings of concatenation, padding and flips: maps whose loads have guards or negative strides."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from handheld.frontend.record import Recorder
from handheld.frontend.registry import lowering
from handheld.frontend.state import ir_dtype
from handheld.frontend.values import Val, iota
from handheld.graph.dtypes import F32
from handheld.graph.graph import Attr, View, contiguous_strides
from handheld.graph.program import Builder, Guard, Store


def raw_map(rec: Recorder, shape: tuple[int, ...], views: Sequence[View], program: Callable[[Builder], Val]) -> View:
    """Adds a map whose program contains its own load instructions."""
    builder = Builder()
    value = program(builder)
    attrs: dict[str, Attr] = {"shape": shape, "axes": (), "program": builder.program, "stores": (Store(value.index),)}
    return rec.dense(rec.emit("map", views, [(shape, value.dtype)], attrs)[0])


@lowering("cat.default")
def cat(rec: Recorder, out: torch.Tensor, tensors: Sequence[torch.Tensor], dim: int = 0) -> None:
    parts = [t for t in tensors if t.numel() or t.dim() == out.dim()]
    parts = [t for t in parts if t.shape[dim % out.dim()] > 0] or parts[:1]
    dim, shape, kind = dim % out.dim(), tuple(out.shape), ir_dtype(out.dtype)
    while len(parts) > 12:  # A kernel takes a limited number of pointers.
        joined = _cat(rec, [rec.read(t) if isinstance(t, torch.Tensor) else t for t in parts[:12]], dim, kind)
        parts = [joined, *parts[12:]]  # type: ignore[list-item]
    view = _cat(rec, [rec.read(t) if isinstance(t, torch.Tensor) else t for t in parts], dim, kind)
    rec.bind(out, View(view.tensor, shape, contiguous_strides(shape), 0))


def _cat(rec: Recorder, views: Sequence[View], dim: int, kind: str) -> View:
    starts = [0]
    for v in views:
        starts.append(starts[-1] + v.shape[dim])
    shape = list(views[0].shape)
    shape[dim] = starts[-1]
    grown = [
        View(v.tensor, tuple(shape), v.strides, v.offset - start * v.strides[dim])
        for v, start in zip(views, starts[:-1], strict=True)
    ]

    def program(b: Builder) -> Val:
        value: Val | None = None
        for k in reversed(range(len(views))):
            guards = (Guard(dim, starts[k], starts[k + 1]),) if len(views) > 1 else ()
            dtype = rec.dtype_of(views[k])
            here = Val(b, b.load(k, dtype, guards, 0), dtype).to(kind)
            value = here if value is None else iota(b, dim).lt(starts[k + 1]).where(here, value)
        assert value is not None
        return value

    return raw_map(rec, tuple(shape), grown, program)


def padded(rec: Recorder, view: View, dim: int, before: int, after: int) -> View:
    """Adds zeros before and after one dimension."""
    shape = tuple(n + before + after if d == dim else n for d, n in enumerate(view.shape))
    kind, guards = rec.dtype_of(view), (Guard(dim, before, before + view.shape[dim]),)
    grown = View(view.tensor, shape, view.strides, view.offset - before * view.strides[dim])
    return raw_map(rec, shape, [grown], lambda b: Val(b, b.load(0, kind, guards, 0), kind))


@lowering("constant_pad_nd.default")
def constant_pad(rec: Recorder, out: torch.Tensor, x: torch.Tensor, pad: Sequence[int], value: float = 0) -> None:
    view, shape, kind = rec.read(x), tuple(out.shape), rec.dtype_of(rec.read(x))
    offset, guards = view.offset, []
    for k in range(len(pad) // 2):
        d, before = x.dim() - 1 - k, pad[2 * k]
        offset -= before * view.strides[d]
        guards.append(Guard(d, max(before, 0), min(before + x.shape[d], shape[d])))
    fill = float(value) if kind == F32 else int(value)
    grown = View(view.tensor, shape, view.strides, offset)
    rec.bind(out, raw_map(rec, shape, [grown], lambda b: Val(b, b.load(0, kind, tuple(guards), fill), kind)))


@lowering("flip.default")
def flip(rec: Recorder, out: torch.Tensor, x: torch.Tensor, dims: Sequence[int]) -> None:
    view = rec.read(x)
    strides, offset = list(view.strides), view.offset
    for d in dims:
        offset += (view.shape[d] - 1) * strides[d] if view.shape[d] else 0
        strides[d] = -strides[d]
    rec.bind(out, rec.map(view.shape, [View(view.tensor, view.shape, tuple(strides), offset)], lambda a: a))

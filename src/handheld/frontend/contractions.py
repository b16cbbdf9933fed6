"""Lowerings of matrix products and convolutions, and linear maps along axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from handheld.errors import UnsupportedOp
from handheld.frontend.aten import MaybeTensor, Results
from handheld.frontend.layout import permute
from handheld.frontend.record import Recorder
from handheld.frontend.reductions import fold
from handheld.frontend.registry import lowering, shape_of
from handheld.frontend.values import Val, gather, iota
from handheld.graph.dtypes import F32, I32
from handheld.graph.graph import Attr, View, contiguous_strides
from handheld.graph.program import Builder, Instr, Store

_PLAIN: dict[str, Attr] = {"program": (Instr("acc", F32),), "stores": (Store(0),)}


def matmul(rec: Recorder, a: View, b: View) -> View:
    """Adds the product a[..., m, k] @ b[..., k, n]. The leading dimensions must be equal."""
    shape = (*a.shape[:-1], b.shape[-1])
    outputs = rec.emit("matmul", [a, b], [(shape, F32)], {"shape": shape, **_PLAIN})
    return rec.dense(outputs[0])


def transpose(view: View) -> View:
    """Swaps the last two dimensions."""
    order = [*range(len(view.shape) - 2), len(view.shape) - 1, len(view.shape) - 2]
    return permute(view, order)


def floats(rec: Recorder, *tensors: torch.Tensor) -> list[View]:
    """Reads floating-point tensors. Raises UnsupportedOp for others."""
    views = []
    for tensor in tensors:
        if not tensor.dtype.is_floating_point:
            raise UnsupportedOp(
                f"a matrix product of {tensor.dtype} tensors has no lowering. Try: convert them to float32"
            )
        views.append(rec.read(tensor))
    return views


@lowering("mm.default", "bmm.default")
def mm(rec: Recorder, out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    rec.bind(out, matmul(rec, *floats(rec, a, b)))


@lowering("addmm.default", "baddbmm.default")
def addmm(
    rec: Recorder,
    out: torch.Tensor,
    c: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> None:
    product = matmul(rec, *floats(rec, a, b))

    def build(p: Val, q: Val) -> Val:
        p = p if alpha == 1 else p * float(alpha)
        q = q.to(F32)
        return p + (q if beta == 1 else q * float(beta))

    if beta == 0:
        rec.bind(out, rec.map(product.shape, [product], lambda p: p * float(alpha)))
    else:
        rec.bind(out, rec.map(product.shape, [product, rec.read(c)], build))


@lowering("mv.default")
def mv(rec: Recorder, out: torch.Tensor, a: torch.Tensor, x: torch.Tensor) -> None:
    av, xv = floats(rec, a, x)
    xv = View(xv.tensor, (xv.shape[0], 1), (xv.strides[0], 0), xv.offset)
    product = matmul(rec, av, xv)
    rec.bind(out, View(product.tensor, tuple(out.shape), (1,), 0))


@lowering("dot.default", "vdot.default")
def dot(rec: Recorder, out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    av, bv = rec.read(a), rec.read(b)
    rec.bind(out, fold(rec, av, (0,), lambda x, y: (x * y).reduce("sum"), [bv]))


def _group_of(rec: Recorder, ends: torch.Tensor, count: int) -> View:
    """Returns the group of each of `count` rows. `ends` holds the end of each group."""
    view = rec.read(ends)
    wide = View(view.tensor, (count, ends.shape[0]), (0, view.strides[0]), view.offset)
    return fold(rec, wide, (1,), lambda e: e.le(iota(e.builder, 0)).to(I32).reduce("sum"))


@shape_of("_grouped_mm.default")
def grouped_mm_shape(a: torch.Tensor, b: torch.Tensor, offs: MaybeTensor = None, *_: object) -> torch.Tensor:
    if a.dim() == b.dim() == 2:
        assert offs is not None  # Two matrices without groups would be a plain product.
        return a.new_empty((offs.shape[0], a.shape[0], b.shape[1]))
    lead = a.shape[:1] if a.dim() == b.dim() == 3 else ()
    return a.new_empty((*lead, a.shape[-2], b.shape[-1]))


@lowering("_grouped_mm.default")
def grouped_mm(
    rec: Recorder,
    out: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    offs: MaybeTensor = None,
    bias: MaybeTensor = None,
    out_dtype: torch.dtype | None = None,
) -> None:
    """Multiplies groups of rows by one matrix per group, as mixtures of experts do.

    The groups are data, so every row is multiplied by the matrix of every group, and each row takes the result of
    its own group.
    """
    if bias is not None:
        raise UnsupportedOp("a grouped matrix product with bias has no lowering. Try: add the bias afterwards")
    av, bv = floats(rec, a, b)
    if offs is None:
        rec.bind(out, matmul(rec, av, bv))
        return
    groups = offs.shape[0]

    def for_each_group(view: View) -> View:
        return View(view.tensor, (groups, *view.shape), (0, *view.strides), view.offset)

    if a.dim() == 2 and b.dim() == 2:  # The groups divide the summed dimension.
        group = _group_of(rec, offs, a.shape[1])
        shape = (groups, *a.shape)
        group_at = View(group.tensor, shape, (0, 0, 1), 0)
        masked = rec.map(shape, [for_each_group(av), group_at], lambda x, g: g.eq(iota(x.builder, 0)).where(x, 0.0))
        rec.bind(out, matmul(rec, masked, for_each_group(bv)))
        return
    rows = a.dim() == 2
    product = matmul(rec, for_each_group(av) if rows else av, bv if rows else for_each_group(bv))
    shape = tuple(out.shape)
    group = _group_of(rec, offs, shape[0] if rows else shape[1])
    group_at = View(group.tensor, shape, (1, 0) if rows else (0, 1), 0)

    def pick(builder: Builder, g: Val) -> Val:
        at = (g * shape[0] + iota(builder, 0)) * shape[1] + iota(builder, 1)
        return g.lt(groups).where(gather(builder, 1, F32, at), 0.0)

    rec.bind(out, rec.map(shape, [group_at], pick, gathered=[product]))


# ── linear maps along axes ───────────────────────────────────────────────────────────────────────


def along_axes(rec: Recorder, x: View, matrices: Sequence[np.ndarray]) -> View:
    """Multiplies each trailing dimension of x by its matrix. matrices[i] has the shape [out, in]."""
    rank, first = len(x.shape), len(x.shape) - len(matrices)
    for i, matrix in enumerate(matrices):
        dim = first + i
        if matrix.shape[0] == matrix.shape[1] and np.array_equal(matrix, np.eye(len(matrix))):
            continue
        weights = rec.constant(matrix.astype(np.float32))
        lead = x.shape[:dim]
        behind = math.prod(x.shape[dim + 1 :])
        x = rec.contiguous(x)
        left = View(weights.tensor, (math.prod(lead), *matrix.shape), (0, matrix.shape[1], 1), 0)
        right = View(x.tensor, (math.prod(lead), x.shape[dim], behind), (x.shape[dim] * behind, behind, 1), 0)
        if behind == 1:  # One product of [lead, in] and [in, out] is enough.
            left = View(x.tensor, (math.prod(lead), x.shape[dim]), (x.shape[dim], 1), 0)
            right = View(weights.tensor, (matrix.shape[1], matrix.shape[0]), (1, matrix.shape[1]), 0)
        product = matmul(rec, left, right)
        shape = (*lead, matrix.shape[0], *x.shape[dim + 1 :])
        x = View(product.tensor, shape, contiguous_strides(shape), 0)
    assert rank == len(x.shape)
    return x


# ── convolution ───────────────────────────────────────────────────────────────────────────────────


def _plane(view: View) -> View:
    """Views [n, c, w] as [n, c, 1, w]."""
    if len(view.shape) == 4:
        return view
    return View(view.tensor, (*view.shape[:2], 1, view.shape[2]), (*view.strides[:2], 0, view.strides[2]), view.offset)


def _pair(values: Sequence[int], first: int, rank: int) -> tuple[int, int]:
    values = list(values) * rank if len(values) == 1 else list(values)
    return (values[0], values[1]) if rank == 2 else (first, values[0])


def _geometry(
    rec: Recorder, rank: int, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int
) -> dict[str, Attr]:
    if rank not in (1, 2):
        raise UnsupportedOp(
            f"convolution over {rank} spatial dimensions has no lowering (in {rec._module()}). Try: 1, 2 or 3"
        )
    return {
        "stride": _pair(stride, 1, rank),
        "padding": _pair(padding, 0, rank),
        "dilation": _pair(dilation, 1, rank),
        "groups": groups,
    }


def _shape4(tensor: torch.Tensor) -> tuple[int, ...]:
    s = tuple(tensor.shape)
    return s if len(s) == 4 else (*s[:2], 1, s[2])


def _conv(rec: Recorder, op: str, a: View, b: View, shape: tuple[int, ...], geometry: dict[str, Attr]) -> View:
    attrs = {**geometry, "shape": shape, **({} if op == "conv_weight" else _PLAIN)}
    return rec.dense(rec.emit(op, [_plane(a), _plane(b)], [(shape, F32)], attrs)[0])


def conv2d(
    rec: Recorder,
    op: str,
    a: View,
    b: View,
    shape: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> View:
    """Adds a convolution node over two dimensions. `op` is conv, conv_input or conv_weight."""
    return _conv(rec, op, a, b, tuple(shape), _geometry(rec, 2, stride, padding, dilation, groups))


@lowering("convolution.default")
def convolution(
    rec: Recorder,
    out: torch.Tensor,
    x: torch.Tensor,
    w: torch.Tensor,
    bias: MaybeTensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> None:
    if x.dim() == 5:
        from handheld.frontend.volumes import convolution3d

        convolution3d(rec, out, x, w, bias, stride, padding, dilation, transposed, groups)
        return
    geometry = _geometry(rec, x.dim() - 2, stride, padding, dilation, groups)
    op = "conv_input" if transposed else "conv"
    xv, wv = floats(rec, x, w)
    y = _conv(rec, op, xv, wv, _shape4(out), geometry)
    if bias is not None:
        b = rec.read(bias)
        wide = View(b.tensor, y.shape, (0, b.strides[0], 0, 0), b.offset)
        y = rec.map(y.shape, [y, wide], lambda p, q: p + q)
    rec.bind_dense(out, y)


@lowering("convolution_backward.default")
def convolution_backward(
    rec: Recorder,
    out: Results,
    g: torch.Tensor,
    x: torch.Tensor,
    w: torch.Tensor,
    bias_sizes: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    mask: Sequence[bool],
) -> None:
    if x.dim() == 5:
        from handheld.frontend.volumes import convolution3d_backward

        convolution3d_backward(rec, out, g, x, w, stride, padding, dilation, transposed, groups, mask)
        return
    geometry = _geometry(rec, x.dim() - 2, stride, padding, dilation, groups)
    gv, xv, wv = floats(rec, g, x, w)
    if mask[0]:
        op = "conv" if transposed else "conv_input"
        rec.bind_dense(out[0], _conv(rec, op, gv, wv, _shape4(x), geometry))
    if mask[1]:
        # A transposed convolution is the adjoint of a convolution, so input and gradient change roles.
        first, second = (xv, gv) if transposed else (gv, xv)
        rec.bind_dense(out[1], _conv(rec, "conv_weight", first, second, _shape4(w), geometry))
    if mask[2]:
        axes = tuple(d for d in range(g.dim()) if d != 1)
        rec.bind(out[2], fold(rec, gv, axes, lambda a: a.reduce("sum")))

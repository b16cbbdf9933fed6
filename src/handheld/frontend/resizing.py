"""Lowerings of interpolation: one matrix product per axis, with weights taken from PyTorch itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from handheld.frontend.aten import Sizes
from handheld.frontend.contractions import along_axes
from handheld.frontend.pooling import bind_image
from handheld.frontend.record import Recorder
from handheld.frontend.registry import lowering


def _resize_matrix(mode: str, size: int, out: int, align: bool, scale: float | None) -> np.ndarray:
    """Returns the weights of each output position. PyTorch computes them by resizing an identity matrix."""
    with torch.utils._python_dispatch._disable_current_modes():
        unit = torch.eye(size, dtype=torch.float64)[:, None, :]
        if mode == "nearest":
            y = torch.ops.aten.upsample_nearest1d(unit, [out], scale)
        elif mode == "nearest-exact":
            y = torch.ops.aten._upsample_nearest_exact1d(unit, [out], scale)
        elif mode == "linear":
            y = torch.ops.aten.upsample_linear1d(unit, [out], align, scale)
        else:
            op = {
                "cubic": torch.ops.aten.upsample_bicubic2d,
                "linear-aa": torch.ops.aten._upsample_bilinear2d_aa,
                "cubic-aa": torch.ops.aten._upsample_bicubic2d_aa,
            }[mode]
            y = op(unit[:, :, None, :], [1, out], align, None, scale)[:, :, 0]
        return np.ascontiguousarray(y[:, 0].numpy().T)


_MODES = {
    "upsample_nearest": "nearest",
    "_upsample_nearest_exact": "nearest-exact",
    "upsample_linear": "linear",
    "upsample_bilinear": "linear",
    "upsample_bicubic": "cubic",
    "upsample_trilinear": "linear",
    "_upsample_bilinear2d_aa": "linear-aa",
    "_upsample_bicubic2d_aa": "cubic-aa",
}


def _resize(
    rec: Recorder,
    out: torch.Tensor,
    x: torch.Tensor,
    sizes_in: Sequence[int],
    sizes_out: Sequence[int],
    options: Sequence[Any],
    backward: bool,
) -> None:
    name = rec.torch_op.split(".")[1].removesuffix("_backward")
    mode = _MODES[name if name.endswith("_aa") else name[:-2]]
    rest = list(options)
    align = bool(rest.pop(0)) if not mode.startswith("nearest") else False
    scales = (rest + [None] * len(sizes_in))[: len(sizes_in)]
    matrices = [_resize_matrix(mode, i, o, align, s) for i, o, s in zip(sizes_in, sizes_out, scales, strict=True)]
    if backward:
        matrices = [m.T for m in matrices]
    bind_image(rec, out, rec.contiguous(along_axes(rec, rec.read(x), matrices)).tensor)


@lowering(
    "upsample_nearest1d.default",
    "upsample_nearest2d.default",
    "_upsample_nearest_exact1d.default",
    "_upsample_nearest_exact2d.default",
    "upsample_linear1d.default",
    "upsample_bilinear2d.default",
    "upsample_bicubic2d.default",
    "_upsample_bilinear2d_aa.default",
    "_upsample_bicubic2d_aa.default",
    "upsample_nearest3d.default",
    "_upsample_nearest_exact3d.default",
    "upsample_trilinear3d.default",
)
def upsample(rec: Recorder, out: torch.Tensor, x: torch.Tensor, size: Sizes, *options: Any) -> None:
    _resize(rec, out, x, x.shape[2:], out.shape[2:], options, backward=False)


@lowering(
    "upsample_nearest1d_backward.default",
    "upsample_nearest2d_backward.default",
    "_upsample_nearest_exact1d_backward.default",
    "_upsample_nearest_exact2d_backward.default",
    "upsample_linear1d_backward.default",
    "upsample_bilinear2d_backward.default",
    "upsample_bicubic2d_backward.default",
    "_upsample_bilinear2d_aa_backward.default",
    "_upsample_bicubic2d_aa_backward.default",
    "upsample_nearest3d_backward.default",
    "_upsample_nearest_exact3d_backward.default",
    "upsample_trilinear3d_backward.default",
)
def upsample_backward(
    rec: Recorder, out: torch.Tensor, g: torch.Tensor, size: Sizes, input_size: Any, *options: Any
) -> None:
    _resize(rec, out, g, tuple(input_size)[2:], g.shape[2:], options, backward=True)


@lowering(
    "replication_pad1d_backward.default", "replication_pad2d_backward.default", "replication_pad3d_backward.default"
)
def replication_pad_backward(
    rec: Recorder, out: torch.Tensor, g: torch.Tensor, x: torch.Tensor, padding: Sequence[int]
) -> None:
    """Adds the gradients of all copies of an edge to the edge, with a matrix of zeros and ones per axis."""
    matrices = []
    for k in reversed(range(len(padding) // 2)):
        size, before, after = x.shape[x.dim() - 1 - k], padding[2 * k], padding[2 * k + 1]
        source = np.clip(np.arange(size + before + after) - before, 0, size - 1)
        matrices.append((np.arange(size)[:, None] == source[None, :]).astype(np.float64))
    bind_image(rec, out, rec.contiguous(along_axes(rec, rec.read(g), matrices)).tensor)

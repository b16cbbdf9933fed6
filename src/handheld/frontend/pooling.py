"""Lowerings of pooling. Adaptive averages are matrix products; all others are windows."""

from __future__ import annotations

import numpy as np
import torch

from handheld.frontend.aten import Results, Sizes
from handheld.frontend.contractions import along_axes
from handheld.frontend.record import Recorder
from handheld.frontend.registry import lowering
from handheld.graph.dtypes import F32, I32
from handheld.graph.graph import Attr, View, contiguous_strides


def _two(values: Sizes | None, default: Sizes | None = None) -> tuple[int, int]:
    values = default if values is None or (isinstance(values, (list, tuple)) and not values) else values
    assert values is not None
    if isinstance(values, int):
        return (values, values)
    values = list(values)
    return (values[0], values[0]) if len(values) == 1 else (values[0], values[1])


def _image(rec: Recorder, x: torch.Tensor) -> View:
    """Reads [c, h, w] as [1, c, h, w]."""
    view = rec.read(x)
    if len(view.shape) == 4:
        return view
    return View(view.tensor, (1, *view.shape), (0, *view.strides), view.offset)


def bind_image(rec: Recorder, out: torch.Tensor, tensor: int) -> None:
    """Binds a whole tensor to `out`, which has the same elements in its own shape."""
    shape = tuple(out.shape)
    rec.bind(out, View(tensor, shape, contiguous_strides(shape), 0))


def _shape4(t: torch.Tensor) -> tuple[int, ...]:
    return tuple(t.shape) if t.dim() == 4 else (1, *t.shape)


def _max_window(kernel: Sizes, stride: Sizes | None, padding: Sizes, dilation: Sizes) -> dict[str, Attr]:
    return {
        "kernel": _two(kernel),
        "stride": _two(stride, kernel),
        "padding": _two(padding),
        "dilation": _two(dilation),
        "adaptive": False,
    }


@lowering("max_pool2d_with_indices.default")
def max_pool(
    rec: Recorder,
    out: Results,
    x: torch.Tensor,
    kernel: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> None:
    shape = _shape4(out[0])
    attrs = _max_window(kernel, stride, padding, dilation) | {"shape": shape}
    outputs = rec.emit("max_pool", [_image(rec, x)], [(shape, F32), (shape, I32)], attrs)
    bind_image(rec, out[0], outputs[0])
    bind_image(rec, out[1], outputs[1])


@lowering("max_pool2d_with_indices_backward.default")
def max_pool_backward(
    rec: Recorder,
    out: torch.Tensor,
    g: torch.Tensor,
    x: torch.Tensor,
    kernel: Sizes,
    stride: Sizes | None,
    padding: Sizes,
    dilation: Sizes,
    ceil_mode: bool,
    index: torch.Tensor,
) -> None:
    shape = _shape4(x)
    attrs = _max_window(kernel, stride, padding, dilation) | {"shape": shape}
    bind_image(rec, out, rec.emit("max_pool_grad", [_image(rec, g), _image(rec, index)], [(shape, F32)], attrs)[0])


_ADAPTIVE: dict[str, Attr] = {
    "kernel": (1, 1),
    "stride": (1, 1),
    "padding": (0, 0),
    "dilation": (1, 1),
    "adaptive": True,
}


@lowering("adaptive_max_pool2d.default")
def adaptive_max_pool(rec: Recorder, out: Results, x: torch.Tensor, size: Sizes) -> None:
    shape = _shape4(out[0])
    outputs = rec.emit("max_pool", [_image(rec, x)], [(shape, F32), (shape, I32)], {**_ADAPTIVE, "shape": shape})
    bind_image(rec, out[0], outputs[0])
    bind_image(rec, out[1], outputs[1])


@lowering("adaptive_max_pool2d_backward.default")
def adaptive_max_pool_backward(
    rec: Recorder, out: torch.Tensor, g: torch.Tensor, x: torch.Tensor, index: torch.Tensor
) -> None:
    shape = _shape4(x)
    inputs = [_image(rec, g), _image(rec, index)]
    bind_image(rec, out, rec.emit("max_pool_grad", inputs, [(shape, F32)], {**_ADAPTIVE, "shape": shape})[0])


def _average_window(
    kernel: Sizes, stride: Sizes | None, padding: Sizes, count_pad: bool, divisor: int | None
) -> dict[str, Attr]:
    return {
        "kernel": _two(kernel),
        "stride": _two(stride, kernel),
        "padding": _two(padding),
        "count_pad": count_pad,
        "divisor": int(divisor or 0),
    }


@lowering("avg_pool2d.default")
def avg_pool(
    rec: Recorder,
    out: torch.Tensor,
    x: torch.Tensor,
    kernel: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_pad: bool = True,
    divisor: int | None = None,
) -> None:
    shape = _shape4(out)
    attrs = _average_window(kernel, stride, padding, count_pad, divisor) | {"shape": shape}
    bind_image(rec, out, rec.emit("avg_pool", [_image(rec, x)], [(shape, F32)], attrs)[0])


@lowering("avg_pool2d_backward.default")
def avg_pool_backward(
    rec: Recorder,
    out: torch.Tensor,
    g: torch.Tensor,
    x: torch.Tensor,
    kernel: Sizes,
    stride: Sizes | None,
    padding: Sizes,
    ceil_mode: bool,
    count_pad: bool,
    divisor: int | None,
) -> None:
    shape = _shape4(x)
    attrs = _average_window(kernel, stride, padding, count_pad, divisor) | {"shape": shape}
    bind_image(rec, out, rec.emit("avg_pool_grad", [_image(rec, g)], [(shape, F32)], attrs)[0])


def _pooling_matrix(size: int, out: int) -> np.ndarray:
    """Returns the [out, size] matrix that averages the adaptive windows of one axis."""
    matrix = np.zeros((out, size))
    for i in range(out):
        low, high = i * size // out, -(-(i + 1) * size // out)
        matrix[i, low:high] = 1 / (high - low)
    return matrix


def _spatial(rec: Recorder) -> tuple[int, ...]:
    return (-3, -2, -1) if "3d" in rec.torch_op else (-2, -1)


@lowering("_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default")
def adaptive_avg_pool(rec: Recorder, out: torch.Tensor, x: torch.Tensor, size: Sizes) -> None:
    matrices = [_pooling_matrix(x.shape[d], out.shape[d]) for d in _spatial(rec)]
    bind_image(rec, out, rec.contiguous(along_axes(rec, rec.read(x), matrices)).tensor)


@lowering("_adaptive_avg_pool2d_backward.default", "_adaptive_avg_pool3d_backward.default")
def adaptive_avg_pool_backward(rec: Recorder, out: torch.Tensor, g: torch.Tensor, x: torch.Tensor) -> None:
    matrices = [_pooling_matrix(x.shape[d], g.shape[d]).T for d in _spatial(rec)]
    bind_image(rec, out, rec.contiguous(along_axes(rec, rec.read(g), matrices)).tensor)

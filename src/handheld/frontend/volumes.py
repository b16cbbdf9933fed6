"""Lowerings of convolution and pooling over three spatial dimensions, in terms of two.

A convolution treats the slices of a depth window as channels. Pooling first pools every slice, then the depth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from handheld.frontend.aten import MaybeTensor, Results, Sizes
from handheld.frontend.contractions import conv2d, floats
from handheld.frontend.joining import padded
from handheld.frontend.layout import permute
from handheld.frontend.pooling import bind_image
from handheld.frontend.record import Recorder
from handheld.frontend.reductions import fold
from handheld.frontend.registry import lowering
from handheld.frontend.values import Val, gather, iota
from handheld.graph.dtypes import F32, I32
from handheld.graph.graph import Attr, View, contiguous_strides
from handheld.graph.program import Builder

Shape = tuple[int, ...]


def _dense(view: View, shape: Sequence[int]) -> View:
    """Views a dense tensor in another shape."""
    return View(view.tensor, tuple(shape), contiguous_strides(tuple(shape)))


class Depth:
    """How a convolution moves along the depth: the first of its three strides, paddings and dilations."""

    def __init__(
        self,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        kernel: int,
        image: Shape,
        windows: int,
    ) -> None:
        self.stride, self.padding, self.dilation = stride[0], padding[0], dilation[0]
        self.kernel, self.image, self.windows = kernel, image, windows

    def unfold(self, rec: Recorder, x: View) -> View:
        """Copies [n, c, d, h, w] to [n * windows, c * kernel, h, w]: the slices of a window become channels."""
        if self.padding:
            x = padded(rec, x, 2, self.padding, self.padding)
        n, c, _, h, w = x.shape
        shape = (n, self.windows, c, self.kernel, h, w)
        s = x.strides
        walk = View(x.tensor, shape, (s[0], s[2] * self.stride, s[1], s[2] * self.dilation, s[3], s[4]), x.offset)
        return _dense(rec.map(shape, [walk], lambda a: a), (n * self.windows, c * self.kernel, h, w))

    def fold(self, rec: Recorder, y: View) -> View:
        """The adjoint of unfold: every slice gets the sum over all windows that contain it."""
        n, c, _, h, w = self.image
        strides = contiguous_strides((n, self.windows, c, self.kernel, h, w))

        def build(b: Builder) -> Val:
            at = iota(b, 2) + self.padding - iota(b, 5) * self.dilation
            window = at.binary("floordiv", self.stride)
            inside = at.ge(0).both(window.lt(self.windows)).both((window * self.stride).eq(at))
            place = iota(b, 5) * strides[3]
            for dim, value in ((0, iota(b, 0)), (1, window), (2, iota(b, 1)), (4, iota(b, 3)), (5, iota(b, 4))):
                place = place + value * strides[dim]
            return inside.where(gather(b, 0, F32, place), 0.0).reduce("sum")

        return rec.reduce((*self.image, self.kernel), (5,), [], build, gathered=[rec.dense(y.tensor)])


def _flat(rec: Recorder, g: View) -> View:
    """Returns [n, k, d, h, w] as [n * d, k, h, w]."""
    moved = rec.contiguous(permute(g, (0, 2, 1, 3, 4)))
    n, d, *rest = moved.shape
    return _dense(moved, (n * d, *rest))


def _tall(y: View, shape: Sequence[int]) -> View:
    """The inverse of _flat: views [n * d, k, h, w] as [n, k, d, h, w]."""
    n, k, d, h, w = shape
    return permute(_dense(y, (n, d, k, h, w)), (0, 2, 1, 3, 4))


def _weights(rec: Recorder, w: View) -> View:
    """Returns [k, c, d, r, s] as [k, c * d, r, s]."""
    whole = rec.contiguous(w)
    k, c, d, r, s = whole.shape
    return _dense(whole, (k, c * d, r, s))


def convolution3d(
    rec: Recorder,
    out: torch.Tensor,
    x: torch.Tensor,
    w: torch.Tensor,
    bias: MaybeTensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    groups: int,
) -> None:
    stride, padding, dilation = (_three(v) for v in (stride, padding, dilation))
    xv, wv = floats(rec, x, w)
    n, k, d, h, width = out.shape
    if transposed:
        depth = Depth(stride, padding, dilation, w.shape[2], tuple(out.shape), x.shape[2])
        flat = conv2d(
            rec,
            "conv_input",
            _flat(rec, xv),
            _weights(rec, wv),
            (n * x.shape[2], k * w.shape[2], h, width),
            stride[1:],
            padding[1:],
            dilation[1:],
            groups,
        )
        y = depth.fold(rec, flat)
    else:
        depth = Depth(stride, padding, dilation, w.shape[2], tuple(x.shape), d)
        flat = conv2d(
            rec,
            "conv",
            depth.unfold(rec, xv),
            _weights(rec, wv),
            (n * d, k, h, width),
            stride[1:],
            padding[1:],
            dilation[1:],
            groups,
        )
        y = _tall(flat, out.shape)
    if bias is not None:
        b = rec.read(bias)
        y = rec.map(y.shape, [y, View(b.tensor, y.shape, (0, b.strides[0], 0, 0, 0), b.offset)], lambda p, q: p + q)
    rec.bind(out, y)


def convolution3d_backward(
    rec: Recorder,
    out: Results,
    g: torch.Tensor,
    x: torch.Tensor,
    w: torch.Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    groups: int,
    mask: Sequence[bool],
) -> None:
    stride, padding, dilation = (_three(v) for v in (stride, padding, dilation))
    gv, xv, wv = floats(rec, g, x, w)
    # In a transposed convolution, the large image is the gradient.
    large, small = (g, x) if transposed else (x, g)
    depth = Depth(stride, padding, dilation, w.shape[2], tuple(large.shape), small.shape[2])
    flat = (stride[1:], padding[1:], dilation[1:], groups)
    weights = _weights(rec, wv)
    if mask[0]:
        n, c, d, h, width = x.shape
        if transposed:
            y = conv2d(rec, "conv", depth.unfold(rec, gv), weights, (n * d, c, h, width), *flat)
            rec.bind(out[0], _tall(y, x.shape))
        else:
            shape = (n * g.shape[2], c * w.shape[2], h, width)
            rec.bind(out[0], depth.fold(rec, conv2d(rec, "conv_input", _flat(rec, gv), weights, shape, *flat)))
    if mask[1]:
        first, second = (xv, gv) if transposed else (gv, xv)
        gradient = conv2d(rec, "conv_weight", _flat(rec, first), depth.unfold(rec, second), weights.shape, *flat)
        rec.bind(out[1], _dense(gradient, w.shape))
    if mask[2]:
        rec.bind(out[2], fold(rec, gv, (0, 2, 3, 4), lambda a: a.reduce("sum")))


def _three(values: Sequence[int]) -> list[int]:
    return list(values) * 3 if len(values) == 1 else list(values)


# ── pooling ──────────────────────────────────────────────────────────────────────────────────────


def _sizes(values: Sizes | None, default: Sizes | None = None) -> list[int]:
    values = default if values is None or (isinstance(values, (list, tuple)) and not values) else values
    assert values is not None
    return [values] * 3 if isinstance(values, int) else _three(list(values))


def _volume(shape: Sequence[int]) -> Shape:
    """Returns the shape [c, d, h, w] as [1, c, d, h, w]."""
    return (1, *shape) if len(shape) == 4 else tuple(shape)


def _stages(shape: Shape, windows: Shape) -> tuple[Shape, Shape, Shape, Shape]:
    """Returns four shapes: input and output of pooling the slices, then input and output of pooling the depth."""
    n, c, d, h, w = shape
    _, _, p, q, r = windows
    return (n, c * d, h, w), (n, c * d, q, r), (n, c, d, q * r), (n, c, p, q * r)


def _attrs(
    kernel: Sizes, stride: Sizes | None, padding: Sizes, **more: Attr
) -> tuple[dict[str, Attr], dict[str, Attr]]:
    k, s, p = _sizes(kernel), _sizes(stride, kernel), _sizes(padding)
    plane = {"kernel": tuple(k[1:]), "stride": tuple(s[1:]), "padding": tuple(p[1:]), **more}
    depth = {"kernel": (k[0], 1), "stride": (s[0], 1), "padding": (p[0], 0), **more}
    return plane, depth


def _average_attrs(
    kernel: Sizes, stride: Sizes | None, padding: Sizes, count_pad: bool, divisor: int | None
) -> tuple[dict[str, Attr], dict[str, Attr]]:
    plane, depth = _attrs(kernel, stride, padding, count_pad=count_pad, divisor=0)
    if divisor:
        plane["divisor"], depth["divisor"] = 1, int(divisor)
    return plane, depth


def _average(rec: Recorder, op: str, x: View, shape: Shape, attrs: dict[str, Attr]) -> View:
    return rec.dense(rec.emit(op, [x], [(shape, F32)], {**attrs, "shape": shape})[0])


@lowering("avg_pool3d.default")
def avg_pool3d(
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
    plane, depth = _average_attrs(kernel, stride, padding, count_pad, divisor)
    stages = _stages(_volume(x.shape), _volume(out.shape))
    y = _average(rec, "avg_pool", _dense(rec.contiguous(rec.read(x)), stages[0]), stages[1], plane)
    bind_image(rec, out, _average(rec, "avg_pool", _dense(y, stages[2]), stages[3], depth).tensor)


@lowering("avg_pool3d_backward.default")
def avg_pool3d_backward(
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
    plane, depth = _average_attrs(kernel, stride, padding, count_pad, divisor)
    stages = _stages(_volume(x.shape), _volume(g.shape))
    y = _average(rec, "avg_pool_grad", _dense(rec.contiguous(rec.read(g)), stages[3]), stages[2], depth)
    bind_image(rec, out, _average(rec, "avg_pool_grad", _dense(y, stages[1]), stages[0], plane).tensor)


@lowering("max_pool3d_with_indices.default")
def max_pool3d(
    rec: Recorder,
    out: Results,
    x: torch.Tensor,
    kernel: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> None:
    plane, depth = _attrs(kernel, stride, padding, adaptive=False)
    steps = _sizes(dilation)
    plane["dilation"], depth["dilation"] = tuple(steps[1:]), (steps[0], 1)
    n, c, d, h, w = _volume(x.shape)
    windows = _volume(out[0].shape)
    stages = _stages((n, c, d, h, w), windows)

    def pool(view: View, shape: Shape, attrs: dict[str, Attr]) -> tuple[View, View]:
        outputs = rec.emit("max_pool", [view], [(shape, F32), (shape, I32)], {**attrs, "shape": shape})
        return rec.dense(outputs[0]), rec.dense(outputs[1])

    best, inside = pool(_dense(rec.contiguous(rec.read(x)), stages[0]), stages[1], plane)
    value, which = pool(_dense(best, stages[2]), stages[3], depth)
    area = stages[3][3]

    def position(b: Builder, i: Val) -> Val:
        """Converts a slice and a position in it to a position in the volume."""
        row = iota(b, 0) * c + iota(b, 1)
        at = gather(b, 1, I32, row * (d * area) + i)
        return i.binary("floordiv", area) * (h * w) + at

    bind_image(rec, out[0], value.tensor)
    bind_image(rec, out[1], rec.map(stages[3], [which], position, gathered=[rec.dense(inside.tensor)]).tensor)


@lowering("max_pool3d_with_indices_backward.default")
def max_pool3d_backward(
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
    n, c, *image = _volume(x.shape)
    count, size = g.numel() // max(n * c, 1), math.prod(image)
    inputs = [View(rec.contiguous(rec.read(t)).tensor, (n * c, count, 1), (count, 1, 0)) for t in (index, g)]
    shape = (n * c, size, 1)
    outputs = rec.emit("scatter", inputs, [(shape, F32)], {"mode": "add", "base": False, "shape": shape})
    bind_image(rec, out, outputs[0])

"""Compares convolutions with torch in float64: both variants, awkward shapes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from handheld.graph.check import check as check_graph
from handheld.kernels import contract
from helpers.contractions import ACC, KINDS, close, device, numbers, relu_of_bias, run_conv
from helpers.harness import make, run_node, view

CONVS = {
    "3x3": ((2, 5, 11, 13), (7, 5, 3, 3), {"padding": (1, 1)}),
    "no padding": ((2, 5, 11, 13), (7, 5, 3, 3), {}),
    "1x1": ((3, 17, 7, 5), (19, 17, 1, 1), {}),
    "1x1 stride 2": ((2, 5, 9, 8), (7, 5, 1, 1), {"stride": (2, 2)}),
    "stride 2": ((2, 3, 15, 14), (8, 3, 3, 3), {"stride": (2, 2), "padding": (1, 1)}),
    "stem": ((1, 3, 37, 41), (11, 3, 7, 7), {"stride": (2, 2), "padding": (3, 3)}),
    "dilated": ((2, 4, 17, 19), (5, 4, 3, 3), {"padding": (2, 3), "dilation": (2, 3)}),
    "dilated, strided": ((2, 4, 17, 19), (5, 4, 3, 2), {"padding": (2, 1), "dilation": (2, 3), "stride": (2, 3)}),
    "stride beyond kernel": ((2, 3, 17, 18), (5, 3, 2, 2), {"stride": (4, 5)}),
    "dilation shares a factor with stride": (
        (1, 3, 23, 21),
        (5, 3, 3, 3),
        {"stride": (4, 6), "dilation": (2, 4), "padding": (3, 2)},
    ),
    "groups": ((2, 12, 9, 7), (9, 4, 3, 3), {"padding": (1, 1), "groups": 3}),
    "groups, strided": ((2, 8, 9, 7), (12, 2, 3, 3), {"groups": 4, "stride": (2, 1)}),
    "one dimension": ((2, 5, 37, 1), (7, 5, 3, 1), {"padding": (1, 0), "stride": (2, 1)}),
    "one row": ((2, 5, 1, 37), (7, 5, 1, 4), {"padding": (0, 1)}),
    "one pixel": ((4, 33, 1, 1), (35, 33, 1, 1), {}),
    "padding wider than the image": ((2, 3, 2, 1), (4, 3, 3, 5), {"padding": (3, 4)}),
    "one channel": ((1, 1, 19, 23), (1, 1, 5, 4), {"padding": (2, 1)}),
    "many channels": ((1, 271, 5, 6), (70, 271, 3, 3), {"padding": (1, 1)}),
    "many weights, strided": ((3, 150, 7, 5), (101, 150, 4, 3), {"padding": (1, 1), "stride": (2, 2)}),
    "many weights, groups": ((2, 240, 5, 4), (262, 120, 3, 3), {"padding": (1, 1), "groups": 2}),
    "many weights, dead taps": ((2, 128, 2, 2), (120, 128, 3, 3), {"padding": (1, 1), "stride": (2, 2)}),
    "one pixel, dead taps": ((5, 33, 1, 1), (37, 33, 3, 3), {"padding": (1, 1)}),
    "padding far wider than the image": ((2, 9, 2, 1), (18, 9, 3, 5), {"padding": (3, 4)}),
    "depthwise": ((2, 7, 11, 13), (7, 1, 3, 3), {"padding": (1, 1), "groups": 7}),
    "depthwise stride 2": ((2, 7, 11, 14), (7, 1, 3, 3), {"padding": (1, 1), "groups": 7, "stride": (2, 2)}),
    "depthwise 5x5": ((1, 19, 14, 14), (19, 1, 5, 5), {"padding": (2, 2), "groups": 19, "stride": (2, 1)}),
    "depthwise dilated": (
        (2, 5, 17, 19),
        (5, 1, 3, 3),
        {"padding": (2, 4), "groups": 5, "dilation": (2, 4), "stride": (1, 2)},
    ),
    "depthwise, many channels": ((3, 37, 9, 7), (37, 1, 3, 5), {"padding": (1, 2), "groups": 37}),
    "depthwise, many channels, strided": (
        (2, 18, 9, 12),
        (18, 1, 3, 3),
        {"padding": (2, 4), "groups": 18, "dilation": (2, 4), "stride": (1, 2)},
    ),
    "depthwise, many channels, stride beyond kernel": ((2, 17, 9, 11), (17, 1, 2, 2), {"stride": (4, 5), "groups": 17}),
    "depthwise, few pixels": ((5, 21, 2, 3), (21, 1, 3, 3), {"padding": (1, 1), "groups": 21}),
    "depthwise, one pixel": ((4, 33, 1, 1), (33, 1, 3, 3), {"padding": (1, 1), "groups": 33}),
    "depthwise multiplier": ((2, 5, 9, 10), (15, 1, 3, 2), {"padding": (1, 1), "groups": 5, "stride": (2, 1)}),
    "depthwise row": ((2, 6, 1, 40), (6, 1, 1, 4), {"padding": (0, 3), "groups": 6}),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CONVS)
def test_conv(kind, name):
    x, w, geometry = CONVS[name]
    run_conv(kind, numbers(*x), numbers(*w, seed=1), **geometry)


@pytest.mark.parametrize("name", CONVS)
def test_conv_wide(name):
    """Also the kernels that only CPUs with vectors of 16 floats use."""
    x, w, geometry = CONVS[name]
    run_conv("cpu", numbers(*x), numbers(*w, seed=1), vector_width=16, vector_rate=2, **geometry)


@pytest.mark.parametrize("name", ["stride 2", "many channels"])
def test_conv_large_tiles(name):
    x, w, geometry = CONVS[name]
    run_conv("gpu", numbers(*x), numbers(*w, seed=1), **geometry)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("groups", [1, 6])
def test_conv_views(kind, groups):
    pad = {"padding": (1, 1), "stride": (2, 1), "groups": groups}
    # x is a slice of channels and pixels, w is transposed.
    x = numbers(2, 9, 15, 16)
    w = numbers(6 // groups, 8 if groups == 1 else 6, 3, 3, seed=1)
    looks = (lambda t: t[:, 2:8, 1:, ::2], lambda t: t.transpose(0, 1), lambda t: t)
    run_conv(kind, x, w, looks=looks, **pad)
    # x has channels last.
    looks = (lambda t: t.permute(0, 3, 1, 2), lambda t: t.transpose(2, 3), lambda t: t)
    w = numbers(6, 6 // groups, 3, 3, seed=1)
    run_conv(kind, numbers(2, 11, 12, 6), w, looks=looks, **pad)


def test_depthwise_lanes_of_views():
    """Channels last; a slice with gaps; images in parts, which are added up."""
    geometry = {"padding": (1, 1), "stride": (2, 1), "groups": 18}
    x, w = numbers(3, 10, 9, 18), numbers(18, 3, 3, 1, seed=1)
    looks = (lambda t: t.permute(0, 3, 1, 2), lambda t: t.permute(0, 3, 1, 2), lambda t: t)
    run_conv("cpu", x, w, looks=looks, **geometry)
    looks = (lambda t: t[:, 1:19, 1:, ::2], lambda t: t.transpose(2, 3), lambda t: t)
    run_conv("cpu", numbers(3, 20, 10, 12), numbers(18, 1, 3, 3, seed=1), looks=looks, compute_units=8, **geometry)
    run_conv("cpu", numbers(3, 18, 23, 31), numbers(18, 1, 3, 3), groups=18, vector_width=16, compute_units=8)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("groups", [1, 4])
def test_conv_expanded_gradient(kind, kernel, groups):
    """The gradient of a mean is one value for all pixels."""
    x, w = numbers(3, 4, 6, 5), numbers(8, 4 // groups, kernel, kernel, seed=1)
    looks = (lambda t: t, lambda t: t, lambda t: t[:, :, :1, :1].expand_as(t))
    run_conv(kind, x, w, looks=looks, groups=groups, padding=(kernel // 2, kernel // 2))


@pytest.mark.parametrize("kind", KINDS)
def test_conv_weight_long_sum(kind):
    x, w = np.abs(numbers(8, 3, 33, 31)), numbers(5, 3, 3, 3)
    run_conv(kind, x, w, padding=(1, 1), limit=1e-4, only=("conv_weight",))
    run_conv(kind, x, w, padding=(1, 1), limit=1e-4, only=("conv_weight",), compute_units=32)
    x, w = np.abs(numbers(8, 3, 63, 31)), numbers(3, 1, 5, 4)
    run_conv(kind, x, w, groups=3, limit=1e-5, only=("conv_weight",), compute_units=32)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("shape", "w", "launches"),
    [((0, 3, 5, 5), (4, 3, 3, 3), 0), ((2, 3, 5, 5), (0, 3, 3, 3), 0), ((2, 0, 5, 5), (4, 0, 3, 3), 1)],
)
def test_conv_empty(kind, shape, w, launches):
    out = (shape[0], w[0], 5, 5)
    attrs = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1, "shape": out}
    graph, data = make("conv", [numbers(*shape), numbers(*w)], None, [(out, "f32")], {**attrs, **ACC})
    (got,) = run_node(contract.lower_conv, graph, data, device(kind))
    assert np.array_equal(got, np.zeros(out, np.float32))
    lowered = contract.lower_conv(graph.nodes[0], graph, device(kind))
    assert len(lowered.launches) == launches


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("images", [0, 2])
def test_conv_weight_empty(kind, groups, images):
    """Without images, or with images of no width, the gradient is zero."""
    x, dy, w = (images, 3, 4, images), (images, 6, 4, 0), (6, 3 // groups, 3, 3)
    attrs = {"stride": (1, 1), "padding": (1, 0), "dilation": (1, 1), "groups": groups, "shape": w}
    graph, data = make("conv_weight", [numbers(*dy), numbers(*x)], None, [(w, "f32")], attrs)
    (got,) = run_node(contract.lower_conv_weight, graph, data, device(kind))
    assert np.array_equal(got, np.zeros(w, np.float32))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("guarded", "groups", "kernel"),
    [(False, 1, 1), (False, 2, 3), (True, 1, 3), (True, 6, 3), (False, 6, 1), (True, 20, 3), (False, 20, 3)],
)
def test_conv_epilogue(kind, guarded, groups, kernel):
    n = max(groups, 6)
    x, w, bias = numbers(2, n, 7, 9), numbers(n, n // groups, kernel, kernel, seed=1), numbers(n)
    shape, pad = (2, n, 7, 9), kernel // 2
    load = (2, ((3, 2, 5),) if guarded else (), 0.0)
    attrs = {
        "stride": (1, 1),
        "padding": (pad, pad),
        "dilation": (1, 1),
        "groups": groups,
        "shape": shape,
        **relu_of_bias(load, False),
    }
    for op in ("conv", "conv_input"):
        graph, data = make(
            op, [x, w, bias], [None, None, lambda t: view(t, shape, (0, 1, 0, 0))], [(shape, "f32")], attrs
        )
        check_graph(graph)
        (got,) = run_node(getattr(contract, f"lower_{op}"), graph, data, device(kind))
        name = {"conv": "conv2d", "conv_input": "conv_transpose2d"}[op]
        forward = getattr(torch.nn.functional, name)
        want = forward(torch.from_numpy(x).double(), torch.from_numpy(w).double(), padding=pad, groups=groups)
        plus = torch.from_numpy(bias).double().view(1, n, 1, 1).expand(shape).clone()
        if guarded:
            plus[..., :2] = 0
            plus[..., 5:] = 0
        close(got, (want + plus).relu())


@pytest.mark.parametrize("width", [4, 16])
def test_one_pixel(width):
    """Products of images and channels on a CPU: of views, with an epilogue, with padding that hides the pixel."""
    x, w, bias = numbers(5, 48, 1, 1), numbers(33, 48, 1, 1, seed=1), numbers(33)
    run_conv("cpu", x, w, stride=(2, 2), vector_width=width)
    run_conv(
        "cpu", numbers(48, 5, 1, 1), numbers(48, 33, 1, 1), looks=(lambda t: t.transpose(0, 1),) * 2 + (lambda t: t,)
    )
    run_conv("cpu", x, w, stride=(3, 3), padding=(1, 1), only=("conv",), vector_width=width)
    shape = (5, 33, 1, 1)
    attrs = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1, "shape": shape}
    attrs |= relu_of_bias((2, (), 0.0), False)
    graph, data = make(
        "conv", [x, w, bias], [None, None, lambda t: view(t, shape, (0, 1, 0, 0))], [(shape, "f32")], attrs
    )
    (got,) = run_node(contract.lower_conv, graph, data, device("cpu", vector_width=width))
    want = torch.from_numpy(x).double()[..., 0, 0] @ torch.from_numpy(w).double()[..., 0, 0].T
    close(got, (want + torch.from_numpy(bias)).relu().view(shape))


@pytest.mark.parametrize("channels", [1, 2, 3, 6, 8, 9])
def test_few_output_channels(channels):
    """few.cl, and from nine channels on direct.cl. Rows are cut into blocks, or channels into parts."""
    run_conv("cpu", numbers(3, 5, 13, 21), numbers(channels, 5, 5, 5, seed=1), padding=(2, 2), vector_width=16)
    run_conv("cpu", numbers(1, 40, 70, 33), numbers(channels, 40, 3, 2, seed=1), dilation=(2, 1), vector_width=16)


def test_few_input_channels():
    """The weight gradient of few.cl: several blocks of output channels, images in parts, rows in blocks, a view."""
    wide = {"vector_width": 16, "only": ("conv_weight",)}
    run_conv("cpu", numbers(3, 3, 9, 11), numbers(21, 3, 3, 3, seed=1), padding=(1, 1), **wide)
    run_conv("cpu", numbers(2, 1, 70, 30), numbers(5, 1, 5, 4, seed=1), compute_units=8, **wide)
    looks = (lambda t: t.permute(0, 3, 1, 2), lambda t: t, lambda t: t)
    run_conv("cpu", numbers(5, 12, 10, 2), numbers(7, 2, 3, 3, seed=1), looks=looks, **wide)

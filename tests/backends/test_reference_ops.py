"""Compares the reference ops with PyTorch's modules and autograd in float64."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from handheld.backends.reference.ops import run_node
from handheld.graph.check import check
from handheld.graph.ops import OPS
from handheld.graph.program import Builder, Instr, Store
from helpers.harness import make, view

RNG = np.random.default_rng(5)
ACC = {"program": (Instr("acc", "f32"),), "stores": (Store(0),)}


def rand(*shape):
    return torch.from_numpy(RNG.normal(size=shape))


def run(op, tensors, outputs, attrs, views=None):
    """Runs one node in float64. Floats keep their precision; integers become i32."""
    graph, _ = make(op, [t.numpy() for t in tensors], views, outputs, attrs)
    values = {i: t if t.is_floating_point() or t.dtype is torch.bool else t.int() for i, t in enumerate(tensors)}
    before = {i: t.clone() for i, t in values.items()}
    results = run_node(check(graph).nodes[0], graph, values, torch.float64)
    for result, (shape, dtype) in zip(results, outputs, strict=True):
        assert tuple(result.shape) == tuple(shape) and result.is_contiguous()
        assert result.dtype == {"f32": torch.float64, "i32": torch.int32, "bool": torch.bool}[dtype]
    for i, value in values.items():
        torch.testing.assert_close(value, before[i], rtol=0, atol=0, equal_nan=True)
    return results


def same(got, want):
    torch.testing.assert_close(got, want.to(got.dtype).reshape(got.shape), rtol=1e-10, atol=1e-12)


def f32(*shape):
    return tuple(shape), "f32"


def test_matmul_with_epilogue_and_views():
    a, b, bias = rand(3, 5, 4), rand(3, 6, 5), rand(6)
    p = Builder()
    total = p.op("add", "f32", p.op("acc", "f32"), p.load(2, "f32"))
    relu = p.op("max", "f32", total, p.const(0.0, "f32"))
    attrs = {"shape": (3, 4, 6), "program": p.program, "stores": (Store(relu), Store(total))}
    views = [
        lambda t: view(t, (3, 4, 5), (20, 1, 4)),
        lambda t: view(t, (3, 5, 6), (30, 1, 5)),
        lambda t: view(t, (3, 4, 6), (0, 0, 1)),
    ]
    got = run("matmul", [a, b, bias], [f32(3, 4, 6), f32(12, 6)], attrs, views)
    want = a.transpose(1, 2) @ b.transpose(1, 2) + bias
    same(got[0], want.relu())
    same(got[1], want)


@pytest.mark.parametrize(
    "stride, padding, dilation, groups, image",
    [
        ((1, 1), (0, 0), (1, 1), 1, (7, 6)),
        ((2, 1), (1, 2), (1, 2), 2, (8, 9)),
        ((2, 2), (1, 1), (1, 1), 4, (8, 6)),
        ((3, 2), (0, 1), (2, 1), 1, (11, 7)),
    ],
)
def test_convolution_and_its_gradients(stride, padding, dilation, groups, image):
    x, w = rand(2, 4, *image).requires_grad_(), rand(8, 4 // groups, 3, 2).requires_grad_()
    y = F.conv2d(x, w, None, stride, padding, dilation, groups)
    dy = rand(*y.shape)
    dx, dw = torch.autograd.grad(y, (x, w), dy)
    x, w, y = x.detach(), w.detach(), y.detach()
    attrs = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    compare_conv((x, w, y, dx, dw, dy), attrs)


def compare_conv(tensors, attrs):
    x, w, y, dx, dw, dy = tensors
    cases = (("conv", x, w, y), ("conv_input", dy, w, dx), ("conv_weight", dy, x, dw))
    for op, a, b, want in cases:
        shape = tuple(want.shape)
        full = {**attrs, "shape": shape, **(ACC if OPS[op].epilogue else {})}
        same(run(op, [a, b], [f32(*shape)], full)[0], want)


def test_convolution_may_leave_outputs_out():
    x, w = rand(1, 2, 6, 6).requires_grad_(), rand(3, 2, 3, 3).requires_grad_()
    dy = rand(1, 3, 3, 4)
    attrs = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
    y = F.conv2d(x, w)[:, :, :3]
    dx, dw = torch.autograd.grad(y, (x, w), dy)
    compare_conv((x.detach(), w.detach(), y.detach(), dx, dw, dy), attrs)


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("kernel, stride, padding", [((3, 2), (2, 2), (1, 0)), ((2, 2), (2, 3), (0, 1))])
def test_pooling(kernel, stride, padding, ceil):
    x = rand(2, 3, 8, 10).round(decimals=0).requires_grad_()  # rounded, so that many values are equal
    y, index = F.max_pool2d(x, kernel, stride, padding, 1, ceil, return_indices=True)
    dy = rand(*y.shape)
    (dx,) = torch.autograd.grad(y, x, dy)
    shape = tuple(y.shape)
    pool = {"kernel": kernel, "stride": stride, "padding": padding}
    both = {**pool, "dilation": (1, 1), "adaptive": False}
    got = run("max_pool", [x.detach()], [f32(*shape), (shape, "i32")], {**both, "shape": shape})
    same(got[0], y.detach())
    same(got[1], index)
    attrs = {**both, "shape": tuple(x.shape)}
    same(run("max_pool_grad", [dy, index.int()], [f32(*x.shape)], attrs)[0], dx)
    for count_pad, divisor in ((True, 0), (False, 0), (True, 5)):
        y = F.avg_pool2d(x, kernel, stride, padding, ceil, count_pad, divisor or None)
        (dx,) = torch.autograd.grad(y, x, dy)
        attrs = {**pool, "count_pad": count_pad, "divisor": divisor}
        got = run("avg_pool", [x.detach()], [f32(*shape)], {**attrs, "shape": shape})
        same(got[0], y.detach())
        got = run("avg_pool_grad", [dy], [f32(*x.shape)], {**attrs, "shape": tuple(x.shape)})
        same(got[0], dx)


def test_adaptive_max_pooling():
    x = rand(1, 2, 7, 5)
    y, index = F.adaptive_max_pool2d(x, (3, 2), return_indices=True)
    attrs = {"kernel": (), "stride": (), "padding": (), "dilation": (), "adaptive": True}
    shape = (1, 2, 3, 2)
    got = run("max_pool", [x], [f32(*shape), (shape, "i32")], {**attrs, "shape": shape})
    same(got[0], y)
    same(got[1], index)


def test_scatter():
    index, src, base = torch.tensor([2, -1, 2, 0]).int(), rand(2, 4, 3), rand(2, 5, 3)
    one_for_a_row = [lambda t: view(t, (2, 4, 3), (0, 1, 0)), None, None]
    for mode, given in (("add", True), ("add", False), ("set", True), ("set", False)):
        want = base.clone() if given else torch.zeros(2, 5, 3).double()
        for k, row in enumerate(index.tolist()):
            if row >= 0:
                want[:, row] = src[:, k] + (want[:, row] if mode == "add" else 0)
        attrs = {"mode": mode, "base": given, "shape": (2, 5, 3)}
        inputs = [index, src, base] if given else [index, src]
        same(run("scatter", inputs, [f32(2, 5, 3)], attrs, one_for_a_row)[0], want)


def test_assign():
    base, value = rand(3, 4), rand(2, 2)
    attrs = {"region_shape": (2, 2), "region_strides": (4, -1), "region_offset": 6}
    want = base.clone()
    want[1:, 1:3] = value.flip(1)
    same(run("assign", [base, value], [f32(3, 4)], attrs)[0], want)


@pytest.mark.parametrize("mode", ["add", "mul", "max", "min"])
def test_scan(mode):
    x = rand(2, 5, 3)
    plain = {"add": torch.add, "mul": torch.mul, "max": torch.maximum, "min": torch.minimum}[mode]
    for reverse in (False, True):
        order = range(5)[:: -1 if reverse else 1]
        want = x.clone()
        for before, n in pairwise(order):
            want[:, n] = plain(want[:, before], x[:, n])
        same(run("scan", [x], [f32(2, 5, 3)], {"mode": mode, "reverse": reverse})[0], want)
    whole = torch.tensor([[[3], [-1], [2]]]).int()
    got = run("scan", [whole], [((1, 3, 1), "i32")], {"mode": mode, "reverse": False})[0]
    assert got.flatten().tolist() == {"add": [3, 2, 4], "mul": [3, -3, -6], "max": [3, 3, 3], "min": [3, -1, -1]}[mode]


def test_sort_is_stable_and_puts_nan_last():
    x = torch.tensor([[2.0, float("nan"), 1.0, 2.0, 1.0]]).double()
    outputs = [f32(1, 5), ((1, 5), "i32")]
    values, order = run("sort", [x], outputs, {"descending": False})
    assert order.tolist() == [[2, 4, 0, 3, 1]] and values[0, :4].tolist() == [1, 1, 2, 2]
    assert run("sort", [x], outputs, {"descending": True})[1].tolist() == [[1, 0, 3, 2, 4]]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_recurrent_layers_and_their_gradients(kind, reverse):
    t, b, i, h = 5, 3, 4, 6
    net = (torch.nn.LSTM if kind == "lstm" else torch.nn.GRU)(i, h).double()
    w_ih, w_hh, b_ih, b_hh = (p.detach() for p in net.parameters())
    x, h0, c0 = rand(t, b, i), rand(1, b, h).requires_grad_(), rand(1, b, h).requires_grad_()
    dh, dh_last, dc_last = rand(t, b, h), rand(b, h), rand(b, h)
    flip = (lambda a: a.flip(0)) if reverse else (lambda a: a)
    # With the identity as input weight, the gradient of the input is that of gx.
    gates = (4 if kind == "lstm" else 3) * h
    wide = (torch.nn.LSTM if kind == "lstm" else torch.nn.GRU)(gates, h).double()
    wide.weight_ih_l0.data = torch.eye(gates).double()
    wide.weight_hh_l0.data, wide.bias_ih_l0.data, wide.bias_hh_l0.data = w_hh, b_ih * 0, b_hh
    gx = (x @ w_ih.T + b_ih).requires_grad_()
    state = (h0, c0) if kind == "lstm" else h0
    out, last = wide(flip(gx), state)
    loss = (out * flip(dh)).sum()
    flags = {"reverse": reverse}
    start = [h0.detach()[0], c0.detach()[0]]
    if kind == "lstm":
        loss = loss + (last[0] * dh_last).sum() + (last[1] * dc_last).sum()
        want = torch.autograd.grad(loss, (gx, h0, c0))
        shapes = [f32(t, b, h), f32(t, b, h), f32(t, b, 4 * h)]
        inputs = [(gx + b_hh).detach(), w_hh, *start]
        hs, cs, saved = run("lstm", inputs, shapes, flags)
        same(cs[0 if reverse else -1], last[1].detach())
        inputs = [dh, dh_last, dc_last, w_hh, cs, saved, start[1]]
        got = run("lstm_grad", inputs, [f32(t, b, 4 * h), f32(b, h), f32(b, h)], flags)
    else:
        loss = loss + (last * dh_last).sum()
        want = torch.autograd.grad(loss, (gx, wide.bias_hh_l0, wide.weight_hh_l0, h0))
        shapes = [f32(t, b, h), f32(t, b, 4 * h)]
        hs, saved = run("gru", [gx.detach(), w_hh, b_hh, start[0]], shapes, flags)
        shapes = [f32(t, b, 3 * h), f32(t, b, 3 * h), f32(b, h)]
        dgx, dgh, dh0 = run("gru_grad", [dh, dh_last, w_hh, hs, saved, start[0]], shapes, flags)
        before = torch.cat((h0.detach(), flip(hs)[:-1]))
        dw = flip(dgh).flatten(0, 1).T @ before.flatten(0, 1)
        got = (dgx, dgh.sum((0, 1)), dw, dh0)
    same(hs, flip(out).detach())
    for ours, theirs in zip(got, want, strict=True):
        same(ours, theirs)


def test_outputs_share_no_memory():
    x = rand(2, 3)
    p = Builder()
    p.load(0, "f32")
    attrs = {"shape": (2, 3), "axes": (), "program": p.program, "stores": (Store(0), Store(0))}
    graph, _ = make("map", [x.numpy()], None, [f32(2, 3), f32(6)], attrs)
    a, b = run_node(graph.nodes[0], graph, {0: x}, torch.float64)
    assert torch.equal(a, x) and torch.equal(b, x.reshape(-1))
    assert len({t.data_ptr() for t in (x, a, b)}) == 3


def test_every_op_has_a_reference():
    from handheld.backends.reference import ops

    assert set(ops._OPS) | {"map", "reduce"} == set(OPS)

"""Records nn.LSTM and nn.GRU as single ops: one node per layer and direction, forward and backward.

While a step is being captured, the functions behind nn.LSTM and nn.GRU are replaced. The replacements compute the
input part of all gates in one matrix product, and the recurrence in a custom op with its own gradient. Cases that
they do not cover (projections, packed sequences) are left to PyTorch, which unrolls them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F

from handheld.frontend.record import Recorder
from handheld.frontend.registry import lowering
from handheld.graph.dtypes import F32

T = torch.Tensor


def _steps(t: int, reverse: bool) -> Sequence[int]:
    return range(t - 1, -1, -1) if reverse else range(t)


@torch.library.custom_op("handheld::lstm", mutates_args=())
def lstm_op(gx: T, w: T, h0: T, c0: T, reverse: bool) -> tuple[T, T, T]:
    h, c = h0, c0
    hs, cs, gates = (torch.empty(*gx.shape[:2], n, dtype=gx.dtype) for n in (w.shape[1], w.shape[1], w.shape[0]))
    for t in _steps(gx.shape[0], reverse):
        i, f, g, o = (gx[t] + h @ w.t()).chunk(4, 1)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        c = f * c + i * g
        h = o * c.tanh()
        hs[t], cs[t], gates[t] = h, c, torch.cat([i, f, g, o], 1)
    return hs, cs, gates


@torch.library.custom_op("handheld::lstm_grad", mutates_args=())
def lstm_grad_op(dh: T, dh_last: T, dc_last: T, w: T, c: T, gates: T, c0: T, reverse: bool) -> tuple[T, T, T]:
    order = list(_steps(dh.shape[0], reverse))
    dgx, dhn, dcn = torch.empty_like(gates), dh_last, dc_last
    for n in reversed(range(len(order))):
        t = order[n]
        before = c[order[n - 1]] if n else c0
        i, f, g, o = gates[t].chunk(4, 1)
        tanh = c[t].tanh()
        total = dh[t] + dhn
        dc = dcn + total * o * (1 - tanh * tanh)
        dgx[t] = torch.cat(
            [dc * g * i * (1 - i), dc * before * f * (1 - f), dc * i * (1 - g * g), total * tanh * o * (1 - o)], 1
        )
        dhn, dcn = dgx[t] @ w, dc * f
    return dgx, dhn.clone(), dcn.clone()


@torch.library.custom_op("handheld::gru", mutates_args=())
def gru_op(gx: T, w: T, bias: T, h0: T, reverse: bool) -> tuple[T, T]:
    h, size = h0, w.shape[1]
    hs, saved = (torch.empty(*gx.shape[:2], n, dtype=gx.dtype) for n in (size, 4 * size))
    for t in _steps(gx.shape[0], reverse):
        xr, xz, xn = gx[t].chunk(3, 1)
        hr, hz, hn = (h @ w.t() + bias).chunk(3, 1)
        r, z = (xr + hr).sigmoid(), (xz + hz).sigmoid()
        n = (xn + r * hn).tanh()
        h = (1 - z) * n + z * h
        hs[t], saved[t] = h, torch.cat([r, z, n, hn], 1)
    return hs, saved


@torch.library.custom_op("handheld::gru_grad", mutates_args=())
def gru_grad_op(dh: T, dh_last: T, w: T, h: T, saved: T, h0: T, reverse: bool) -> tuple[T, T, T]:
    order = list(_steps(dh.shape[0], reverse))
    shape = (*dh.shape[:2], 3 * dh.shape[2])
    dgx, dgh, back = torch.empty(shape, dtype=dh.dtype), torch.empty(shape, dtype=dh.dtype), dh_last
    for k in reversed(range(len(order))):
        t = order[k]
        before = h[order[k - 1]] if k else h0
        r, z, n, hn = saved[t].chunk(4, 1)
        total = dh[t] + back
        dn = total * (1 - z) * (1 - n * n)
        dz = total * (before - n) * z * (1 - z)
        dr = dn * hn * r * (1 - r)
        dgx[t], dgh[t] = torch.cat([dr, dz, dn], 1), torch.cat([dr, dz, dn * r], 1)
        back = total * z + dgh[t] @ w
    return dgx, dgh, back.clone()


@lstm_op.register_fake
def _(gx: T, w: T, h0: T, c0: T, reverse: bool) -> tuple[T, T, T]:
    h = (*gx.shape[:2], w.shape[1])
    return gx.new_empty(h), gx.new_empty(h), gx.new_empty(gx.shape)


@lstm_grad_op.register_fake
def _(dh: T, dh_last: T, dc_last: T, w: T, c: T, gates: T, c0: T, reverse: bool) -> tuple[T, T, T]:
    return dh.new_empty(gates.shape), dh.new_empty(c0.shape), dh.new_empty(c0.shape)


@gru_op.register_fake
def _(gx: T, w: T, bias: T, h0: T, reverse: bool) -> tuple[T, T]:
    return gx.new_empty((*gx.shape[:2], w.shape[1])), gx.new_empty((*gx.shape[:2], 4 * w.shape[1]))


@gru_grad_op.register_fake
def _(dh: T, dh_last: T, w: T, h: T, saved: T, h0: T, reverse: bool) -> tuple[T, T, T]:
    gate = (*dh.shape[:2], 3 * dh.shape[2])
    return dh.new_empty(gate), dh.new_empty(gate), dh.new_empty(h0.shape)


@lowering("handheld.lstm.default", "handheld.lstm_grad.default", "handheld.gru.default", "handheld.gru_grad.default")
def recurrent(rec: Recorder, out: tuple[T, ...], *args: Any) -> None:
    *tensors, reverse = args
    inputs = [rec.contiguous(rec.read(t)) for t in tensors]
    shapes = [(tuple(o.shape), F32) for o in out]
    numbers = rec.emit(rec.torch_op.split(".")[1], inputs, shapes, {"reverse": bool(reverse)})
    for o, tensor in zip(out, numbers, strict=True):
        rec.bind(o, rec.dense(tensor))


def _previous(h: T, h0: T, reverse: bool) -> T:
    """Returns the hidden state before each time step."""
    return torch.cat([h[1:], h0[None]]) if reverse else torch.cat([h0[None], h[:-1]])


class _Lstm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gx: T, w: T, h0: T, c0: T, reverse: bool) -> tuple[T, T]:
        h, c, gates = torch.ops.handheld.lstm(gx, w, h0, c0, reverse)
        ctx.save_for_backward(w, h, c, gates, h0, c0)
        ctx.reverse = reverse
        return h, c[0 if reverse else -1].clone()

    @staticmethod
    def backward(ctx: Any, dh: T, dc: T) -> Any:
        w, h, c, gates, h0, c0 = ctx.saved_tensors
        zero = torch.zeros_like(h0)
        dgx, dh0, dc0 = torch.ops.handheld.lstm_grad(dh, zero, dc, w, c, gates, c0, ctx.reverse)
        dw = None
        if ctx.needs_input_grad[1]:
            dw = dgx.flatten(0, 1).t() @ _previous(h, h0, ctx.reverse).flatten(0, 1)
        return dgx, dw, dh0, dc0, None


class _Gru(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gx: T, w: T, bias: T, h0: T, reverse: bool) -> T:
        h: T
        h, saved = torch.ops.handheld.gru(gx, w, bias, h0, reverse)
        ctx.save_for_backward(w, h, saved, h0)
        ctx.reverse = reverse
        return h

    @staticmethod
    def backward(ctx: Any, dh: T) -> Any:
        w, h, saved, h0 = ctx.saved_tensors
        dgx, dgh, dh0 = torch.ops.handheld.gru_grad(dh, torch.zeros_like(h0), w, h, saved, h0, ctx.reverse)
        dw = db = None
        if ctx.needs_input_grad[1]:
            dw = dgh.flatten(0, 1).t() @ _previous(h, h0, ctx.reverse).flatten(0, 1)
        if ctx.needs_input_grad[2]:
            db = dgh.sum((0, 1))
        return dgx, dw, db, dh0, None


def _layers(
    cell: Callable[..., tuple[T, list[T]]],
    x: T,
    states: Sequence[T],
    weights: Sequence[T],
    biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[T, list[T]]:
    """Runs all layers and directions with `cell` as the recurrence. Returns the outputs and the final states."""
    per, directions = (4 if biases else 2), (2 if bidirectional else 1)
    x = x.transpose(0, 1) if batch_first else x
    last: list[list[T]] = [[] for _ in states]
    for layer in range(layers):
        outs = []
        for direction in range(directions):
            k = layer * directions + direction
            group = weights[k * per : (k + 1) * per]
            y, final = cell(x, [s[k] for s in states], group, direction == 1)
            outs.append(y)
            for store, value in zip(last, final, strict=True):
                store.append(value)
        x = torch.cat(outs, 2) if directions == 2 else outs[0]
        if dropout and train and layer < layers - 1:
            x = F.dropout(x, dropout, True)
    return (x.transpose(0, 1) if batch_first else x), [torch.stack(s) for s in last]


def _lstm_cell(x: T, states: Sequence[T], group: Sequence[T], reverse: bool) -> tuple[T, list[T]]:
    bias = group[2] + group[3] if len(group) == 4 else None
    gx = F.linear(x, group[0], bias)
    h, c_last = _Lstm.apply(gx, group[1], states[0], states[1], reverse)  # type: ignore[no-untyped-call]
    return h, [h[0 if reverse else -1], c_last]


def _gru_cell(x: T, states: Sequence[T], group: Sequence[T], reverse: bool) -> tuple[T, list[T]]:
    gx = F.linear(x, group[0], group[2] if len(group) == 4 else None)
    bias = group[3] if len(group) == 4 else torch.zeros(group[1].shape[0])
    h = _Gru.apply(gx, group[1], bias, states[0], reverse)  # type: ignore[no-untyped-call]
    return h, [h[0 if reverse else -1]]


@contextmanager
def single_op_recurrence() -> Iterator[None]:
    """While active, nn.LSTM and nn.GRU run as single ops per layer."""
    original = {name: getattr(torch._VF, name) for name in ("lstm", "gru")}

    def lstm(*args: Any) -> Any:
        plain = len(args) == 9 and isinstance(args[1], (tuple, list))
        if not plain or len(args[2]) != args[4] * (2 if args[7] else 1) * (4 if args[3] else 2):
            return original["lstm"](*args)
        x, hx, weights, *rest = args
        y, (h, c) = _layers(_lstm_cell, x, hx, weights, *rest)
        return y, h, c

    def gru(*args: Any) -> Any:
        if len(args) != 9 or not isinstance(args[2], (tuple, list)):
            return original["gru"](*args)
        x, hx, weights, *rest = args
        y, (h,) = _layers(_gru_cell, x, [hx], weights, *rest)
        return y, h

    for name, function in (("lstm", lstm), ("gru", gru)):
        setattr(torch._VF, name, function)
    try:
        yield
    finally:
        for name in original:
            delattr(torch._VF, name)

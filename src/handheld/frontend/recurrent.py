"""Records nn.LSTM and nn.GRU as single ops: one node per layer and direction, forward and backward.

While a step is being captured, the functions behind nn.LSTM and nn.GRU are replaced. The replacements compute the
input part of all gates in one matrix product, and the recurrence in a custom op with its own gradient. Projections
are left to PyTorch, which unrolls them.

A packed sequence (packed.py) runs over all padded steps. After the end of a sequence the gates are closed: the input
part of each gate is a large number, so that the state is kept exactly and its gradient passes unchanged. nn.RNN with
tanh is then a GRU whose reset gate is open and whose update gate is closed. Layers without gates are unrolled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F

from handheld.frontend.packed import Lengths, refuse_packed
from handheld.frontend.packed_rows import Rows
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
    lengths: Lengths | None = None,
) -> tuple[T, list[T]]:
    """Runs all layers and directions with `cell` as the recurrence. Returns the outputs and the final states."""
    directions = 2 if bidirectional else 1
    per = len(weights) // (layers * directions)
    x = x.transpose(0, 1) if batch_first else x
    last: list[list[T]] = [[] for _ in states]
    for layer in range(layers):
        outs = []
        for direction in range(directions):
            k = layer * directions + direction
            group = weights[k * per : (k + 1) * per]
            y, final = cell(x, [s[k] for s in states], group, biases, direction == 1, lengths)
            outs.append(y)
            for store, value in zip(last, final, strict=True):
                store.append(value)
        x = torch.cat(outs, 2) if directions == 2 else outs[0]
        if dropout and train and layer < layers - 1:
            x = F.dropout(x, dropout, True)
    return (x.transpose(0, 1) if batch_first else x), [torch.stack(s) for s in last]


#: Large enough to close or open a gate: its sigmoid is exactly 0 or 1.
_FAR = 1e4


def _closed(gx: T, gates: Sequence[float], lengths: Lengths) -> T:
    """Returns gx[t, n, gates] with these numbers as the input part of the gates outside the sequences."""
    parts = gx.reshape(*gx.shape[:2], len(gates), -1)
    return lengths.keep(parts, torch.tensor(gates).unsqueeze(1)).flatten(2)


def _at_end(h: T, lengths: Lengths) -> T:
    """Returns the row of each sequence's last step."""
    return torch.where(lengths.last.unsqueeze(2), h, 0.0).sum(0)


def _lstm_cell(
    x: T, states: Sequence[T], group: Sequence[T], biases: bool, reverse: bool, lengths: Lengths | None
) -> tuple[T, list[T]]:
    h0, c0 = states
    gx = F.linear(x, group[0], group[2] + group[3] if biases else None)
    if lengths is not None:
        gx = _closed(gx, (-_FAR, _FAR, 0.0, -_FAR), lengths)
        if reverse and not lengths.is_zero(h0):
            # The padding comes first and closes the output gate, so the first step of a sequence gets h0 here.
            first = lengths.last & (lengths.lengths < lengths.steps)
            gx = gx + torch.where(first.unsqueeze(2), F.linear(h0, group[1]), 0.0)
    h, c_last = _Lstm.apply(gx, group[1], h0, c0, reverse)  # type: ignore[no-untyped-call]
    if lengths is not None and not reverse:
        return h, [_at_end(h, lengths), c_last]
    return h, [h[0 if reverse else -1], c_last]


def _gru_cell(
    x: T, states: Sequence[T], group: Sequence[T], biases: bool, reverse: bool, lengths: Lengths | None
) -> tuple[T, list[T]]:
    gx = F.linear(x, group[0], group[2] if biases else None)
    if lengths is not None:
        gx = _closed(gx, (0.0, _FAR, 0.0), lengths)
    bias = group[3] if biases else torch.zeros(group[1].shape[0])
    h = _Gru.apply(gx, group[1], bias, states[0], reverse)  # type: ignore[no-untyped-call]
    return h, [h[0 if reverse else -1]]


def _tanh_cell(
    x: T, states: Sequence[T], group: Sequence[T], biases: bool, reverse: bool, lengths: Lengths
) -> tuple[T, list[T]]:
    """Runs nn.RNN with tanh as a GRU with h = n: its reset gate is 1, and its update gate 0 inside the sequences."""
    gx, w = F.linear(x, group[0], group[2] if biases else None), group[1]
    gate = torch.full_like(gx, _FAR)
    gates = torch.cat([gate, lengths.keep(-gate, _FAR), lengths.keep(gx, 0.0)], 2)
    none = w.new_zeros(2 * w.shape[0])
    bias = torch.cat([none, group[3] if biases else w.new_zeros(w.shape[0])])
    whole = torch.cat([none.unsqueeze(1).expand(-1, w.shape[1]), w])
    h = _Gru.apply(gates, whole, bias, states[0], reverse)  # type: ignore[no-untyped-call]
    return h, [h[0 if reverse else -1]]


def _relu_step(gates: T, states: Sequence[T], group: Sequence[T]) -> list[T]:
    return [gates.relu()]


def _projected_step(gates: T, states: Sequence[T], group: Sequence[T]) -> list[T]:
    i, f, g, o = gates.chunk(4, 1)
    c = f.sigmoid() * states[1] + i.sigmoid() * g.tanh()
    return [F.linear(o.sigmoid() * c.tanh(), group[-1]), c]


def _unrolled(step: Callable[[T, Sequence[T], Sequence[T]], list[T]]) -> Callable[..., tuple[T, list[T]]]:
    """Returns a cell that runs one time step after the other, and keeps the states outside the sequences."""

    def cell(
        x: T, states: Sequence[T], group: Sequence[T], biases: bool, reverse: bool, lengths: Lengths
    ) -> tuple[T, list[T]]:
        gx = F.linear(x, group[0], group[2] + group[3] if biases else None)
        rows: list[T] = []
        for t in _steps(lengths.steps, reverse):
            new = step(gx[t] + F.linear(states[0], group[1]), states, group)
            valid = lengths.valid[t].unsqueeze(1)
            states = [torch.where(valid, value, old) for value, old in zip(new, states, strict=True)]
            rows.append(states[0])
        return torch.stack(rows[::-1] if reverse else rows), list(states)

    return cell


def _packed(cell: Callable[..., tuple[T, list[T]]], states: Sequence[T], args: Sequence[Any]) -> tuple[Any, ...]:
    """Runs the layers on a packed sequence. Returns its rows and the final states."""
    data, lengths, _, weights, biases, layers, dropout, train, bidirectional = args
    if not isinstance(lengths, Lengths) or not isinstance(data, Rows):
        refuse_packed("a recurrent layer")
    y, last = _layers(cell, data.padded, states, weights, biases, layers, dropout, train, bidirectional, False, lengths)
    return Rows(y, lengths), *last


@contextmanager
def single_op_recurrence() -> Iterator[None]:
    """While active, nn.LSTM and nn.GRU run as single ops per layer, and packed sequences keep their padding."""
    original = {name: getattr(torch._VF, name) for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")}

    def lstm(*args: Any) -> Any:
        packed = _is_packed(args)
        weights, biases, layers, _, _, bidirectional = args[3:] if packed else args[2:8]
        projected = len(weights) != layers * (2 if bidirectional else 1) * (4 if biases else 2)
        if packed:
            return _packed(_unrolled(_projected_step) if projected else _lstm_cell, args[2], args)
        if projected:
            return original["lstm"](*args)
        x, hx, _, *rest = args
        y, (h, c) = _layers(_lstm_cell, x, hx, weights, *rest)
        return y, h, c

    def gru(*args: Any) -> Any:
        if _is_packed(args):
            return _packed(_gru_cell, [args[2]], args)
        x, hx, weights, *rest = args
        y, (h,) = _layers(_gru_cell, x, [hx], weights, *rest)
        return y, h

    def rnn_tanh(*args: Any) -> Any:
        return _packed(_tanh_cell, [args[2]], args) if _is_packed(args) else original["rnn_tanh"](*args)

    def rnn_relu(*args: Any) -> Any:
        packed = _is_packed(args)
        return _packed(_unrolled(_relu_step), [args[2]], args) if packed else original["rnn_relu"](*args)

    for function in (lstm, gru, rnn_tanh, rnn_relu):
        setattr(torch._VF, function.__name__, function)
    try:
        yield
    finally:
        for name in original:
            delattr(torch._VF, name)


def _is_packed(args: Sequence[Any]) -> bool:
    """Says whether these are the arguments for a packed sequence: the weights come fourth instead of third."""
    return isinstance(args[3], (tuple, list))

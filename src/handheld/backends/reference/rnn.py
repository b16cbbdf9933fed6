"""LSTM and GRU layers and their gradients on PyTorch tensors, one time step after the other."""

from __future__ import annotations

from collections.abc import Sequence

import torch

T = torch.Tensor


def _order(length: int, reverse: bool) -> list[int]:
    return list(range(length))[:: -1 if reverse else 1]


def lstm(inputs: Sequence[T], reverse: bool) -> tuple[T, T, T]:
    """Returns h, c and the activated gates i, f, g, o of every time step."""
    gx, w, h0, c0 = inputs
    hs, cs = gx.new_empty(gx.shape[0], *h0.shape), gx.new_empty(gx.shape[0], *h0.shape)
    gates = torch.empty_like(gx)
    h, c = h0, c0
    for t in _order(gx.shape[0], reverse):
        i, f, g, o = (gx[t] + h @ w.T).chunk(4, dim=-1)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        c = f * c + i * g
        h = o * c.tanh()
        hs[t], cs[t], gates[t] = h, c, torch.cat((i, f, g, o), dim=-1)
    return hs, cs, gates


def lstm_grad(inputs: Sequence[T], reverse: bool) -> tuple[T, T, T]:
    """Returns the gradients of gx, h0 and c0."""
    dh, dh_last, dc_last, w, c, gates, c0 = inputs
    order = _order(dh.shape[0], reverse)
    before = dict(zip(order[1:], order, strict=False))  # time step -> the one before it
    dgx, dh_next, dc_next = torch.empty_like(gates), dh_last, dc_last
    for t in reversed(order):
        i, f, g, o = gates[t].chunk(4, dim=-1)
        c_old = c[before[t]] if t in before else c0
        tanh_c = c[t].tanh()
        dht = dh[t] + dh_next
        dc = dc_next + dht * o * (1 - tanh_c * tanh_c)
        dgx[t] = torch.cat(
            (dc * g * i * (1 - i), dc * c_old * f * (1 - f), dc * i * (1 - g * g), dht * tanh_c * o * (1 - o)), dim=-1
        )
        dh_next, dc_next = dgx[t] @ w, dc * f
    return dgx, dh_next, dc_next


def gru(inputs: Sequence[T], reverse: bool) -> tuple[T, T]:
    """Returns h of every time step, and r, z, n and the hidden part of n."""
    gx, w, bias, h0 = inputs
    hs = gx.new_empty(gx.shape[0], *h0.shape)
    saved = gx.new_empty(gx.shape[0], h0.shape[0], 4 * h0.shape[1])
    h = h0
    for t in _order(gx.shape[0], reverse):
        xr, xz, xn = gx[t].chunk(3, dim=-1)
        hr, hz, hn = (h @ w.T + bias).chunk(3, dim=-1)
        r, z = (xr + hr).sigmoid(), (xz + hz).sigmoid()
        n = (xn + r * hn).tanh()
        h = (1 - z) * n + z * h
        hs[t], saved[t] = h, torch.cat((r, z, n, hn), dim=-1)
    return hs, saved


def gru_grad(inputs: Sequence[T], reverse: bool) -> tuple[T, T, T]:
    """Returns the gradients of gx, of w h + bias and of h0."""
    dh, dh_last, w, h, saved, h0 = inputs
    order = _order(dh.shape[0], reverse)
    before = dict(zip(order[1:], order, strict=False))
    dgx = dh.new_empty(dh.shape[0], h0.shape[0], 3 * h0.shape[1])
    dgh, dh_next = torch.empty_like(dgx), dh_last
    for t in reversed(order):
        r, z, n, hn = saved[t].chunk(4, dim=-1)
        h_old = h[before[t]] if t in before else h0
        dht = dh[t] + dh_next
        dn = dht * (1 - z) * (1 - n * n)
        dr, dz = dn * hn * r * (1 - r), dht * (h_old - n) * z * (1 - z)
        dgx[t], dgh[t] = torch.cat((dr, dz, dn), dim=-1), torch.cat((dr, dz, dn * r), dim=-1)
        dh_next = dgh[t] @ w + dht * z
    return dgx, dgh, dh_next

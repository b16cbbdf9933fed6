"""LSTM, GRU and CTC layers and their gradients with NumPy, one time step after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Attrs = Mapping[str, Any]


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _order(length: int, attrs: Attrs) -> list[int]:
    return list(range(length))[:: -1 if attrs["reverse"] else 1]


def _lstm(attrs: Attrs, gx: Array, w: Array, h0: Array, c0: Array) -> list[Array]:
    hs, cs, gates = np.empty((len(gx), *h0.shape)), np.empty((len(gx), *h0.shape)), np.empty_like(gx)
    h, c = h0, c0
    for t in _order(len(gx), attrs):
        i, f, g, o = np.split(gx[t] + h @ w.T, 4, -1)
        i, f, g, o = _sigmoid(i), _sigmoid(f), np.tanh(g), _sigmoid(o)
        c = f * c + i * g
        h = o * np.tanh(c)
        hs[t], cs[t], gates[t] = h, c, np.concatenate((i, f, g, o), -1)
    return [hs, cs, gates]


def _lstm_grad(
    attrs: Attrs, dh: Array, dh_last: Array, dc_last: Array, w: Array, c: Array, gates: Array, c0: Array
) -> list[Array]:
    order = _order(len(dh), attrs)
    before = dict(zip(order[1:], order, strict=False))
    dgx, dh_next, dc_next = np.empty_like(gates), dh_last, dc_last
    for t in reversed(order):
        i, f, g, o = np.split(gates[t], 4, -1)
        c_old, tanh_c = c[before[t]] if t in before else c0, np.tanh(c[t])
        dht = dh[t] + dh_next
        dc = dc_next + dht * o * (1 - tanh_c * tanh_c)
        parts = (dc * g * i * (1 - i), dc * c_old * f * (1 - f), dc * i * (1 - g * g), dht * tanh_c * o * (1 - o))
        dgx[t] = np.concatenate(parts, -1)
        dh_next, dc_next = dgx[t] @ w, dc * f
    return [dgx, dh_next, dc_next]


def _gru(attrs: Attrs, gx: Array, w: Array, bias: Array, h0: Array) -> list[Array]:
    hs = np.empty((len(gx), *h0.shape))
    saved = np.empty((len(gx), h0.shape[0], 4 * h0.shape[1]))
    h = h0
    for t in _order(len(gx), attrs):
        xr, xz, xn = np.split(gx[t], 3, -1)
        hr, hz, hn = np.split(h @ w.T + bias, 3, -1)
        r, z = _sigmoid(xr + hr), _sigmoid(xz + hz)
        n = np.tanh(xn + r * hn)
        h = (1 - z) * n + z * h
        hs[t], saved[t] = h, np.concatenate((r, z, n, hn), -1)
    return [hs, saved]


def _gru_grad(attrs: Attrs, dh: Array, dh_last: Array, w: Array, h: Array, saved: Array, h0: Array) -> list[Array]:
    order = _order(len(dh), attrs)
    before = dict(zip(order[1:], order, strict=False))
    dgx = np.empty((len(dh), h0.shape[0], 3 * h0.shape[1]))
    dgh, dh_next = np.empty_like(dgx), dh_last
    for t in reversed(order):
        r, z, n, hn = np.split(saved[t], 4, -1)
        h_old = h[before[t]] if t in before else h0
        dht = dh[t] + dh_next
        dn = dht * (1 - z) * (1 - n * n)
        dr, dz = dn * hn * r * (1 - r), dht * (h_old - n) * z * (1 - z)
        dgx[t], dgh[t] = np.concatenate((dr, dz, dn), -1), np.concatenate((dr, dz, dn * r), -1)
        dh_next = dgh[t] @ w + dht * z
    return [dgx, dgh, dh_next]


def _paths(attrs: Attrs, logp: Array, labels: Array) -> tuple[Array, Array, Array]:
    """The states of an alignment (blank, label, blank, ...), and for each step and state the log of the sum over the
    alignments up to there, and over those from there on."""
    states = np.full(2 * len(labels) + 1, attrs["blank"])
    states[1::2] = labels
    skips = np.zeros(len(states), bool)
    skips[3::2] = labels[1:] != labels[:-1]
    scores = logp[:, states]

    def walk(scores: Array, skips: Array) -> Array:
        sums = np.full(scores.shape, -np.inf)
        sums[0, :2] = scores[0, :2]
        for t in range(1, len(scores)):
            one, two = np.full_like(sums[0], -np.inf), np.full_like(sums[0], -np.inf)
            one[1:] = sums[t - 1, :-1]
            two[2:] = np.where(skips[2:], sums[t - 1, :-2], -np.inf)
            sums[t] = scores[t] + np.logaddexp(np.logaddexp(sums[t - 1], one), two)
        return sums

    back = np.zeros_like(skips)
    back[2:] = skips[::-1][:-2]  # From the end, a skip begins at the state where it ended.
    return states, walk(scores, skips), walk(scores[::-1, ::-1], back)[::-1, ::-1]


def _samples(logp: Array, targets: Array, inputs: Array, lengths: Array) -> Any:
    for n in range(logp.shape[1]):
        yield n, logp[: inputs[n], n], targets[n, : lengths[n]]


def _ctc(attrs: Attrs, logp: Array, targets: Array, inputs: Array, lengths: Array) -> list[Array]:
    loss = np.empty(logp.shape[1])
    for n, own, labels in _samples(logp, targets, inputs, lengths):
        _, forward, _ = _paths(attrs, own, labels)
        loss[n] = -np.logaddexp(forward[-1, -1], forward[-1, -2])
    return [loss]


def _ctc_grad(attrs: Attrs, d: Array, logp: Array, targets: Array, inputs: Array, lengths: Array) -> list[Array]:
    grad = np.zeros_like(logp)
    for n, own, labels in _samples(logp, targets, inputs, lengths):
        states, forward, backward = _paths(attrs, own, labels)
        total = np.logaddexp(forward[-1, -1], forward[-1, -2])
        share = np.exp(forward + backward - own[:, states] - total)
        grad[: len(own), n] = np.exp(own)
        for state, label in enumerate(states):
            grad[: len(own), n, label] -= share[:, state]
        grad[: len(own), n] *= d[n]
    return [grad]


OPS: dict[str, Callable[..., list[Array]]] = {
    "lstm": _lstm,
    "lstm_grad": _lstm_grad,
    "gru": _gru,
    "gru_grad": _gru_grad,
    "ctc": _ctc,
    "ctc_grad": _ctc_grad,
}

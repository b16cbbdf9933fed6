"""Computes nodes with NumPy in float64, for checking a driver where PyTorch is not installed.

Every op of graph/ops.py is here, for the attributes that sketches.py uses: no dropout, no `divisor`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from handheld.drivers import numpy_recurrent
from handheld.graph.dtypes import F16
from handheld.graph.evaluate import evaluate
from handheld.graph.graph import Graph, Node, View
from handheld.graph.ops import OPS

Array = npt.NDArray[Any]
Attrs = Mapping[str, Any]


def run_graph(graph: Graph, inputs: Mapping[int, Array]) -> dict[int, Array]:
    """The value of every tensor, from those of the inputs. Floats are float64, except after a program."""
    values = {i: _wide(np.asarray(x)) for i, x in inputs.items()}
    for node in graph.nodes:
        for tensor, value in zip(node.outputs, run_node(node, graph, values), strict=True):
            record = graph.tensors[tensor]
            values[tensor] = _stored(np.asarray(value), record.dtype).reshape(record.shape)
    return values


def run_node(node: Node, graph: Graph, values: Mapping[int, Array]) -> list[Array]:
    """The outputs of a node."""
    if node.op in ("map", "reduce"):
        return evaluate(node, graph, values)
    own = node.inputs if OPS[node.op].inputs is None else node.inputs[: OPS[node.op].inputs]
    halves = node.attrs.get("arithmetic") == "half"  # Operands are rounded to halves.
    with np.errstate(all="ignore"):
        given = (_view(view, values) for view in own)
        results = _OPS[node.op](node.attrs, *(_stored(x, F16) if halves else x for x in given))
    return evaluate(node, graph, values, results[0]) if OPS[node.op].epilogue else results


def _wide(x: Array) -> Array:
    return x.astype(np.float64) if x.dtype.kind == "f" else x


def _stored(x: Array, dtype: str) -> Array:
    """A value as it is when it is read again."""
    with np.errstate(over="ignore"):
        return _wide(x.astype(np.float16) if dtype == F16 else x)


def _view(view: View, values: Mapping[int, Array]) -> Array:
    buffer = np.ascontiguousarray(values[view.tensor]).reshape(-1)
    step = buffer.itemsize
    return np.ndarray(view.shape, buffer.dtype, buffer, view.offset * step, tuple(s * step for s in view.strides))


def _matmul(attrs: Attrs, a: Array, b: Array) -> list[Array]:
    return [a @ b]


def _taps(attrs: Attrs, image: tuple[int, ...], kernel: tuple[int, ...], out: tuple[int, ...]) -> Any:
    """For each tap (r, s) of a window: the slices of the padded image that it reads, one pixel per output."""
    (sh, sw), (dh, dw) = attrs["stride"], attrs.get("dilation", (1, 1))
    for r in range(kernel[0]):
        for s in range(kernel[1]):
            rows = slice(r * dh, r * dh + (out[0] - 1) * sh + 1, sh)
            columns = slice(s * dw, s * dw + (out[1] - 1) * sw + 1, sw)
            yield r, s, (slice(None), slice(None), rows, columns)


def _padded(x: Array, attrs: Attrs, fill: float = 0.0) -> Array:
    """The image with a border. It is wide enough for windows that end outside."""
    (ph, pw), more = attrs["padding"], 8
    return np.pad(x, ((0, 0), (0, 0), (ph, ph + more), (pw, pw + more)), constant_values=fill)


def _inner(x: Array, attrs: Attrs, size: tuple[int, ...]) -> Array:
    ph, pw = attrs["padding"]
    return x[:, :, ph : ph + size[0], pw : pw + size[1]]


def _groups(x: Array, groups: int) -> Array:
    return x.reshape(x.shape[0], groups, -1, *x.shape[2:])


def _conv(attrs: Attrs, x: Array, w: Array) -> list[Array]:
    n, k, p, q = attrs["shape"]
    groups, wide = attrs["groups"], _padded(x, attrs)
    filters = w.reshape(groups, k // groups, *w.shape[1:])
    y = np.zeros((n, groups, k // groups, p, q))
    for r, s, at in _taps(attrs, x.shape[2:], w.shape[2:], (p, q)):
        y += np.einsum("ngcpq,gkc->ngkpq", _groups(wide[at], groups), filters[..., r, s], optimize=True)
    return [y.reshape(n, k, p, q)]


def _conv_input(attrs: Attrs, dy: Array, w: Array) -> list[Array]:
    shape, groups = attrs["shape"], attrs["groups"]
    wide = _padded(np.zeros(shape), attrs)
    filters = w.reshape(groups, -1, *w.shape[1:])
    for r, s, at in _taps(attrs, shape[2:], w.shape[2:], dy.shape[2:]):
        part = np.einsum("ngkpq,gkc->ngcpq", _groups(dy, groups), filters[..., r, s], optimize=True)
        wide[at] += part.reshape(wide[at].shape)
    return [_inner(wide, attrs, shape[2:])]


def _conv_weight(attrs: Attrs, dy: Array, x: Array) -> list[Array]:
    shape, groups, wide = attrs["shape"], attrs["groups"], _padded(x, attrs)
    dw = np.zeros((groups, shape[0] // groups, *shape[1:]))
    for r, s, at in _taps(attrs, x.shape[2:], shape[2:], dy.shape[2:]):
        dw[..., r, s] = np.einsum("ngkpq,ngcpq->gkc", _groups(dy, groups), _groups(wide[at], groups), optimize=True)
    return [dw.reshape(shape)]


def _max_pool(attrs: Attrs, x: Array) -> list[Array]:
    out, (h, w) = attrs["shape"][2:], x.shape[2:]
    wide = _padded(x, attrs, -math.inf)
    ph, pw = attrs["padding"]
    place = (np.arange(wide.shape[2])[:, None] - ph) * w + np.arange(wide.shape[3]) - pw
    places = np.broadcast_to(place, wide.shape)
    taps = list(_taps(attrs, (h, w), attrs["kernel"], out))
    values, where = (np.stack([array[at] for _, _, at in taps]) for array in (wide, places))
    best = values.argmax(0)[None]
    return [np.take_along_axis(values, best, 0)[0], np.take_along_axis(where, best, 0)[0].astype(np.int32)]


def _max_pool_grad(attrs: Attrs, dy: Array, index: Array) -> list[Array]:
    n, c, h, w = attrs["shape"]
    dx = np.zeros((n * c, h * w))
    rows = np.arange(n * c)[:, None]
    np.add.at(dx, (rows, index.reshape(n * c, -1)), dy.reshape(n * c, -1))
    return [dx.reshape(n, c, h, w)]


def _counts(attrs: Attrs, image: tuple[int, ...], out: tuple[int, ...]) -> Array:
    """The divisor of each window."""
    sizes = []
    for i in (0, 1):
        begin = np.arange(out[i]) * attrs["stride"][i] - attrs["padding"][i]
        end = np.minimum(begin + attrs["kernel"][i], image[i] + attrs["padding"][i])
        if not attrs["count_pad"]:
            begin, end = np.maximum(begin, 0), np.minimum(end, image[i])
        sizes.append(end - begin)
    return np.outer(*sizes)


def _avg_pool(attrs: Attrs, x: Array) -> list[Array]:
    out, wide = attrs["shape"][2:], _padded(x, attrs)
    total = sum(wide[at] for _, _, at in _taps(attrs, x.shape[2:], attrs["kernel"], out))
    return [total / _counts(attrs, x.shape[2:], out)]


def _avg_pool_grad(attrs: Attrs, dy: Array) -> list[Array]:
    shape, out = attrs["shape"], dy.shape[2:]
    wide, share = _padded(np.zeros(shape), attrs), dy / _counts(attrs, shape[2:], out)
    for _, _, at in _taps(attrs, shape[2:], attrs["kernel"], out):
        wide[at] += share
    return [_inner(wide, attrs, shape[2:])]


def _scatter(attrs: Attrs, index: Array, src: Array, *base: Array) -> list[Array]:
    out = base[0].copy() if base else np.zeros(attrs["shape"], src.dtype)
    first, last = np.arange(src.shape[0])[:, None], np.arange(src.shape[2])[None, :]
    for k in range(src.shape[1]):
        at = (first, index[:, k, :], last)
        used = index[:, k, :] >= 0
        out[at] = np.where(used, out[at] + src[:, k, :] if attrs["mode"] == "add" else src[:, k, :], out[at])
    return [out]


def _assign(attrs: Attrs, base: Array, value: Array) -> list[Array]:
    out = base.copy()
    flat, step = out.reshape(-1), out.itemsize
    strides = tuple(s * step for s in attrs["region_strides"])
    region: Array = np.ndarray(attrs["region_shape"], out.dtype, flat, attrs["region_offset"] * step, strides)
    region[...] = value
    return [out]


def _scan(attrs: Attrs, x: Array) -> list[Array]:
    run: dict[str, Callable[..., Array]] = {
        "add": np.cumsum,
        "mul": np.cumprod,
        "max": np.maximum.accumulate,
        "min": np.minimum.accumulate,
    }
    turn = (slice(None), slice(None, None, -1 if attrs["reverse"] else 1))
    return [run[attrs["mode"]](x[turn], axis=1)[turn]]


def _sort(attrs: Attrs, x: Array) -> list[Array]:
    order = np.argsort(-x if attrs["descending"] else x, axis=-1, kind="stable")
    return [np.take_along_axis(x, order, -1), order.astype(np.int32)]


def _scores(attrs: Attrs, q: Array, k: Array, rest: tuple[Array, ...]) -> Array:
    scores: Array = q @ np.repeat(k, q.shape[1] // k.shape[1], 1).swapaxes(-1, -2) * attrs["scale"]
    if attrs["masked"]:
        scores = np.where(rest[0], scores, -math.inf) if rest[0].dtype == np.bool_ else scores + rest[0]
    if attrs["causal"]:
        scores = np.where(np.tri(*scores.shape[-2:]).astype(np.bool_), scores, -math.inf)
    return scores


def _attention(attrs: Attrs, q: Array, k: Array, v: Array, *rest: Array) -> list[Array]:
    scores = _scores(attrs, q, k, rest)
    most = scores.max(-1, keepdims=True)
    lse = np.log(np.exp(scores - most).sum(-1)) + most[..., 0]
    p = np.exp(scores - lse[..., None])
    return [(p @ np.repeat(v, q.shape[1] // v.shape[1], 1)).swapaxes(1, 2), lse]


def _attention_grad(
    attrs: Attrs, g: Array, q: Array, k: Array, v: Array, y: Array, lse: Array, *rest: Array
) -> list[Array]:
    per = q.shape[1] // k.shape[1]
    p = np.exp(_scores(attrs, q, k, rest) - lse[..., None])
    dp = g @ np.repeat(v, per, 1).swapaxes(-1, -2)
    ds = p * (dp - (g * y).sum(-1, keepdims=True)) * attrs["scale"]
    dq = ds @ np.repeat(k, per, 1)
    dk, dv = (
        x.reshape(*k.shape[:2], per, *x.shape[2:]).sum(2) for x in (ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ g)
    )
    return [dq.swapaxes(1, 2), dk.swapaxes(1, 2), dv.swapaxes(1, 2)]


#: Every op except map and reduce. An op with an epilogue returns `acc`.
_OPS: dict[str, Callable[..., list[Array]]] = {
    "matmul": _matmul,
    "conv": _conv,
    "conv_input": _conv_input,
    "conv_weight": _conv_weight,
    "max_pool": _max_pool,
    "max_pool_grad": _max_pool_grad,
    "avg_pool": _avg_pool,
    "avg_pool_grad": _avg_pool_grad,
    "scatter": _scatter,
    "assign": _assign,
    "scan": _scan,
    "sort": _sort,
    "attention": _attention,
    "attention_grad": _attention_grad,
    **numpy_recurrent.OPS,
}

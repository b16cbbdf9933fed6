"""The problems of a check: every kernel family, at sizes where drivers were seen to fail.

`large` has products of 260x192x768 and K = 128; without it, a simulator takes some seconds. Both have the same names.
"""

from __future__ import annotations

import math

import numpy as np

from handheld.drivers.sketch import ACC, Pencil, Sketch, spread, turned
from handheld.graph.dtypes import F32, I32
from handheld.graph.graph import View
from handheld.graph.program import Builder, Store

_FUNCTIONS = ("exp", "tanh", "sigmoid", "sin", "cos", "erf", "abs", "floor", "sign")


def sketches(large: bool = True) -> list[Sketch]:
    """All problems, those of a family together. The first tells how fast the driver builds programs."""
    return [
        *_products(large),
        *_convolutions(large),
        _functions(large),
        _integers(large),
        *(_rows(large, name) for name in ("rows", "columns", "all")),
        _softmax(large),
        _logsumexp(large),
        _normalised(large),
        _positions(large),
        _max_pool(large),
        _avg_pool(large),
        _scatters(large),
        _assign(large),
        _sort(large),
        _scan(large),
        _lstm(large),
        _gru(large),
        *(_attention(large, name) for name in ("causal", "masked")),
        _ctc(large),
    ]


def _functions(large: bool) -> Sketch:
    pencil, shape = Pencil("functions"), (133, 257) if large else (13, 33)
    x, y = pencil.normal(*shape), pencil.normal(*reversed(shape))

    def write(b: Builder) -> list[Store]:
        one, two = b.load(0, F32), b.load(1, F32)
        stores = [Store(b.op(name, F32, one)) for name in _FUNCTIONS]
        positive = b.op("add", F32, b.op("mul", F32, two, two), b.const(0.1, F32))
        stores += [Store(b.op(name, F32, positive)) for name in ("log", "sqrt", "rsqrt")]
        less = b.op("lt", "bool", one, two)
        stores.append(Store(b.op("where", F32, less, b.op("div", F32, one, positive), b.op("pow", F32, positive, two))))
        return stores

    pencil.points(shape, (), (x, turned(y)), write)
    return pencil.done()


def _integers(large: bool) -> Sketch:
    """Index arithmetic, a gather (an embedding) and random numbers, which must be exact."""
    pencil, rows, wide = Pencil("integers"), 300 if large else 20, 40
    table, index = pencil.normal(50, wide), pencil.ints(0, 50, rows)
    seed, step = (pencil.given(np.array(n, np.int32)) for n in (7, 3))
    views = (
        table,
        View(index.tensor, (rows, wide), (1, 0)),
        *(View(v.tensor, (rows, wide), (0, 0)) for v in (seed, step)),
    )

    def write(b: Builder) -> list[Store]:
        column = b.op("iota", I32, params=(1,))
        at = b.op("add", I32, b.op("mul", I32, b.load(1, I32), b.const(wide, I32)), column)
        number = b.op("random", F32, b.op("index", I32), b.load(2, I32), b.load(3, I32), params=(5,))
        mixed = b.op("xor", I32, b.op("truncdiv", I32, at, b.const(7, I32)), b.op("mod", I32, at, b.const(13, I32)))
        return [Store(b.op("gather", F32, at, params=(0,))), Store(number), Store(mixed)]

    pencil.points((rows, wide), (), views, write)
    return pencil.done()


def _rows(large: bool, name: str) -> Sketch:
    """Sums, and what their gradients are made of: a sum of products over the other dimensions."""
    pencil = Pencil(f"reduce-{name}")
    shape = {"rows": (70, 1030), "columns": (1030, 70), "all": (307, 331)}[name]
    shape = shape if large else (max(shape[0] // 8, 5), max(shape[1] // 8, 5))
    axes = {"rows": (1,), "columns": (0,), "all": (0, 1)}[name]
    x, y = pencil.normal(*shape), pencil.normal(*shape)

    def write(b: Builder) -> list[Store]:
        one, two = b.load(0, F32), b.load(1, F32)
        return [
            Store(b.op("sum", F32, b.op("mul", F32, one, two)), False),
            Store(b.op("sum", F32, b.op("mul", F32, one, one)), False),
            Store(b.op("max_of", F32, two), False),
        ]

    pencil.points(shape, axes, (x, y), write)
    return pencil.done()


def _softmax(large: bool) -> Sketch:
    """A softmax over rows and its gradient, each as one kernel with a full store."""
    pencil, shape = Pencil("softmax"), (65, 197) if large else (9, 37)
    x, g = pencil.normal(*shape), pencil.normal(*shape)

    def forward(b: Builder) -> list[Store]:
        one = b.load(0, F32)
        e = b.op("exp", F32, b.op("sub", F32, one, b.op("max_of", F32, one)))
        return [Store(b.op("div", F32, e, b.op("sum", F32, e)))]

    def backward(b: Builder) -> list[Store]:
        y, dy = b.load(0, F32), b.load(1, F32)
        return [Store(b.op("mul", F32, y, b.op("sub", F32, dy, b.op("sum", F32, b.op("mul", F32, y, dy)))))]

    y = pencil.points(shape, (1,), (x,), forward)[0]
    pencil.points(shape, (1,), (y, g), backward)
    return pencil.done()


def _logsumexp(large: bool) -> Sketch:
    """A log-sum-exp over columns: two reductions, the second of which depends on the first."""
    pencil, shape = Pencil("logsumexp"), (131, 35) if large else (3, 35)
    x = pencil.normal(*shape)

    def write(b: Builder) -> list[Store]:
        one = b.load(0, F32)
        largest = b.op("max_of", F32, one)
        infinite = b.op("eq", "bool", b.op("abs", F32, largest), b.const(math.inf, F32))
        most = b.op("where", F32, infinite, b.const(0.0, F32), largest)
        total = b.op("sum", F32, b.op("exp", F32, b.op("sub", F32, one, most)))
        result = b.op("add", F32, b.op("log", F32, total), most)
        return [Store(result, False), Store(b.op("exp", F32, b.op("sub", F32, one, result)))]

    pencil.points(shape, (0,), (x,), write)
    return pencil.done()


def _normalised(large: bool) -> Sketch:
    """The statistics of a batch norm over n, h, w and the gradient of its scale, with channels in the middle."""
    pencil, shape = Pencil("batch-norm"), (8, 33, 15, 15) if large else (2, 5, 7, 7)
    x, g = pencil.normal(*shape), pencil.normal(*shape)
    count = float(math.prod(shape) // shape[1])

    def write(b: Builder) -> list[Store]:
        one, dy = b.load(0, F32), b.load(1, F32)
        mean = b.op("div", F32, b.op("sum", F32, one), b.const(count, F32))
        off = b.op("sub", F32, one, mean)
        var = b.op("div", F32, b.op("sum", F32, b.op("mul", F32, off, off)), b.const(count, F32))
        unit = b.op("mul", F32, off, b.op("rsqrt", F32, b.op("add", F32, var, b.const(1e-5, F32))))
        return [Store(unit), Store(var, False), Store(b.op("sum", F32, b.op("mul", F32, unit, dy)), False)]

    pencil.points(shape, (0, 2, 3), (x, g), write)
    return pencil.done()


def _positions(large: bool) -> Sketch:
    pencil, shape = Pencil("arg-max"), (130, 301) if large else (9, 41)
    x = pencil.normal(*shape)

    def write(b: Builder) -> list[Store]:
        one = b.load(0, F32)
        any_large = b.op("any_of", "bool", b.op("gt", "bool", one, b.const(2.9, F32)))
        return [
            Store(b.op("arg_max", I32, one), False),
            Store(b.op("min_of", F32, one), False),
            Store(any_large, False),
        ]

    pencil.points(shape, (1,), (x,), write)
    return pencil.done()


def _products(large: bool) -> list[Sketch]:
    """A linear layer with bias and ReLU and its two gradients, and batches of small products."""
    m, k, n = (260, 192, 768) if large else (20, 12, 33)
    layer = Pencil("linear")
    x, w, bias, g = layer.normal(m, k), layer.normal(n, k), layer.normal(n), layer.normal(m, n)
    builder = Builder()
    total = builder.op("add", F32, builder.op("acc", F32), builder.load(2, F32))
    end = (builder.program, (Store(builder.op("max", F32, total, builder.const(0.0, F32))),))
    layer.product(x, turned(w), spread(bias, (m, n)), end=(builder.program, end[1]))
    layer.product(g, w)
    layer.product(turned(g), x)
    deep = Pencil("product-k128")
    a, b = deep.normal(*((256, 128) if large else (17, 16))), deep.normal(*((128, 768) if large else (16, 20)))
    deep.product(a, b)
    long = Pencil("product-long")
    c, d = long.normal(5, 5000 if large else 200), long.normal(5000 if large else 200, 7)
    long.product(c, d)
    batch = Pencil("products")
    e, f = batch.normal(6, 33, 17), batch.normal(6, 17, 65)
    batch.product(e, f)
    batch.product(turned(f), turned(e))
    return [layer.done(), deep.done(), long.done(), batch.done()]


def _convolutions(large: bool) -> list[Sketch]:
    """Convolutions and both gradients: 3x3, with a stride, 1x1, depthwise, and with two groups."""
    side = 1 if large else 0
    return [
        _convolution("conv-3x3", (4, 16, 20, 20) if side else (1, 3, 9, 9), 32 if side else 5, 3, 1, 1, 1),
        _convolution("conv-stride", (2, 24, 23, 23) if side else (1, 4, 9, 9), 40 if side else 6, 3, 2, 1, 1),
        _convolution("conv-1x1", (4, 64, 14, 14) if side else (1, 6, 7, 7), 96 if side else 9, 1, 1, 0, 1),
        _convolution(
            "conv-depthwise", (2, 32, 19, 19) if side else (1, 4, 9, 9), 32 if side else 4, 3, 1, 1, 32 if side else 4
        ),
        _convolution("conv-groups", (2, 16, 13, 13) if side else (1, 4, 7, 7), 24 if side else 6, 3, 1, 0, 2),
    ]


def _convolution(
    name: str, image: tuple[int, int, int, int], k: int, r: int, stride: int, pad: int, groups: int
) -> Sketch:
    pencil, (n, c, h, w) = Pencil(name), image
    out = (n, k, (h + 2 * pad - r) // stride + 1, (w + 2 * pad - r) // stride + 1)
    filters = (k, c // groups, r, r)
    x, weight, dy = pencil.normal(*image), pencil.normal(*filters), pencil.normal(*out)
    attrs = {"stride": (stride, stride), "padding": (pad, pad), "dilation": (1, 1), "groups": groups}
    end = {"program": ACC[0], "stores": ACC[1]}
    pencil.node("conv", (x, weight), (out, F32), **attrs, shape=out, **end)
    pencil.node("conv_input", (dy, weight), (image, F32), **attrs, shape=image, **end)
    pencil.node("conv_weight", (dy, x), (filters, F32), **attrs, shape=filters)
    return pencil.done()


def _max_pool(large: bool) -> Sketch:
    pencil, (n, c, h, w) = Pencil("max-pool"), (4, 16, 29, 29) if large else (1, 3, 9, 9)
    out = (n, c, (h - 1) // 2 + 1, (w - 1) // 2 + 1)
    attrs = {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1), "dilation": (1, 1), "adaptive": False}
    x, dy = pencil.normal(n, c, h, w), pencil.normal(*out)
    _, index = pencil.node("max_pool", (x,), (out, F32), (out, I32), **attrs, shape=out)
    pencil.node("max_pool_grad", (dy, index), ((n, c, h, w), F32), **attrs, shape=(n, c, h, w))
    return pencil.done()


def _avg_pool(large: bool) -> Sketch:
    pencil, (n, c, h, w) = Pencil("avg-pool"), (4, 16, 28, 28) if large else (1, 3, 8, 8)
    out = (n, c, h // 2, w // 2)
    attrs = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0), "count_pad": True, "divisor": 0}
    x, dy = pencil.normal(n, c, h, w), pencil.normal(*out)
    pencil.node("avg_pool", (x,), (out, F32), **attrs, shape=out)
    pencil.node("avg_pool_grad", (dy,), ((n, c, h, w), F32), **attrs, shape=(n, c, h, w))
    return pencil.done()


def _scatters(large: bool) -> Sketch:
    """The gradient of an embedding (rows with one index each), and single elements."""
    pencil, (k, v, i) = Pencil("scatter"), (300, 90, 48) if large else (30, 11, 17)
    rows, src = pencil.ints(0, v, k), pencil.normal(1, k, i)
    pencil.node(
        "scatter",
        (View(rows.tensor, (1, k, i), (0, 1, 0)), src),
        ((1, v, i), F32),
        mode="add",
        base=False,
        shape=(1, v, i),
    )
    one = pencil.given(np.argsort(np.random.default_rng(3).random((4, v, 3)), axis=1)[:, : v // 2].astype(np.int32))
    value, base = pencil.normal(4, v // 2, 3), pencil.normal(4, v, 3)
    pencil.node("scatter", (one, value, base), ((4, v, 3), F32), mode="set", base=True, shape=(4, v, 3))
    return pencil.done()


def _assign(large: bool) -> Sketch:
    pencil, (h, w) = Pencil("assign"), (130, 150) if large else (13, 15)
    base, value = pencil.normal(h, w), pencil.normal(h - 4, w - 6)
    region = {"region_shape": (h - 4, w - 6), "region_strides": (w, 1), "region_offset": 2 * w + 3}
    pencil.node("assign", (base, value), ((h, w), F32), **region)
    return pencil.done()


def _sort(large: bool) -> Sketch:
    pencil, shape = Pencil("sort"), (20, 301) if large else (3, 29)
    x = pencil.normal(*shape)
    for descending in (False, True):
        pencil.node("sort", (x,), (shape, F32), (shape, I32), descending=descending)
    return pencil.done()


def _scan(large: bool) -> Sketch:
    pencil, shape = Pencil("scan"), (4, 190, 33) if large else (2, 19, 5)
    x = pencil.normal(*shape)
    pencil.node("scan", (x,), (shape, F32), mode="add", reverse=False)
    pencil.node("scan", (x,), (shape, F32), mode="max", reverse=True)
    return pencil.done()


def _lstm(large: bool) -> Sketch:
    pencil, (t, b, h) = Pencil("lstm"), (6, 9, 96) if large else (3, 2, 9)
    gx, w = pencil.normal(t, b, 4 * h), pencil.normal(4 * h, h, scale=h**-0.5)
    h0, c0, dh = pencil.normal(b, h), pencil.normal(b, h), pencil.normal(t, b, h)
    states, row = ((t, b, h), F32), ((b, h), F32)
    _, c, gates = pencil.node("lstm", (gx, w, h0, c0), states, states, ((t, b, 4 * h), F32), reverse=False)
    last = (dh, pencil.normal(b, h), pencil.normal(b, h), w, c, gates, c0)
    pencil.node("lstm_grad", last, ((t, b, 4 * h), F32), row, row, reverse=False)
    return pencil.done()


def _gru(large: bool) -> Sketch:
    pencil, (t, b, h) = Pencil("gru"), (6, 9, 96) if large else (3, 2, 9)
    gx, w = pencil.normal(t, b, 3 * h), pencil.normal(3 * h, h, scale=h**-0.5)
    bias, h0, dh = pencil.normal(3 * h), pencil.normal(b, h), pencil.normal(t, b, h)
    hs, saved = pencil.node("gru", (gx, w, bias, h0), ((t, b, h), F32), ((t, b, 4 * h), F32), reverse=True)
    gates = ((t, b, 3 * h), F32)
    last = (dh, pencil.normal(b, h), w, hs, saved, h0)
    pencil.node("gru_grad", last, gates, gates, ((b, h), F32), reverse=True)
    return pencil.done()


def _attention(large: bool, name: str) -> Sketch:
    """Attention and its gradient: causal with as many heads of keys as of queries, or masked with fewer."""
    pencil, causal = Pencil(f"attention-{name}"), name == "causal"
    (b, h, seq, d), g = (2, 4, 130, 48) if large else (1, 2, 17, 8), 4 if causal else 2
    g = min(g, h) if large or not causal else h
    q, k, v = pencil.normal(b, h, seq, d), pencil.normal(b, g, seq, d), pencil.normal(b, g, seq, d)
    mask = () if causal else (pencil.normal(b, h, seq, seq),)
    attrs = {"scale": d**-0.5, "causal": causal, "masked": not causal, "dropout": 0.0, "key": 0}
    out, lse = pencil.node("attention", (q, k, v, *mask), ((b, seq, h, d), F32), ((b, h, seq), F32), **attrs)
    dout = pencil.normal(b, h, seq, d)
    seen = View(out.tensor, (b, h, seq, d), (seq * h * d, d, h * d, 1))
    back = tuple(((b, seq, heads, d), F32) for heads in (h, g, g))
    pencil.node("attention_grad", (dout, q, k, v, seen, lse, *mask), *back, **attrs)
    return pencil.done()


def _ctc(large: bool) -> Sketch:
    pencil, (t, n, c, k) = Pencil("ctc"), (40, 5, 12, 9) if large else (9, 2, 5, 3)
    raw = np.random.default_rng(4).standard_normal((t, n, c))
    logp = pencil.given(raw - np.log(np.exp(raw).sum(-1, keepdims=True)))
    targets = pencil.ints(1, c, n, k)
    steps, lengths = pencil.given(np.arange(t, t - n, -1, dtype=np.int32)), pencil.given(np.full(n, k, np.int32))
    pencil.node("ctc", (logp, targets, steps, lengths), ((n,), F32), blank=0)
    inputs = (pencil.normal(n), logp, targets, steps, lengths)
    pencil.node("ctc_grad", inputs, ((t, n, c), F32), blank=0, zero_infinity=False)
    return pencil.done()

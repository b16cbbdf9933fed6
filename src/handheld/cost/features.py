"""The features of an op that decide how far it stays below the device's ceilings.

All features are logarithms to base 2, so a distance of 1 is a factor of two. The categories are texts that are equal
or not: the algorithm (`style`), and the program of a map or reduction.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from handheld.cost.work import Input, Work
from handheld.graph.dtypes import F32

#: A family of ops whose times are fitted together.
_GROUPS = {
    "lstm_grad": "recurrent",
    "lstm": "recurrent",
    "gru": "recurrent",
    "gru_grad": "recurrent",
    "max_pool": "pool",
    "avg_pool": "pool",
    "max_pool_grad": "pool_grad",
    "avg_pool_grad": "pool_grad",
    "scatter": "index",
    "assign": "index",
    "scan": "order",
    "sort": "order",
    "ctc": "ctc",
    "ctc_grad": "ctc",
}


def group(work: Work) -> str:
    """The family whose model predicts this op."""
    return _GROUPS.get(work.op, work.op)


def features(work: Work) -> list[float]:
    """The numbers, always the same count for a family."""
    return _SHAPES.get(group(work), _plain)(work)


def categories(work: Work) -> tuple[str, str]:
    """The algorithm, and the program with the pattern of inputs."""
    words = work.words
    pattern = "".join(_letter(given, words.output) for given in words.inputs)
    return f"{work.op} {work.style}{' f16' if words.half else ''}", f"{words.program}{words.epilogue}{pattern}"


def _letter(given: Input, output: tuple[int, ...]) -> str:
    """How an input is read: dense, repeated or with strides; in halves or whole numbers."""
    kind = "d" if not given.strides else "r" if given.repeated else "s"
    return kind if given.dtype == F32 else f"{kind}{given.dtype}"


def _log(value: float) -> float:
    return math.log2(max(value, 1e-3))


def _plain(work: Work) -> list[float]:
    return [_log(work.flops), _log(work.bytes), _log(work.launches)]


def _matmul(work: Work) -> list[float]:
    out = work.words.output or (1, 1)
    rows, columns = (out[-2], out[-1]) if len(out) > 1 else (1, out[-1])
    depth = work.words.inputs[0].sizes[-1] if work.words.inputs else 1
    return [_log(rows), _log(columns), _log(depth), _log(math.prod(out[:-2])), *_strided(work)]


def _conv(work: Work) -> list[float]:
    """As a product: rows are output channels, columns positions, depth the sum of each output."""
    out, attrs = work.words.output or (1, 1, 1, 1), work.words
    count = math.prod(out)
    depth = work.flops / 2 / max(count, 1)
    groups = int(attrs.attrs.get("groups", "1"))
    kernel = math.prod(out[2:]) if work.op == "conv_weight" else _kernel(work)
    rows = out[0] if work.op == "conv_weight" else out[1]
    return [
        _log(rows / groups),
        _log(count / rows),
        _log(depth),
        _log(groups),
        _log(kernel),
        _log(attrs.pair("stride", 1)),
        _log(out[-1]),
    ]


def _kernel(work: Work) -> int:
    inputs = work.words.inputs
    return math.prod(inputs[1].sizes[2:]) if len(inputs) > 1 else 1


def _strided(work: Work) -> list[float]:
    """1 for each of the two factors that is not dense."""
    flags = [float(bool(given.strides)) for given in work.words.inputs[:2]]
    return [*flags, 0.0, 0.0][:2]


def _map(work: Work) -> list[float]:
    points = math.prod(work.words.output)
    dense = sum(not given.strides for given in work.words.inputs)
    loose = sum(bool(given.strides) and not given.repeated for given in work.words.inputs)
    return [
        _log(points),
        _log(work.bytes / max(points, 1)),
        _log(work.flops / max(points, 1) + 1),
        float(dense),
        float(loose),
        _log(work.launches),
    ]


def _reduce(work: Work) -> list[float]:
    shape = work.words.output
    axes = [int(a) for a in work.words.attrs.get("axes", "").split("x") if a.isdigit()]
    reduced = math.prod(shape[a] for a in axes if a < len(shape))
    points = math.prod(shape)
    return [
        _log(points / max(reduced, 1)),
        _log(reduced),
        _log(work.bytes / max(points, 1)),
        _log(work.flops / max(points, 1) + 1),
        _log(work.launches),
    ]


_SHAPES: dict[str, Callable[[Work], list[float]]] = {
    "matmul": _matmul,
    "conv": _conv,
    "conv_input": _conv,
    "conv_weight": _conv,
    "map": _map,
    "reduce": _reduce,
}

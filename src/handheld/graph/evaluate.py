"""Computes map and reduce nodes with NumPy, for constant folding without PyTorch.

Each f32 instruction is computed in float64 and rounded. A folded value is therefore as exact as that of an
accurate float32 kernel, and an index that was computed with floats equals PyTorch's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from handheld.errors import GraphError
from handheld.graph import interpret
from handheld.graph.dtypes import BOOL, DTYPES, I32
from handheld.graph.graph import Graph, Node

Array = npt.NDArray[Any]


def evaluate(node: Node, graph: Graph, values: Mapping[int, Array], acc: Array | None = None) -> list[Array]:
    """Returns the outputs of a map or reduce node, or of the epilogue of another node after its result `acc`.

    `values` holds its inputs by tensor.
    """
    if node.op not in ("map", "reduce") and acc is None:
        raise GraphError(f"only map and reduce can be evaluated, not {node.op}")
    attrs = node.attrs
    with np.errstate(all="ignore"):
        arrays = _NumpyArrays(
            {
                t: np.ascontiguousarray(values[t], DTYPES[graph.tensors[t].dtype].numpy).reshape(-1)
                for t in {view.tensor for view in node.inputs}
            }
        )
        space = interpret.Space(attrs["shape"], attrs.get("axes", ()), node.inputs, arrays, acc)
        results = interpret.run(node.program, node.stores, space)
    tensors = [graph.tensors[t] for t in node.outputs]
    return [
        np.array(r, DTYPES[t.dtype].numpy, order="C").reshape(t.shape) for r, t in zip(results, tensors, strict=True)
    ]


class _NumpyArrays(interpret.Arrays[Array]):
    def __init__(self, buffers: dict[int, Array]) -> None:
        self.buffers = buffers

    def strided(self, tensor: int, shape: Sequence[int], strides: Sequence[int], offset: int) -> Array:
        buffer = self.buffers[tensor]
        if 0 in shape or buffer.size == 0:
            return np.zeros(shape, buffer.dtype)
        step = buffer.itemsize
        # Unlike as_strided, this constructor checks the bounds.
        return np.ndarray(tuple(shape), buffer.dtype, buffer, offset * step, tuple(s * step for s in strides))

    def flat(self, tensor: int) -> Array:
        return self.buffers[tensor]

    def full(self, shape: Sequence[int], value: float, dtype: str) -> Array:
        return np.full(shape, value, DTYPES[dtype].numpy)

    def arange(self, size: int) -> Array:
        return np.arange(size, dtype=np.int32)

    def cast(self, x: Array, dtype: str) -> Array:
        return np.asarray(x).astype(DTYPES[dtype].numpy, copy=False)

    def long(self, x: Array) -> Array:
        return np.asarray(x).astype(np.int64)

    def expand(self, x: Array, shape: Sequence[int]) -> Array:
        return np.broadcast_to(x, tuple(shape))

    def apply(self, op: str, dtype: str, args: Sequence[Array]) -> Array:
        wide = [a.astype(np.float64) if a.dtype == np.float32 else a for a in args]
        if op in _BITWISE and dtype == BOOL:
            op = "logical_" + op
        if op in _INTEGER and dtype == I32:
            return _INTEGER[op](*(a.astype(np.int64) for a in wide))
        return _TABLE[op](*wide)

    def reduce(self, op: str, x: Array, axes: Sequence[int]) -> Array:
        if op.startswith("arg"):
            kept = [1 if d in axes else n for d, n in enumerate(x.shape)]
            outer = [d for d in range(x.ndim) if d not in axes]
            rows = x.transpose([*outer, *axes]).reshape([x.shape[d] for d in outer] + [-1])
            found: Array = (np.argmax if op == "arg_max" else np.argmin)(rows, axis=-1)
            return found.reshape(kept)
        wide = {"f": np.float64, "i": np.int64, "b": np.bool_}[x.dtype.kind]
        return _REDUCE[op](x.astype(wide), axis=tuple(axes), keepdims=True)


def _pow(a: Array, b: Array) -> Array:
    """Raises integers to integer powers. The result of a negative power is truncated."""
    inverse = np.where(abs(a) == 1, a ** (b % 2), 0)
    return np.where(b < 0, inverse, a ** np.maximum(b, 0))


_BITWISE = ("and", "or", "xor")

_REDUCE: dict[str, Callable[..., Array]] = {
    "sum": np.sum,
    "prod": np.prod,
    "max_of": np.max,
    "min_of": np.min,
    "any_of": np.any,
    "all_of": np.all,
}

_INTEGER: dict[str, Callable[..., Array]] = {
    "pow": _pow,
    "truncdiv": lambda a, b: np.where(b == 0, 0, np.trunc(a / np.where(b == 0, 1, b))),
}

_TABLE: dict[str, Callable[..., Array]] = {
    "neg": np.negative,
    "abs": np.abs,
    "sign": lambda x: (x > 0) * 1 - (x < 0) * 1,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "erfc": np.vectorize(math.erfc, otypes=[np.float64]),
    "ceil": np.ceil,
    "floor": np.floor,
    "round": np.rint,
    "trunc": np.trunc,
    "not": np.logical_not,
    "bitnot": np.invert,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "floordiv": np.floor_divide,
    "mod": np.remainder,
    "fmod": np.fmod,
    # The quotient is rounded first, as in float32 arithmetic.
    "truncdiv": lambda a, b: np.trunc((a / b).astype(np.float32)),
    "pow": np.power,
    "atan2": np.arctan2,
    "max": np.maximum,
    "min": np.minimum,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
    "shl": np.left_shift,
    "shr": np.right_shift,
    "where": np.where,
}

"""Computes with complex tensors as pairs of real ones.

In the graph, a complex tensor is a real tensor with one more dimension of size 2, as PyTorch's `view_as_real` shows
it. Views of complex tensors stay views. Every other op is expressed here with the real and imaginary parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch.utils import _pytree as pytree

from handheld.frontend.registry import decomposed

T = torch.Tensor
Function = TypeVar("Function", bound=Callable[..., Any])

#: Ops that treat each part like a real tensor.
_BY_PARTS = frozenset(
    "aten." + name
    for name in [
        "neg.default",
        "clone.default",
        "cat.default",
        "fill.Tensor",
        "cumsum.default",
        "index_put.default",
        "sum.default",
        "sum.dim_IntList",
        "mean.default",
        "mean.dim",
        "slice_backward.default",
        "flip.default",
        "select_backward.default",
        "constant_pad_nd.default",
        "roll.default",
        "index_select.default",
        "index.Tensor",
        "gather.default",
        "where.self",
        "repeat.default",
        "index_add.default",
        "zeros.default",
        "zeros_like.default",
        "new_zeros.default",
        "empty.memory_format",
        "empty_like.default",
        "new_empty.default",
        "new_empty_strided.default",
    ]
)
#: Ops that fill a tensor with a real number.
_FILLED = frozenset(
    "aten." + name
    for name in [
        "ones.default",
        "ones_like.default",
        "new_ones.default",
        "full.default",
        "full_like.default",
        "fill.Scalar",
    ]
)

COMPLEX: dict[str, Callable[..., Any]] = {}


def _of_complex(*names: str) -> Callable[[Function], Function]:
    def register(function: Function) -> Function:
        COMPLEX.update((f"aten.{name}", function) for name in names)
        return function

    return register


def holds_complex(args: Sequence[object], kwargs: dict[str, Any]) -> bool:
    """Says whether an op reads or returns complex numbers."""
    dtype = kwargs.get("dtype")
    if isinstance(dtype, torch.dtype) and dtype.is_complex:
        return True
    return any(isinstance(a, T) and a.is_complex() for a in pytree.tree_leaves((args, kwargs)))


def compute(name: str, func: Any, args: Sequence[object], kwargs: dict[str, Any]) -> Any:
    """Computes an op on complex numbers with ops on real ones. Returns NotImplemented if that is not known."""
    if name in COMPLEX:
        return COMPLEX[name](*args, **kwargs)
    if name in _FILLED and not any(isinstance(a, complex) for a in args):
        real = func(*pytree.tree_map(_real, tuple(args)), **pytree.tree_map(_real, kwargs))
        return join(real, torch.zeros_like(real))
    if name not in _BY_PARTS:
        return NotImplemented
    real, imaginary = (
        func(*pytree.tree_map(of, tuple(args)), **pytree.tree_map(of, kwargs)) for of in (_real, _imaginary)
    )
    return join(real, imaginary)


def _real(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return torch.float32 if value.is_complex else value
    if isinstance(value, complex):
        return value.real
    return parts(value)[0] if isinstance(value, T) and value.is_complex() else value


def _imaginary(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return torch.float32 if value.is_complex else value
    if isinstance(value, complex):
        return value.imag
    if isinstance(value, T) and value.dtype.is_floating_point:
        return torch.zeros_like(value)
    return parts(value)[1] if isinstance(value, T) and value.is_complex() else value


def parts(x: Any) -> tuple[Any, Any]:
    """Returns real and imaginary part of a tensor or number. The imaginary part of a real one is None."""
    if isinstance(x, complex):
        return x.real, x.imag
    if not isinstance(x, T) or not x.is_complex():
        return x, None
    real, imaginary = torch.view_as_real(x).unbind(-1)
    return real, imaginary


def join(real: T, imaginary: T) -> T:
    """Returns the complex tensor with these parts."""
    return torch.view_as_complex(torch.stack(torch.broadcast_tensors(real, imaginary), -1))  # type: ignore[no-untyped-call]


# ── arithmetic ───────────────────────────────────────────────────────────────────────────────────


@_of_complex("add.Tensor", "add.Scalar")
def add(x: T | complex, y: T | complex, alpha: float = 1) -> T:
    (a, b), (c, d) = parts(x), parts(y)
    imaginary = b if d is None else d * alpha if b is None else b + d * alpha
    return join(a + c * alpha, imaginary)


@_of_complex("sub.Tensor", "sub.Scalar")
def subtract(x: T | complex, y: T | complex, alpha: float = 1) -> T:
    return add(x, y, -alpha)


@_of_complex("mul.Tensor", "mul.Scalar")
def multiply(x: T | complex, y: T | complex) -> T:
    (a, b), (c, d) = parts(x), parts(y)
    if b is None:
        return join(a * c, a * d)
    if d is None:
        return join(a * c, b * c)
    return join(a * c - b * d, a * d + b * c)


@_of_complex("reciprocal.default")
def reciprocal(x: T) -> T:
    a, b = parts(x)
    size = a * a + b * b
    return join(a / size, -b / size)


@_of_complex("div.Tensor", "div.Scalar")
def divide(x: T | complex, y: T | complex) -> T:
    a, b = parts(x)
    if isinstance(y, T) and y.is_complex():
        return multiply(x, reciprocal(y))
    return multiply(x, 1 / y) if isinstance(y, complex) else join(a / y, b / y)


@_of_complex("pow.Tensor_Scalar")
def power(x: T, exponent: Any) -> Any:
    if exponent not in (1, 2, 3, 4):
        return NotImplemented
    result = x
    for _ in range(int(exponent) - 1):
        result = multiply(result, x)
    return result


@_of_complex("_conj.default", "_conj_physical.default", "conj_physical.default")
def conjugate(x: T) -> T:
    a, b = parts(x)
    return join(a, -b)


@_of_complex("abs.default")
def absolute(x: T) -> T:
    a, b = parts(x)
    size: T = (a * a + b * b).sqrt()
    return size


@_of_complex("angle.default")
def angle(x: T) -> T:
    a, b = parts(x)
    return torch.atan2(b, a)


@_of_complex("sgn.default")
def sign(x: T) -> T:
    a, b = parts(x)
    size = (a * a + b * b).sqrt()
    nonzero = size > 0
    size = torch.where(nonzero, size, 1.0)
    return join(torch.where(nonzero, a / size, 0.0), torch.where(nonzero, b / size, 0.0))


@_of_complex("exp.default")
def exponential(x: T) -> T:
    a, b = parts(x)
    return join(a.exp() * b.cos(), a.exp() * b.sin())


@_of_complex("mm.default", "bmm.default", "mv.default", "dot.default")
def product(x: T, y: T) -> T:
    (a, b), (c, d) = parts(x), parts(y)
    return join(a @ c - b @ d, a @ d + b @ c)


@_of_complex("_to_copy.default")
def converted(x: T, *, dtype: torch.dtype | None = None, **options: object) -> T:
    a, b = parts(x)
    if dtype is not None and not dtype.is_complex:
        return cast(T, a.to(dtype))
    a = a.to(torch.float32)
    return join(a, torch.zeros_like(a) if b is None else b)


@decomposed("complex.default")
def complex_of(real: T, imaginary: T) -> T:
    return join(real, imaginary)


@decomposed("polar.default")
def polar(size: T, turn: T) -> T:
    return join(size * turn.cos(), size * turn.sin())


# ── Fourier transforms: products with the matrix of roots of unity ───────────────────────────────


def _roots(n: int, count: int, weights: np.ndarray | None = None) -> tuple[T, T]:
    """Returns cos and sin of 2π jk/n as [n, count] matrices."""
    turns = 2 * np.pi * (np.outer(np.arange(n), np.arange(count)) % n) / n
    with torch.utils._python_dispatch._disable_current_modes():
        scaled = (np.cos(turns), np.sin(turns))
        if weights is not None:
            scaled = (scaled[0] * weights, scaled[1] * weights)
        return torch.from_numpy(scaled[0]).float(), torch.from_numpy(scaled[1]).float()


def _along(x: T, dim: int, matrix: T) -> T:
    return (x.movedim(dim, -1) @ matrix).movedim(-1, dim)


def _turned(a: T, b: T | None, dim: int, count: int, sign: int) -> tuple[T, T]:
    """Returns real and imaginary part of the first `count` terms of the transform along one dimension."""
    cos, sin = _roots(a.shape[dim], count)
    if b is None:
        return _along(a, dim, cos), sign * _along(a, dim, sin)
    real = _along(a, dim, cos) - sign * _along(b, dim, sin)
    return real, _along(b, dim, cos) + sign * _along(a, dim, sin)


def _scale(norm: int, size: int) -> float:
    return (1.0, 1 / math.sqrt(size), 1 / size)[norm]


@_of_complex("_fft_c2c.default")
def fourier(x: T, dims: Sequence[int], norm: int, forward: bool) -> T:
    a, b = parts(x)
    for dim in dims:
        a, b = _turned(a, b, dim, a.shape[dim], -1 if forward else 1)
    scale = _scale(norm, math.prod(x.shape[d] for d in dims))
    return join(a * scale, b * scale)


@decomposed("_fft_r2c.default")
def fourier_of_real(x: T, dims: Sequence[int], norm: int, onesided: bool) -> T:
    size, last = math.prod(x.shape[d] for d in dims), x.shape[dims[-1]]
    a, b = _turned(x, None, dims[-1], last // 2 + 1 if onesided else last, -1)
    for dim in dims[:-1]:
        a, b = _turned(a, b, dim, a.shape[dim], -1)
    scale = _scale(norm, size)
    return join(a * scale, b * scale)


@_of_complex("_fft_c2r.default")
def fourier_to_real(x: T, dims: Sequence[int], norm: int, last: int) -> T:
    """Terms past the middle are conjugates of earlier ones, so all but the first and the middle count twice."""
    a, b = parts(x)
    for dim in dims[:-1]:
        a, b = _turned(a, b, dim, a.shape[dim], 1)
    half = last // 2 + 1
    weights = np.where((np.arange(half) == 0) | (2 * np.arange(half) == last), 1.0, 2.0)
    cos, sin = (m.t() for m in _roots(last, half, weights))
    size = math.prod(last if d == dims[-1] else x.shape[d] for d in dims)
    a, b = a.narrow(dims[-1], 0, half), b.narrow(dims[-1], 0, half)
    result = _along(a, dims[-1], cos) - _along(b, dims[-1], sin)
    return result * _scale(norm, size)

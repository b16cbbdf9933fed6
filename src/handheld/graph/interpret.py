"""Runs a scalar program over whole arrays: one array operation per instruction.

The array library is a parameter: NumPy for constant folding (evaluate.py), PyTorch for the reference result of a
node (backends/reference/programs.py). Every value has the rank of the iteration space. A dimension along which
it does not change may have size 1 and is broadcast.

This module also defines the corner cases: an integer division by zero is 0, a gather outside its buffer reads
the nearest element, and the position of the largest of no elements is 0.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

from handheld.graph.dtypes import BOOL, F32, I32
from handheld.graph.graph import View
from handheld.graph.program import REDUCTIONS, Guard, Instr, Program, Store

SEED_FACTOR = 0x85EBCA6B
_WORD = 0xFFFFFFFF
_INT_MIN, _INT_MAX = -(2**31), 2**31 - 1

#: The instructions that take arguments of any type. The others convert them to their own type.
_KEEP = frozenset(
    {
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "isnan",
        "isinf",
        "not",
        "cast",
        "where",
        "random",
        "gather",
        "arg_max",
        "arg_min",
    }
)


class Array(Protocol):
    """What the interpreter uses of an array: NumPy's and PyTorch's both have it."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    def reshape(self, shape: Sequence[int], /) -> Self: ...
    def clip(self, low: int, high: int, /) -> Self: ...
    def __getitem__(self, index: Self | tuple[int | slice, ...], /) -> Self: ...
    def __setitem__(self, index: tuple[slice, ...], value: Self, /) -> None: ...
    def __add__(self, other: int, /) -> Self: ...
    def __mul__(self, other: int | float, /) -> Self: ...
    def __and__(self, other: int, /) -> Self: ...
    def __xor__(self, other: int | Self, /) -> Self: ...
    def __rshift__(self, other: int, /) -> Self: ...


A = TypeVar("A", bound=Array)


class Arrays(ABC, Generic[A]):
    """The functions that the interpreter needs from an array library. Arrays are indexed as in NumPy."""

    @abstractmethod
    def strided(self, tensor: int, shape: Sequence[int], strides: Sequence[int], offset: int) -> A:
        """Returns elements of a tensor's buffer. They may share memory with it. `shape` may contain zeros."""

    @abstractmethod
    def flat(self, tensor: int) -> A:
        """Returns a tensor's buffer as one dimension."""

    @abstractmethod
    def full(self, shape: Sequence[int], value: float, dtype: str) -> A: ...

    @abstractmethod
    def arange(self, size: int) -> A:
        """Returns 0, 1, ... `size` - 1 as i32."""

    @abstractmethod
    def cast(self, x: A, dtype: str) -> A: ...

    @abstractmethod
    def long(self, x: A) -> A:
        """Converts to 64-bit integers."""

    @abstractmethod
    def expand(self, x: A, shape: Sequence[int]) -> A: ...

    @abstractmethod
    def apply(self, op: str, dtype: str, args: Sequence[A]) -> A:
        """Computes an arithmetic op. Arguments have the type `dtype` unless the op compares or selects."""

    @abstractmethod
    def reduce(self, op: str, x: A, axes: Sequence[int]) -> A:
        """Reduces over one or more axes, none of them empty. The axes stay, with size 1."""


@dataclass(frozen=True)
class Space(Generic[A]):
    """The space that a program runs over: every point of `shape`. It reduces over `axes` and reads `inputs`."""

    shape: Sequence[int]
    axes: Sequence[int]
    inputs: Sequence[View]
    arrays: Arrays[A]
    #: In an epilogue: the result of the op.
    acc: A | None = None


def run(program: Program, stores: Sequence[Store], space: Space[A]) -> list[A]:
    """Returns the stored values: over `shape` for a full store, else over the dimensions not in `axes`."""
    last = {a: i for i, instr in enumerate(program) for a in instr.args}
    kept = {store.position for store in stores}
    values: dict[int, A] = {}
    for i, instr in enumerate(program):
        args = [values[a] for a in instr.args]
        values[i] = space.arrays.cast(_step(instr, args, space), instr.dtype)
        for a in set(instr.args):
            if last[a] == i and a not in kept:
                del values[a]
    return [
        space.arrays.expand(values[store.position], space.shape)
        if store.full
        else _outer(values[store.position], program[store.position].dtype, space)
        for store in stores
    ]


def _step(instr: Instr, args: list[A], space: Space[A]) -> A:
    op, dtype, arrays, rank = instr.op, instr.dtype, space.arrays, len(space.shape)
    if op == "load":
        operand, guards, fill = instr.params
        return _load(space.inputs[operand], guards, fill, dtype, arrays)
    if op == "gather":
        return _gather(space.inputs[instr.params[0]].tensor, args[0], dtype, arrays)
    if op == "const":
        return arrays.full([1] * rank, instr.params[0], dtype)
    if op == "iota":
        dim = instr.params[0]
        return arrays.arange(space.shape[dim]).reshape([-1 if d == dim else 1 for d in range(rank)])
    if op == "index":
        return arrays.arange(math.prod(space.shape)).reshape(list(space.shape))
    if op == "acc":
        assert space.acc is not None, "only an epilogue has an accumulator"
        return space.acc
    if op == "random":
        return _random(instr.params[0], args, arrays)
    if op not in _KEEP:
        args = [arrays.cast(a, dtype) for a in args]
    if op in REDUCTIONS:
        return _reduce(op, args[0], dtype, space)
    if op == "cast":
        return args[0]
    if op == "where":
        args = [arrays.cast(args[0], BOOL), *(arrays.cast(a, dtype) for a in args[1:])]
    return arrays.apply(op, dtype, args)


def _random(key: int, args: list[A], arrays: Arrays[A]) -> A:
    index, seed, step = (arrays.long(a) & _WORD for a in args)
    word, _ = philox((index, step), random_key(seed, key))
    return arrays.cast(word >> 8, F32) * 2.0**-24


def random_key(seed: A, key: int) -> A:
    """Returns the Philox key: one word per pair of seed and random op of the step."""
    return ((seed * SEED_FACTOR) & _WORD) ^ (key & _WORD)


def _load(view: View, guards: Sequence[Guard], fill: float, dtype: str, arrays: Arrays[A]) -> A:
    """Reads the elements where all guards hold. The others are `fill`."""
    low, high = [0] * len(view.shape), list(view.shape)
    for dim, start, stop in guards:
        low[dim], high[dim] = max(low[dim], start), min(high[dim], stop)
    size, part = list(view.shape), [max(h - a, 0) for a, h in zip(low, high, strict=True)]
    for d, (n, stride) in enumerate(zip(view.shape, view.strides, strict=True)):
        if stride == 0 and part[d] == n:
            size[d] = part[d] = 1
    offset = view.offset + sum(a * s for a, s in zip(low, view.strides, strict=True))
    inner = arrays.strided(view.tensor, part, view.strides, offset)
    if part == size:
        return inner
    out = arrays.full(size, fill, dtype)
    if 0 not in part:
        out[tuple(slice(a, a + n) for a, n in zip(low, part, strict=True))] = inner
    return out


def _gather(tensor: int, index: A, dtype: str, arrays: Arrays[A]) -> A:
    buffer = arrays.flat(tensor)
    if buffer.shape[0] == 0:
        return arrays.full(index.shape, 0, dtype)
    return buffer[arrays.long(index).clip(0, buffer.shape[0] - 1)]


def _reduce(op: str, x: A, dtype: str, space: Space[A]) -> A:
    axes, arrays = space.axes, space.arrays
    kept = [1 if d in axes else n for d, n in enumerate(x.shape)]
    if math.prod(space.shape[d] for d in axes) == 0:
        return arrays.full(kept, neutral(op, dtype), dtype)
    if not axes:
        return arrays.full(kept, 0, dtype) if op.startswith("arg") else x
    wide = [space.shape[d] if d in axes else n for d, n in enumerate(x.shape)]
    return arrays.reduce(op, arrays.expand(x, wide), sorted(axes))


def neutral(op: str, dtype: str) -> float:
    """Returns the result of a reduction over no elements."""
    low, high = {F32: (-math.inf, math.inf), I32: (_INT_MIN, _INT_MAX), BOOL: (False, True)}[dtype]
    return {"prod": 1, "all_of": 1, "max_of": low, "min_of": high}.get(op, 0)


def _outer(x: A, dtype: str, space: Space[A]) -> A:
    """Drops `axes` from a value that does not change along them."""
    outer = [n for d, n in enumerate(space.shape) if d not in space.axes]
    if any(x.shape[d] == 0 for d in space.axes):
        return space.arrays.full(outer, 0, dtype)
    first = tuple(0 if d in space.axes else slice(None) for d in range(len(space.shape)))
    return space.arrays.expand(x[first], outer)


def philox(counter: tuple[A, A], key: A) -> tuple[A, A]:
    """Philox2x32-10 (Salmon et al., 2011) on arrays of 64-bit integers that hold 32-bit words.

    A product needs all 64 bits and may become negative. Only its two 32-bit words are used.
    """
    c0, c1 = counter
    for _ in range(10):
        product = c0 * 0xD256D193
        c0, c1 = ((product >> 32) & _WORD) ^ c1 ^ key, product & _WORD
        key = (key + 0x9E3779B9) & _WORD
    return c0, c1

"""Lets lowerings write programs as Python expressions, such as `0.5 * x * (1.0 + (x * r).unary("erf"))`."""

from __future__ import annotations

from typing import Any

from handheld.graph.dtypes import BOOL, F32, I32
from handheld.graph.program import Builder, Instr

Number = float | int | bool


class Val:
    """One value of a program under construction. A Python number gets the type of the other operand."""

    __slots__ = ("builder", "dtype", "index")

    def __init__(self, builder: Builder, index: int, dtype: str) -> None:
        self.builder, self.index, self.dtype = builder, index, dtype

    def _wrap(self, other: Val | Number) -> Val:
        if isinstance(other, Val):
            return other
        if self.dtype != F32 and isinstance(other, float):
            raise TypeError(f"a float constant cannot be combined with a value of type {self.dtype}")
        return Val(self.builder, self.builder.const(other, self.dtype), self.dtype)

    def const(self, value: Number, dtype: str) -> Val:
        return Val(self.builder, self.builder.const(value, dtype), dtype)

    def unary(self, op: str, dtype: str | None = None) -> Val:
        dtype = dtype or self.dtype
        return Val(self.builder, self.builder.op(op, dtype, self.index), dtype)

    def binary(self, op: str, other: Val | Number, dtype: str | None = None) -> Val:
        other = self._wrap(other)
        dtype = dtype or self.dtype
        return Val(self.builder, self.builder.op(op, dtype, self.index, other.index), dtype)

    def to(self, dtype: str) -> Val:
        return self if dtype == self.dtype else self.unary("cast", dtype)

    def reduce(self, op: str, dtype: str | None = None) -> Val:
        """Reduces over the axes of the node. Without axes it returns the value itself (position 0 for arg_ ops)."""
        if self.builder.reducing:
            return self.unary(op, dtype)
        return self.const(0, I32) if op.startswith("arg_") else self

    def __add__(self, o: Val | Number) -> Val:
        return self.binary("add", o)

    def __radd__(self, o: Number) -> Val:
        return self._wrap(o).binary("add", self)

    def __sub__(self, o: Val | Number) -> Val:
        return self.binary("sub", o)

    def __rsub__(self, o: Number) -> Val:
        return self._wrap(o).binary("sub", self)

    def __mul__(self, o: Val | Number) -> Val:
        return self.binary("mul", o)

    def __rmul__(self, o: Number) -> Val:
        return self._wrap(o).binary("mul", self)

    def __truediv__(self, o: Val | Number) -> Val:
        return self.binary("div", o)

    def __rtruediv__(self, o: Number) -> Val:
        return self._wrap(o).binary("div", self)

    def __neg__(self) -> Val:
        return self.unary("neg")

    def lt(self, o: Val | Number) -> Val:
        return self.binary("lt", o, BOOL)

    def le(self, o: Val | Number) -> Val:
        return self.binary("le", o, BOOL)

    def gt(self, o: Val | Number) -> Val:
        return self.binary("gt", o, BOOL)

    def ge(self, o: Val | Number) -> Val:
        return self.binary("ge", o, BOOL)

    def eq(self, o: Val | Number) -> Val:
        return self.binary("eq", o, BOOL)

    def ne(self, o: Val | Number) -> Val:
        return self.binary("ne", o, BOOL)

    def both(self, o: Val) -> Val:
        return self.binary("and", o, BOOL)

    def where(self, a: Val | Number, b: Val | Number) -> Val:
        """Returns a where this value is true, otherwise b."""
        if not isinstance(a, Val):
            assert isinstance(b, Val)
            a = b._wrap(a)
        b = a._wrap(b)
        return Val(self.builder, self.builder.op("where", a.dtype, self.index, a.index, b.index), a.dtype)


def iota(builder: Builder, dim: int) -> Val:
    """Returns the coordinate of the point along one dimension."""
    return Val(builder, builder.op("iota", I32, params=(dim,)), I32)


def gather(builder: Builder, operand: int, dtype: str, index: Val) -> Val:
    """Loads an operand at a computed position."""
    return Val(builder, builder.add(Instr("gather", dtype, (index.index,), (operand,))), dtype)


def linear_index(builder: Builder) -> Val:
    """Returns the row-major position of the point."""
    return Val(builder, builder.op("index", I32), I32)


def constant(builder: Builder, value: Any, dtype: str) -> Val:
    return Val(builder, builder.const(value, dtype), dtype)

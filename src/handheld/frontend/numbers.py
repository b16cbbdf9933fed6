"""Python numbers that remember how they were computed.

An optimizer computes with Python numbers: a learning rate, a step count, `1 - beta ** step`. PyTorch gets only their
values, as constants of ops. While an update is recorded, such a number is a `Number`: a float with an expression over
leaves (the slots of the rate and of counters, and values that code reads from tensors with item()). Every value of a
leaf is a random one, so a constant of the graph can be recognised by its value and replaced by its expression.
"""

from __future__ import annotations

import math
import operator
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from handheld.errors import CaptureError
from handheld.frontend.reading import user_line
from handheld.frontend.values import Val
from handheld.graph.dtypes import F32


@dataclass(frozen=True)
class Expr:
    """An expression: a leaf (its name), or an op of other expressions and floats."""

    op: str
    args: tuple[Expr | float, ...] = ()
    leaf: str = ""

    def leaves(self) -> list[str]:
        """Returns the names of the leaves, each once."""
        names = [self.leaf] if self.op == "leaf" else []
        for arg in self.args:
            if isinstance(arg, Expr):
                names += arg.leaves()
        return list(dict.fromkeys(names))

    def build(self, leaves: Mapping[str, Val]) -> Val:
        """Computes the expression in a program. 1 - b**x is computed with expm1, which cancels no digits."""
        if self.op == "leaf":
            return leaves[self.leaf].to(F32)
        any_val = next(iter(leaves.values()))
        if self.op == "sub" and self.args[0] == 1.0:
            power = self.args[1]
            base = power.args[0] if isinstance(power, Expr) and power.op == "pow" else None
            if isinstance(power, Expr) and isinstance(base, float) and base > 0:
                return -(_val(power.args[1], leaves, any_val) * math.log(base)).unary("expm1")
        values = [_val(arg, leaves, any_val) for arg in self.args]
        return values[0].unary(self.op) if len(values) == 1 else values[0].binary(self.op, values[1])


def _val(arg: Expr | float, leaves: Mapping[str, Val], any_val: Val) -> Val:
    return arg.build(leaves) if isinstance(arg, Expr) else any_val.const(float(arg), F32)


_UNARY: dict[str, Callable[[float], float]] = {
    name: getattr(math, name) for name in ("sqrt", "exp", "expm1", "log", "log1p", "sin", "cos", "tanh")
}
_BINARY: dict[str, Callable[[float, float], float]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "pow": operator.pow,
}


class Numbers:
    """All numbers of one recording, by value. `seed` chooses the values of leaves."""

    def __init__(self, what: str, seed: int) -> None:
        self.what = what
        self._random = random.Random(seed)
        self._seed = seed
        self._by_value: dict[float, Expr] = {}
        self._leaves: dict[str, Number] = {}

    def leaf(self, name: str, near: float = 0.0) -> Number:
        """Returns a leaf. Without `near` its value is a few units; its integer part differs from seed to seed."""
        if name in self._leaves:
            return self._leaves[name]
        value = near * self._random.uniform(0.5, 1.5) if near else 3 + 4 * self._seed + self._random.random()
        self._leaves[name] = self.note(value, Expr("leaf", leaf=name))
        return self._leaves[name]

    def note(self, value: float, expr: Expr) -> Number:
        self._by_value.setdefault(float(value), expr)
        return Number(value, expr, self)

    def find(self, value: float) -> Expr | None:
        """Returns the expression of a constant of the graph, or None if it is a constant. Ops change some constants."""
        for change, back in _CHANGES:
            if value == 0 and change == "reciprocal":
                continue
            known = self._by_value.get(back(value))
            if known is not None:
                if change == "rest":
                    return Expr("sub", (1.0, known))
                return {"same": known, "negative": Expr("neg", (known,)), "reciprocal": Expr("div", (1.0, known))}[
                    change
                ]
        rounded = float(np.float32(value))
        if rounded == value:  # The value passed through a tensor of float32.
            for known_value, known in self._by_value.items():
                if float(np.float32(known_value)) == value:
                    return known
        return None

    def refuse(self, how: str) -> NoReturn:
        raise CaptureError(
            f"{self.what} cannot be captured: it {how} a number that changes from step to step ({user_line()}). "
            "Try: tensor ops instead (keep the step as a tensor in the state, and use torch.where), or an optimizer of "
            "torch.optim"
        )


#: How an op may change a constant before the graph has it, and how to undo it.
_CHANGES: tuple[tuple[str, Callable[[float], float]], ...] = (
    ("same", lambda v: v),
    ("negative", lambda v: -v),
    ("reciprocal", lambda v: 1 / v),
    ("rest", lambda v: 1 - v),
)


class Number(float):
    """A float that knows its expression."""

    expr: Expr
    log: Numbers

    def __new__(cls, value: float, expr: Expr, log: Numbers) -> Number:
        self = super().__new__(cls, value)
        self.expr, self.log = expr, log
        return self

    def __hash__(self) -> int:
        return float.__hash__(self)

    def __neg__(self) -> Number:
        inner = self.expr.args[0] if self.expr.op == "neg" else None
        return self.log.note(-float(self), inner if isinstance(inner, Expr) else Expr("neg", (self.expr,)))

    def __pos__(self) -> Number:
        return self

    def __abs__(self) -> Number:
        return self.log.note(abs(float(self)), Expr("abs", (self.expr,)))

    def __deepcopy__(self, memo: object) -> Number:
        return self


def _arithmetic(name: str) -> None:
    function = _BINARY[name]
    dunder = "truediv" if name == "div" else name

    def forward(self: Number, other: Any, *_: object) -> Any:
        if not isinstance(other, (int, float)):
            return NotImplemented
        return self.log.note(function(float(self), float(other)), Expr(name, (self.expr, _expr(other))))

    def backward(self: Number, other: Any, *_: object) -> Any:
        if not isinstance(other, (int, float)):
            return NotImplemented
        return self.log.note(function(float(other), float(self)), _simple(name, float(other), self.expr))

    setattr(Number, f"__{dunder}__", forward)
    setattr(Number, f"__r{dunder}__", backward)


def _simple(name: str, value: float, expr: Expr) -> Expr:
    """Returns an op of a constant and an expression. 1 - (1 - x) is x."""
    if name == "sub" and expr.op == "sub" and expr.args[0] == value and isinstance(expr.args[1], Expr):
        return expr.args[1]
    return Expr(name, (value, expr))


def _expr(value: float) -> Expr | float:
    return value.expr if isinstance(value, Number) else float(value)


def _refusing(dunder: str, how: str) -> None:
    def method(self: Number, *_: object) -> Any:
        self.log.refuse(how)

    setattr(Number, dunder, method)


for _name in _BINARY:
    _arithmetic(_name)
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _refusing(f"__{_name}__", "compares")
_refusing("__bool__", "decides by")
for _name in ("mod", "rmod", "floordiv", "rfloordiv", "divmod", "int", "trunc", "round", "floor", "ceil"):
    _refusing(f"__{_name}__", "rounds")


@contextmanager
def followed_math() -> Iterator[None]:
    """While active, functions of `math` follow numbers too."""

    def follow(name: str, original: Callable[..., float]) -> Callable[..., float]:
        def call(value: float, *rest: float) -> float:
            if isinstance(value, Number) and not rest:
                return value.log.note(original(float(value)), Expr(name, (value.expr,)))
            return original(value, *rest)

        return call

    def power(a: float, b: float) -> float:
        return a**b if isinstance(a, Number) or isinstance(b, Number) else originals["pow"](a, b)

    originals: dict[str, Callable[..., float]] = {**_UNARY, "pow": math.pow}
    for name in _UNARY:
        setattr(math, name, follow(name, originals[name]))
    setattr(math, "pow", power)  # noqa: B010 (its type differs)
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(math, name, original)

"""Scalar programs: what a pointwise, reducing or epilogue kernel computes at one point.

A program runs once at each point of an iteration space `shape`. An instruction is
`(op, dtype, args, params)`: `args` are positions of earlier instructions, `params` is plain data.

    load    (operand, guards, fill)  the operand's element at this point; outside a guard
                                     (dimension, low, high) nothing is read and `fill` is the value
    gather  (operand,)  args: index  the element at a computed position of the whole buffer
    iota    (dimension,)             the coordinate of the point in this dimension
    index   ()                       the row-major position of the point in `shape`
    const   (value,)                 a constant
    acc     ()                       in an epilogue: the result of the matmul or convolution at this point
    random  (key,)  args: index, seed, step
                                     uniform in [0, 1): Philox of (seed, key, step, index)
    sum, prod, max_of, min_of, any_of, all_of, arg_max, arg_min   args: value
                                     reduction over the dimensions `axes` of the kernel

All other instructions are arithmetic. `ARITHMETIC` lists them with their number of arguments.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

#: Functions of one float. They are not defined for other types.
FLOAT_UNARY = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan", "asin", "acos",
    "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "sigmoid",
)  # fmt: skip
UNARY = (
    *FLOAT_UNARY, "neg", "abs", "sign", "ceil", "floor", "round", "trunc", "not", "bitnot", "isnan", "isinf", "cast",
)  # fmt: skip
BINARY = (
    "add", "sub", "mul", "div", "floordiv", "truncdiv", "mod", "fmod", "pow", "atan2", "max", "min",
    "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "xor", "shl", "shr",
)  # fmt: skip
ARITHMETIC: dict[str, int] = {**dict.fromkeys(UNARY, 1), **dict.fromkeys(BINARY, 2), "where": 3}
REDUCTIONS = ("sum", "prod", "max_of", "min_of", "any_of", "all_of", "arg_max", "arg_min")
LEAVES = ("load", "iota", "index", "const", "acc")
#: Every instruction and how many arguments it takes.
ARITY: dict[str, int] = {
    **ARITHMETIC,
    **dict.fromkeys(REDUCTIONS, 1),
    **dict.fromkeys(LEAVES, 0),
    "gather": 1,
    "random": 3,
}


class Guard(NamedTuple):
    """A load happens only where the coordinate in `dimension` is from low to high - 1."""

    dimension: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Instr:
    op: str
    dtype: str
    args: tuple[int, ...] = ()
    params: tuple[Any, ...] = ()


Program = tuple[Instr, ...]


@dataclass(frozen=True, slots=True)
class Store:
    """The instruction whose value an output gets: at every point, or (not `full`) once per row of a reduction."""

    position: int
    full: bool = True


class Builder:
    """Builds a program. Adding an instruction that is already there returns its position.

    `reducing` is for the builder's user: False means that there are no axes, so that a reduction is the value
    itself.
    """

    def __init__(self, program: Iterable[Instr] = (), reducing: bool = True) -> None:
        self.reducing = reducing
        self.instrs: list[Instr] = []
        self._seen: dict[Instr, int] = {}
        for instr in program:
            self.add(instr)

    def add(self, instr: Instr) -> int:
        if instr not in self._seen:
            self._seen[instr] = len(self.instrs)
            self.instrs.append(instr)
        return self._seen[instr]

    def op(self, op: str, dtype: str, *args: int, params: tuple[Any, ...] = ()) -> int:
        return self.add(Instr(op, dtype, args, params))

    def const(self, value: float | int | bool, dtype: str) -> int:
        return self.add(Instr("const", dtype, (), (value,)))

    def load(self, operand: int, dtype: str, guards: tuple[Guard, ...] = (), fill: float = 0) -> int:
        return self.add(Instr("load", dtype, (), (operand, guards, fill)))

    def append(self, program: Program, replace: dict[int, int]) -> dict[int, int]:
        """Adds another program and returns where each of its instructions is now.

        `replace` maps instructions of that program, by position, to instructions that are already here.
        """
        where = dict(replace)
        for i, instr in enumerate(program):
            if i not in where:
                args = tuple(where[a] for a in instr.args)
                where[i] = self.add(Instr(instr.op, instr.dtype, args, instr.params))
        return where

    @property
    def program(self) -> Program:
        return tuple(self.instrs)


def prune(program: Program, keep: Iterable[int]) -> tuple[Program, dict[int, int]]:
    """Returns the instructions that `keep` needs, and the new position of each."""
    needed, stack = set(), list(keep)
    while stack:
        i = stack.pop()
        if i not in needed:
            needed.add(i)
            stack.extend(program[i].args)
    where: dict[int, int] = {}
    out = Builder()
    for i, instr in enumerate(program):
        if i in needed:
            args = tuple(where[a] for a in instr.args)
            where[i] = out.add(Instr(instr.op, instr.dtype, args, instr.params))
    return out.program, where


def operands(program: Program) -> list[int]:
    """Returns the operands that a program reads, in ascending order."""
    return sorted({i.params[0] for i in program if i.op in ("load", "gather")})


def renumber(program: Program, where: dict[int, int]) -> Program:
    """Returns the same program with its operands renumbered."""
    return tuple(
        Instr(i.op, i.dtype, i.args, (where[i.params[0]], *i.params[1:])) if i.op in ("load", "gather") else i
        for i in program
    )

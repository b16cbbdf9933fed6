"""Translates the instructions of a program into OpenCL C.

    mul(load x, const 3)   ──►   const float v0 = t0[x0];
                                 const float v1 = c2;
                                 const float v2 = v0 * v1;

There is one statement per instruction. Sizes, strides, offsets and most constants become kernel arguments, so that
one program text serves all nodes of the same structure.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from handheld.graph.dtypes import BOOL, DTYPES, F16, F32, I32
from handheld.graph.graph import Graph, Node, Tensor, contiguous_strides
from handheld.graph.program import Instr
from handheld.kernels.base import Arg, Buffer, Float, Int, read_cl

#: Constants that are written into the text. All others are arguments.
_INLINE = {0.0, 1.0, -1.0, 2.0, 0.5, math.inf, -math.inf}

#: In place of an operand's number: the position of the point in the node's shape.
INDEX = -1

HELPERS = (
    read_cl("math.cl")
    + """
inline int i_truncdiv(int a, int b) { return b ? a / b : 0; }
inline int i_fmod(int a, int b) { return b ? a % b : 0; }
inline int i_floordiv(int a, int b) {
  int q = i_truncdiv(a, b);
  return (q * b != a && ((a < 0) != (b < 0)) && b) ? q - 1 : q;
}
inline int i_mod(int a, int b) { return b ? a - i_floordiv(a, b) * b : 0; }
inline float f_floordiv(float a, float b) {
  float m = fmod(a, b), d = (a - m) / b;
  if (b == 0.0f) return a / b;
  if (m != 0.0f && ((b < 0.0f) != (m < 0.0f))) d -= 1.0f;
  float f = floor(d);
  return d != 0.0f ? (d - f > 0.5f ? f + 1.0f : f) : copysign(0.0f, a / b);
}
inline float f_mod(float a, float b) {
  float r = fmod(a, b);
  return (r != 0.0f && ((r < 0.0f) != (b < 0.0f))) ? r + b : r;
}
inline int i_pow(int a, int b) {
  int r = 1;
  if (b < 0) return (a == 1) ? 1 : (a == -1) ? ((b & 1) ? -1 : 1) : 0;
  while (b) { if (b & 1) r *= a; a *= a; b >>= 1; }
  return r;
}
"""
)

#: A random number in [0, 1). The ten rounds are unrolled and use 64-bit products, so that compilers make vector code.
PHILOX = (
    """
#if defined(__EMBEDDED_PROFILE__) && !defined(cles_khr_int64)
#define PHILOX_HIGH(c) mul_hi(0xD256D193u, c)
#else
#define PHILOX_HIGH(c) (uint)(((ulong)(c) * 0xD256D193u) >> 32)
#endif
inline float philox(uint index, uint seed, uint step, uint key) {
  uint c0 = index, c1 = step, k = (seed * 0x85EBCA6Bu) ^ key, high;
"""
    + "  high = PHILOX_HIGH(c0) ^ c1 ^ k; c1 = 0xD256D193u * c0; c0 = high; k += 0x9E3779B9u;\n" * 10
    + "  return (float)(int)(c0 >> 8) * 5.9604644775390625e-08f;\n}\n"
)

#: Functions of math.cl, with the prefix f_.
_OWN = {"exp", "expm1", "log", "log1p", "tanh", "erf", "sigmoid"}
_F32_CALLS = {
    "exp2",
    "log2",
    "log10",
    "sqrt",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "asinh",
    "acosh",
    "atanh",
    "erfc",
    "ceil",
    "floor",
    "trunc",
    "isnan",
    "isinf",
    "fmod",
    "pow",
    "atan2",
}
_INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "truncdiv": "/",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "and": "&",
    "or": "|",
    "xor": "^",
    "shl": "<<",
    "shr": ">>",
}


def expression(instr: Instr, args: list[str], kinds: list[str]) -> str:
    """The expression of one arithmetic instruction. `kinds` are the dtypes of its arguments."""
    op, is_float = instr.op, bool(kinds) and kinds[0] == F32
    if op == "cast":
        return _cast(args[0], kinds[0], instr.dtype)
    if op == "where":
        return f"({args[0]}) ? {args[1]} : {args[2]}"
    if op in _OWN:
        return f"f_{op}({args[0]})"
    if op == "rsqrt":
        return f"1.0f / sqrt({args[0]})"
    if op == "neg":
        return f"-{args[0]}"
    if op == "not":
        return f"!{args[0]}"
    if op == "bitnot":
        return f"~{args[0]}" if kinds[0] == I32 else f"!{args[0]}"
    if op == "round":
        return f"rint({args[0]})"
    if is_float and op in ("abs", "sign", "max", "min", "mod", "floordiv", "truncdiv"):
        name = {
            "abs": "f_abs",
            "sign": "f_sign",
            "max": "f_max",
            "min": "f_min",
            "mod": "f_mod",
            "floordiv": "f_floordiv",
        }
        if op in name:
            return f"{name[op]}({', '.join(args)})"
        return f"trunc({args[0]} / {args[1]})"
    if not is_float:
        a = args[0]
        integer = {
            "abs": f"abs({a})",
            "sign": f"(({a} > 0) - ({a} < 0))",
            "isnan": "0",
            "isinf": "0",
            "ceil": a,
            "floor": a,
            "trunc": a,
        }
        if op in integer:
            return f"(int){integer[op]}" if op == "abs" else integer[op]
        calls = {
            "floordiv": "i_floordiv",
            "mod": "i_mod",
            "pow": "i_pow",
            "max": "max",
            "min": "min",
            "truncdiv": "i_truncdiv",
            "fmod": "i_fmod",
        }
        if op in calls:
            return f"{calls[op]}({', '.join(args)})"
    if op in _INFIX:
        return f"{args[0]} {_INFIX[op]} {args[1]}"
    if op in _F32_CALLS:
        return f"{op}({', '.join(args)})"
    raise AssertionError(f"no code for instruction {op}")


def _cast(value: str, dtype: str, target: str) -> str:
    if dtype == target:
        return value
    if target == BOOL:
        return f"({value} != 0)"
    return f"({DTYPES[target].c_register}){value}"


@dataclass
class Code:
    """Collects the parameters and arguments of one kernel while its body is written."""

    graph: Graph
    params: list[str] = field(default_factory=list)
    args: list[Arg] = field(default_factory=list)
    pointers: dict[int, str] = field(default_factory=dict)
    uses_philox: bool = False
    uses_half: bool = False

    def pointer(self, tensor: Tensor, written: bool = False) -> str:
        """The name of the pointer to a tensor. The first call adds its parameter."""
        self.uses_half |= tensor.dtype == F16
        if tensor.id not in self.pointers:
            name = f"t{len(self.pointers)}"
            self.pointers[tensor.id] = name
            const = "" if written else "const "
            self.params.append(f"{const}__global {DTYPES[tensor.dtype].c_memory} *{name}")
            self.args.append(Buffer(tensor.id))
        return self.pointers[tensor.id]

    def element(self, tensor: Tensor, index: str) -> str:
        """The expression that loads an element, converted to its type in registers."""
        pointer = self.pointer(tensor)
        return f"GET_HALF({pointer}, {index})" if tensor.dtype == F16 else f"{pointer}[{index}]"

    def store(self, tensor: Tensor, index: str, value: str) -> str:
        """The statement that writes an element."""
        pointer = self.pointer(tensor, written=True)
        if tensor.dtype == F16:
            return f"PUT_HALF({value}, {index}, {pointer});"
        kind = DTYPES[tensor.dtype]
        return f"{pointer}[{index}] = {'' if kind.c_memory == kind.c_register else f'({kind.c_memory})'}{value};"

    def integer(self, value: int) -> str:
        """The name of a new integer parameter with this value."""
        name = f"n{len(self.args)}"
        self.params.append(f"const int {name}")
        self.args.append(Int(value))
        return name

    def constant(self, value: float | int | bool, dtype: str) -> str:
        """A constant: a literal if it is common, otherwise a new parameter."""
        if dtype != F32:
            if abs(int(value)) <= 2:
                return str(int(value))
            return self.integer(int(value))
        value = float(value)
        if math.isnan(value):
            return "NAN"
        if math.isinf(value):
            return "INFINITY" if value > 0 else "-INFINITY"
        if value in _INLINE:
            return f"{value!r}f"
        name = f"c{len(self.args)}"
        self.params.append(f"const float {name}")
        self.args.append(Float(value))
        return name

    def index(self, strides: tuple[int, ...], offset: int, coords: list[str]) -> str:
        """offset + the sum of coordinate * stride. Strides 0, 1 and -1 are written out, so that the compiler knows
        them."""
        terms = [self.integer(offset)] if offset else []
        for stride, coord in zip(strides, coords, strict=True):
            if stride == 1:
                terms.append(coord)
            elif stride == -1:
                terms.append(f"-{coord}")
            elif stride:
                terms.append(f"{coord} * {self.integer(stride)}")
        return " + ".join(terms) or "0"

    @property
    def helpers(self) -> str:
        half = read_cl("half.cl") if self.uses_half else ""
        return half + HELPERS + (PHILOX if self.uses_philox else "")


def statement(
    code: Code,
    instr: Instr,
    position: int,
    name: Callable[[int], str],
    kinds: list[str],
    index_of: Callable[[int], str],
    coord: Callable[[int], str],
    node: Node,
) -> str:
    """The right-hand side of the statement of one instruction that is not a reduction."""
    args = [name(a) for a in instr.args]
    if instr.op == "const":
        return code.constant(instr.params[0], instr.dtype)
    if instr.op == "iota":
        return coord(instr.params[0])
    if instr.op == "index":
        return index_of(INDEX)
    if instr.op == "acc":
        return "acc"
    if instr.op == "random":
        code.uses_philox = True
        key = code.integer(instr.params[0])
        return f"philox((uint){args[0]}, (uint){args[1]}, (uint){args[2]}, (uint){key})"
    if instr.op in ("load", "gather"):
        tensor = code.graph.tensors[node.inputs[instr.params[0]].tensor]
        code.pointer(tensor)
        if instr.op == "gather":
            # Positions are data and may have any value. The clamp keeps the load inside the buffer.
            last = code.integer(max(tensor.size - 1, 0))
            return code.element(tensor, f"clamp({args[0]}, 0, {last})")
        return guarded(code, instr, code.element(tensor, index_of(instr.params[0])), coord)
    return expression(instr, args, [kinds[a] for a in instr.args])


def guarded(code: Code, instr: Instr, load: str, coord: Callable[[int], str]) -> str:
    """A load that gives a fill value outside its guards (ranges of coordinates)."""
    _, guards, fill = instr.params
    if not guards:
        return load
    tests = " && ".join(
        f"{coord(d)} >= {code.integer(low)} && {coord(d)} < {code.integer(high)}" for d, low, high in guards
    )
    value = code.constant(fill, instr.dtype)
    return f"({tests}) ? {load} : ({DTYPES[instr.dtype].c_register})({value})"


@dataclass(frozen=True, slots=True)
class Epilogue:
    """The code that a contraction kernel runs for each result; see `epilogue`."""

    params: str
    args: tuple[Arg, ...]
    helpers: str
    body: str


def epilogue(node: Node, graph: Graph, first: int) -> Epilogue:
    """The statements that compute and store all outputs of a node from `float acc`, the result of the contraction, and
    its coordinates `int d0, d1, ..`."""
    code = Code(graph)
    shape = tuple(node.attrs["shape"])
    program = node.program
    coords = [f"d{i}" for i in range(len(shape))]
    dense = contiguous_strides(shape)
    linear = code.index(dense, 0, [c if n > 1 else "0" for c, n in zip(coords, shape, strict=True)])
    lines = [f"const int o_ = {linear};"]
    kinds = [i.dtype for i in program]

    def index_of(operand: int) -> str:
        if operand == INDEX or node.inputs[operand].is_contiguous:
            return "o_"
        view = node.inputs[operand]
        strides = tuple(0 if n == 1 else s for n, s in zip(view.shape, view.strides, strict=True))
        return code.index(strides, view.offset, coords)

    for i, instr in enumerate(program):
        value = statement(code, instr, i, lambda a: f"v{a}", kinds, index_of, lambda d: coords[d], node)
        lines.append(f"const {DTYPES[instr.dtype].c_register} v{i} = {value};")
    for store, out in zip(node.stores, node.outputs, strict=True):
        lines.append(code.store(graph.tensors[out], "o_", f"v{store.position}"))
    params = "".join(f", {p}" for p in code.params)
    return Epilogue(params, tuple(code.args), code.helpers, "\n".join(lines))

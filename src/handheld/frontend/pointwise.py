"""Lowerings of pointwise ops: arithmetic, comparisons, selection, casts and copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from handheld.frontend.layout import expand, is_dense, permute, physical_order
from handheld.frontend.record import Recorder
from handheld.frontend.registry import LOWERINGS, lowering
from handheld.frontend.state import ir_dtype
from handheld.frontend.values import Val, constant
from handheld.graph.dtypes import BOOL, F32
from handheld.graph.program import FLOAT_UNARY, Builder

Operand = torch.Tensor | float | int | bool


def elementwise(
    rec: Recorder, out: torch.Tensor, operands: Sequence[Operand], build: Callable[..., Val], compute: str | None = None
) -> None:
    """Adds a map over `out`, in the order of its memory, and binds `out` to it.

    Numbers among `operands` become constants. With `compute`, all operands are cast to that type first.
    """
    order = physical_order(out) if is_dense(out) else list(range(out.dim()))
    tensors = [o for o in operands if isinstance(o, torch.Tensor)]
    views = [permute(expand(rec.read(t), tuple(out.shape)), order) for t in tensors]
    target = ir_dtype(out.dtype)

    def program(*loaded: Builder | Val) -> Val:
        builder = loaded[0] if isinstance(loaded[0], Builder) else loaded[0].builder
        vals = (value for value in loaded if isinstance(value, Val))
        given = []
        for operand in operands:
            if isinstance(operand, torch.Tensor):
                val = next(vals)
                given.append(val.to(compute) if compute else val)
            else:
                kind = compute or ir_dtype(torch.tensor(operand).dtype)
                given.append(constant(builder, fit(operand, kind), kind))
        return build(*given).to(target)

    shape = tuple(out.shape[d] for d in order)
    result = rec.map(shape, views, program)
    if is_dense(out):
        rec.bind_tensor(out, result.tensor)
    else:
        rec.bind(out, result)


def fit(value: float, kind: str) -> float:
    """Converts a Python number to the type `kind`. Integers are clipped to 32 bits."""
    if kind == F32:
        return float(value)
    if kind == BOOL:
        return bool(value)
    return max(-(2**31), min(2**31 - 1, int(value)))


def result_kind(*operands: Operand) -> str:
    """Returns the type in which PyTorch computes with these operands."""
    dtype = None
    for a in operands:
        other: Any = a
        dtype = (
            torch.result_type(dtype, other)
            if dtype is not None and not isinstance(dtype, torch.dtype)
            else other
            if dtype is None
            else torch.result_type(torch.empty((), dtype=dtype), other)
        )
        if isinstance(dtype, torch.dtype):
            # A tensor of one element represents the type found so far.
            dtype = (
                torch.empty((1,), dtype=dtype)
                if isinstance(a, torch.Tensor) and a.dim()
                else torch.empty((), dtype=dtype)
            )
    if isinstance(dtype, torch.Tensor):
        return ir_dtype(dtype.dtype)
    return ir_dtype(torch.tensor(dtype).dtype)


_SAME_UNARY = ["neg", "abs", "ceil", "floor", "round", "trunc"]
_COMPARE = ["eq", "ne", "lt", "le", "gt", "ge"]
_BITWISE = {"bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor"}
_LOGICAL = {"logical_and": "and", "logical_or": "or", "logical_xor": "xor"}


def _register_unary() -> None:
    def float_unary(op: str) -> Callable[..., None]:
        return lambda rec, out, x: elementwise(rec, out, [x], lambda a: a.unary(op), F32)

    def same_unary(op: str) -> Callable[..., None]:
        return lambda rec, out, x: elementwise(rec, out, [x], lambda a: a.unary(op))

    for name in FLOAT_UNARY:
        LOWERINGS[f"aten.{name}.default"] = float_unary(name)
    LOWERINGS["aten.special_erfc.default"] = float_unary("erfc")
    for name in _SAME_UNARY:
        LOWERINGS[f"aten.{name}.default"] = same_unary(name)
    for name, op in (("sign", "sign"), ("sgn", "sign"), ("bitwise_not", "bitnot")):
        LOWERINGS[f"aten.{name}.default"] = same_unary(op)
    for name in ("isnan", "isinf"):
        LOWERINGS[f"aten.{name}.default"] = lambda rec, out, x, op=name: elementwise(
            rec, out, [x], lambda a: a.unary(op, BOOL)
        )
    LOWERINGS["aten.logical_not.default"] = lambda rec, out, x: elementwise(
        rec, out, [x], lambda a: a.to(BOOL).unary("not")
    )


def _register_binary() -> None:
    def compare(op: str) -> Callable[..., None]:
        return lambda rec, out, a, b: elementwise(
            rec, out, [a, b], lambda x, y: x.binary(op, y, BOOL), result_kind(a, b)
        )

    def joined(op: str, kind: str | None) -> Callable[..., None]:
        return lambda rec, out, a, b: elementwise(
            rec, out, [a, b], lambda x, y: x.binary(op, y), kind or result_kind(a, b)
        )

    for name in _COMPARE:
        for overload in ("Tensor", "Scalar"):
            LOWERINGS[f"aten.{name}.{overload}"] = compare(name)
    for name, op in _BITWISE.items():
        for overload in ("Tensor", "Scalar"):
            LOWERINGS[f"aten.{name}.{overload}"] = joined(op, None)
    for name, op in (("and", "and"), ("or", "or"), ("xor", "xor"), ("lshift", "shl"), ("rshift", "shr")):
        for overload in ("Tensor", "Scalar"):
            LOWERINGS[f"aten.__{name}__.{overload}"] = joined(op, None)
    for name, op in _LOGICAL.items():
        LOWERINGS[f"aten.{name}.default"] = joined(op, BOOL)
    for name, op in (
        ("maximum", "max"),
        ("minimum", "min"),
        ("fmod", "fmod"),
        ("remainder", "mod"),
        ("atan2", "atan2"),
        ("bitwise_left_shift", "shl"),
        ("bitwise_right_shift", "shr"),
    ):
        kind = F32 if name == "atan2" else None
        known = set(getattr(torch.ops.aten, name).overloads())
        for overload in sorted(known & {"default", "Tensor", "Scalar", "Tensor_Scalar"}):
            LOWERINGS[f"aten.{name}.{overload}"] = joined(op, kind)


_register_unary()
_register_binary()


@lowering("add.Tensor", "add.Scalar")
def add(rec: Recorder, out: torch.Tensor, a: Operand, b: Operand, alpha: float = 1) -> None:
    kind = ir_dtype(out.dtype)
    if kind == BOOL:
        elementwise(rec, out, [a, b], lambda x, y: x.binary("or", y), kind)
    elif alpha == 1:
        elementwise(rec, out, [a, b], lambda x, y: x + y, kind)
    else:
        elementwise(rec, out, [a, b], lambda x, y: x + y * fit(alpha, kind), kind)


@lowering("sub.Tensor", "sub.Scalar")
def sub(rec: Recorder, out: torch.Tensor, a: Operand, b: Operand, alpha: float = 1) -> None:
    kind = ir_dtype(out.dtype)
    if alpha == 1:
        elementwise(rec, out, [a, b], lambda x, y: x - y, kind)
    else:
        elementwise(rec, out, [a, b], lambda x, y: x - y * fit(alpha, kind), kind)


@lowering("rsub.Tensor", "rsub.Scalar")
def rsub(rec: Recorder, out: torch.Tensor, a: Operand, b: Operand, alpha: float = 1) -> None:
    sub(rec, out, b, a, alpha=1) if alpha == 1 else elementwise(
        rec, out, [a, b], lambda x, y: y - x * alpha, ir_dtype(out.dtype)
    )


@lowering("mul.Tensor", "mul.Scalar")
def mul(rec: Recorder, out: torch.Tensor, a: Operand, b: Operand) -> None:
    kind = ir_dtype(out.dtype)
    op = "and" if kind == BOOL else "mul"
    elementwise(rec, out, [a, b], lambda x, y: x.binary(op, y), kind)


@lowering("div.Tensor", "div.Scalar", "true_divide.Tensor")
def div(rec: Recorder, out: torch.Tensor, a: Operand, b: Operand) -> None:
    elementwise(rec, out, [a, b], lambda x, y: x / y, F32)


@lowering("div.Tensor_mode", "div.Scalar_mode")
def div_mode(rec: Recorder, out: torch.Tensor, a: Operand, b: Operand, rounding_mode: str | None = None) -> None:
    if rounding_mode is None:
        div(rec, out, a, b)
        return
    op = "floordiv" if rounding_mode == "floor" else "truncdiv"
    elementwise(rec, out, [a, b], lambda x, y: x.binary(op, y), ir_dtype(out.dtype))


@lowering("floor_divide.default", "floor_divide.Scalar")
def floor_divide(rec: Recorder, out: torch.Tensor, a: Operand, b: Operand) -> None:
    elementwise(rec, out, [a, b], lambda x, y: x.binary("floordiv", y), ir_dtype(out.dtype))


@lowering("reciprocal.default")
def reciprocal(rec: Recorder, out: torch.Tensor, a: Operand) -> None:
    elementwise(rec, out, [a], lambda x: 1.0 / x, F32)


@lowering("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar")
def power(rec: Recorder, out: torch.Tensor, a: Operand, b: Operand) -> None:
    kind = ir_dtype(out.dtype)
    simple: dict[float, Callable[[Val], Val]] = {
        0.5: lambda x: x.unary("sqrt"),
        1.0: lambda x: x,
        2.0: lambda x: x * x,
        3.0: lambda x: x * x * x,
        -0.5: lambda x: x.unary("rsqrt"),
        -1.0: lambda x: 1.0 / x,
        4.0: lambda x: (x * x) * (x * x),
    }
    if not isinstance(b, torch.Tensor) and float(b) in simple and (kind == F32 or b in (1, 2, 3, 4)):
        elementwise(rec, out, [a], simple[float(b)], kind)
    else:
        elementwise(rec, out, [a, b], lambda x, y: x.binary("pow", y), kind)


@lowering("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def where(rec: Recorder, out: torch.Tensor, c: Operand, a: Operand, b: Operand) -> None:
    kind = ir_dtype(out.dtype)
    build = lambda x, y, z: x.to(BOOL).where(y.to(kind), z.to(kind))  # noqa: E731
    elementwise(rec, out, [c, a, b], build)


@lowering("clamp.default", "clamp.Tensor")
def clamp(
    rec: Recorder, out: torch.Tensor, x: torch.Tensor, min: Operand | None = None, max: Operand | None = None
) -> None:
    bounds = [b for b in (min, max) if b is not None]
    ops = [op for op, b in (("max", min), ("min", max)) if b is not None]

    def build(value: Val, *limits: Val) -> Val:
        for op, limit in zip(ops, limits, strict=True):
            value = value.binary(op, limit)
        return value

    elementwise(rec, out, [x, *bounds], build, ir_dtype(out.dtype))


@lowering("clamp_min.default", "clamp_min.Tensor")
def clamp_min(rec: Recorder, out: torch.Tensor, x: torch.Tensor, low: Operand) -> None:
    clamp(rec, out, x, low)


@lowering("clamp_max.default", "clamp_max.Tensor")
def clamp_max(rec: Recorder, out: torch.Tensor, x: torch.Tensor, high: Operand) -> None:
    clamp(rec, out, x, None, high)


@lowering("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(rec: Recorder, out: torch.Tensor, x: torch.Tensor, mask: torch.Tensor, value: Operand) -> None:
    kind = ir_dtype(out.dtype)
    elementwise(rec, out, [mask, x, value], lambda m, a, b: m.where(b.to(kind), a))


@lowering(
    "clone.default",
    "_to_copy.default",
    "contiguous.default",
    "prims.convert_element_type.default",
    "copy.default",
    "lift_fresh_copy.default",
    "prims.device_put.default",
    "alias_copy.default",
)
def copy(rec: Recorder, out: torch.Tensor, x: torch.Tensor, *rest: object, **options: object) -> None:
    source = rest[0] if rest and isinstance(rest[0], torch.Tensor) else x
    elementwise(rec, out, [source], lambda a: a)

"""Pointwise ops: arithmetic, comparisons, activations, casts and copies."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from handheld.capture.record import Recorder, expand, is_dense, permute, physical_order
from handheld.capture.registry import LOWERINGS, lowering
from handheld.capture.state import ir_dtype
from handheld.capture.values import Val, constant, iota, linear_index
from handheld.graph.program import Builder

Operand = torch.Tensor | float | int | bool


def elementwise(rec: Recorder, out: torch.Tensor, operands: Sequence[Any], build: Callable[..., Val],
                compute: str | None = None) -> None:
    """A map over `out`, in the order of its memory. Numbers among `operands` become constants;
    `compute` is the type that everything is cast to first."""
    order = physical_order(out) if is_dense(out) else list(range(out.dim()))
    tensors = [o for o in operands if isinstance(o, torch.Tensor)]
    views = [permute(expand(rec.read(t), tuple(out.shape)), order) for t in tensors]
    target = ir_dtype(out.dtype)

    def program(*loaded: Any) -> Val:
        builder = loaded[0] if isinstance(loaded[0], Builder) else loaded[0].builder
        vals = iter(loaded if isinstance(loaded[0], Val) else loaded[1:])
        given = []
        for operand in operands:
            if isinstance(operand, torch.Tensor):
                val = next(vals)
                given.append(val.to(compute) if compute else val)
            else:
                kind = compute or ir_dtype(torch.tensor(operand).dtype)
                given.append(constant(builder, _fit(operand, kind), kind))
        return build(*given).to(target)

    shape = tuple(out.shape[d] for d in order)
    made = rec.map(shape, views, program)
    if is_dense(out):
        rec.bind_tensor(out, made.tensor)
    else:
        rec.bind(out, made)


def _fit(value: Any, kind: str) -> Any:
    if kind == "f32":
        return float(value)
    if kind == "bool":
        return bool(value)
    return max(-(2**31), min(2**31 - 1, int(value)))


def result_kind(*operands: Any) -> str:
    """The type PyTorch computes in for these operands."""
    dtype = None
    for a in operands:
        other: Any = a
        dtype = (torch.result_type(dtype, other) if dtype is not None and not isinstance(dtype, torch.dtype)
                 else other if dtype is None else torch.result_type(torch.empty((), dtype=dtype), other))
        if isinstance(dtype, torch.dtype):
            # a tensor of one element stands for the type met so far
            dtype = torch.empty((1,), dtype=dtype) if isinstance(a, torch.Tensor) and a.dim() else \
                torch.empty((), dtype=dtype)
    if isinstance(dtype, torch.Tensor):
        return ir_dtype(dtype.dtype)
    return ir_dtype(torch.tensor(dtype).dtype)


_FLOAT_UNARY = ("exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh "
                "tanh asinh acosh atanh erf erfc sigmoid").split()
_SAME_UNARY = "neg abs ceil floor round trunc".split()
_COMPARE = "eq ne lt le gt ge".split()
_BITWISE = {"bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor"}
_LOGICAL = {"logical_and": "and", "logical_or": "or", "logical_xor": "xor"}


def _register_unary() -> None:
    def float_unary(op: str) -> Callable[..., None]:
        return lambda rec, out, x: elementwise(rec, out, [x], lambda a: a.unary(op), "f32")

    def same_unary(op: str) -> Callable[..., None]:
        return lambda rec, out, x: elementwise(rec, out, [x], lambda a: a.unary(op))

    for name in _FLOAT_UNARY:
        LOWERINGS[f"aten.{name}.default"] = float_unary(name)
    LOWERINGS["aten.special_erfc.default"] = float_unary("erfc")
    for name in _SAME_UNARY:
        LOWERINGS[f"aten.{name}.default"] = same_unary(name)
    for name, op in (("sign", "sign"), ("sgn", "sign"), ("bitwise_not", "bitnot")):
        LOWERINGS[f"aten.{name}.default"] = same_unary(op)
    for name in ("isnan", "isinf"):
        LOWERINGS[f"aten.{name}.default"] = lambda rec, out, x, op=name: elementwise(
            rec, out, [x], lambda a: a.unary(op, "bool"))
    LOWERINGS["aten.logical_not.default"] = lambda rec, out, x: elementwise(
        rec, out, [x], lambda a: a.to("bool").unary("not"))


def _register_binary() -> None:
    def compare(op: str) -> Callable[..., None]:
        return lambda rec, out, a, b: elementwise(
            rec, out, [a, b], lambda x, y: x.binary(op, y, "bool"), result_kind(a, b))

    def joined(op: str, kind: str | None) -> Callable[..., None]:
        return lambda rec, out, a, b: elementwise(
            rec, out, [a, b], lambda x, y: x.binary(op, y), kind or result_kind(a, b))

    for name in _COMPARE:
        for overload in ("Tensor", "Scalar"):
            LOWERINGS[f"aten.{name}.{overload}"] = compare(name)
    for name, op in _BITWISE.items():
        for overload in ("Tensor", "Scalar"):
            LOWERINGS[f"aten.{name}.{overload}"] = joined(op, None)
    LOWERINGS["aten.__and__.Tensor"] = joined("and", None)
    LOWERINGS["aten.__or__.Tensor"] = joined("or", None)
    for name, op in _LOGICAL.items():
        LOWERINGS[f"aten.{name}.default"] = joined(op, "bool")
    for name, op in (("maximum", "max"), ("minimum", "min"), ("fmod", "fmod"), ("remainder", "mod"),
                     ("atan2", "atan2"), ("bitwise_left_shift", "shl"), ("bitwise_right_shift", "shr")):
        kind = "f32" if name == "atan2" else None
        for overload in ("default", "Tensor", "Scalar", "Tensor_Scalar"):
            LOWERINGS[f"aten.{name}.{overload}"] = joined(op, kind)


_register_unary()
_register_binary()


@lowering("add.Tensor", "add.Scalar")
def add(rec: Recorder, out: torch.Tensor, a: Operand, b: Operand, alpha: float = 1) -> None:
    kind = ir_dtype(out.dtype)
    if kind == "bool":
        elementwise(rec, out, [a, b], lambda x, y: x.binary("or", y), kind)
    elif alpha == 1:
        elementwise(rec, out, [a, b], lambda x, y: x + y, kind)
    else:
        elementwise(rec, out, [a, b], lambda x, y: x + y * _fit(alpha, kind), kind)


@lowering("sub.Tensor", "sub.Scalar")
def sub(rec: Recorder, out: torch.Tensor, a: Operand, b: Operand, alpha: float = 1) -> None:
    kind = ir_dtype(out.dtype)
    if alpha == 1:
        elementwise(rec, out, [a, b], lambda x, y: x - y, kind)
    else:
        elementwise(rec, out, [a, b], lambda x, y: x - y * _fit(alpha, kind), kind)


@lowering("rsub.Tensor", "rsub.Scalar")
def rsub(rec: Recorder, out: torch.Tensor, a: Operand, b: Operand, alpha: float = 1) -> None:
    sub(rec, out, b, a, alpha=1) if alpha == 1 else elementwise(
        rec, out, [a, b], lambda x, y: y - x * alpha, ir_dtype(out.dtype))


@lowering("mul.Tensor", "mul.Scalar")
def mul(rec: Recorder, out: torch.Tensor, a: Operand, b: Operand) -> None:
    kind = ir_dtype(out.dtype)
    op = "and" if kind == "bool" else "mul"
    elementwise(rec, out, [a, b], lambda x, y: x.binary(op, y), kind)


@lowering("div.Tensor", "div.Scalar", "true_divide.Tensor")
def div(rec: Recorder, out: torch.Tensor, a: Operand, b: Operand) -> None:
    elementwise(rec, out, [a, b], lambda x, y: x / y, "f32")


@lowering("div.Tensor_mode", "div.Scalar_mode")
def div_mode(rec: Recorder, out: torch.Tensor, a: Operand, b: Operand, rounding_mode: str | None = None) -> None:
    if rounding_mode is None:
        return div(rec, out, a, b)
    op = "floordiv" if rounding_mode == "floor" else "truncdiv"
    return elementwise(rec, out, [a, b], lambda x, y: x.binary(op, y), ir_dtype(out.dtype))


@lowering("floor_divide.default", "floor_divide.Scalar")
def floor_divide(rec: Recorder, out: torch.Tensor, a: Operand, b: Operand) -> None:
    elementwise(rec, out, [a, b], lambda x, y: x.binary("floordiv", y), ir_dtype(out.dtype))


@lowering("reciprocal.default")
def reciprocal(rec: Recorder, out: torch.Tensor, a: Operand) -> None:
    elementwise(rec, out, [a], lambda x: 1.0 / x, "f32")


@lowering("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar")
def power(rec: Recorder, out: torch.Tensor, a: Operand, b: Operand) -> None:
    kind = ir_dtype(out.dtype)
    simple: dict[float, Callable[[Val], Val]] = {
        0.5: lambda x: x.unary("sqrt"), 1.0: lambda x: x, 2.0: lambda x: x * x,
        3.0: lambda x: x * x * x, -0.5: lambda x: x.unary("rsqrt"), -1.0: lambda x: 1.0 / x,
        4.0: lambda x: (x * x) * (x * x),
    }
    if not isinstance(b, torch.Tensor) and float(b) in simple and (kind == "f32" or b in (1, 2, 3, 4)):
        elementwise(rec, out, [a], simple[float(b)], kind)
    else:
        elementwise(rec, out, [a, b], lambda x, y: x.binary("pow", y), kind)


@lowering("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def where(rec: Recorder, out: torch.Tensor, c: Operand, a: Operand, b: Operand) -> None:
    kind = ir_dtype(out.dtype)
    build = lambda x, y, z: x.to("bool").where(y.to(kind), z.to(kind))  # noqa: E731
    elementwise(rec, out, [c, a, b], build)


@lowering("clamp.default", "clamp.Tensor")
def clamp(rec: Recorder, out: torch.Tensor, x: torch.Tensor, min: Any = None, max: Any = None) -> None:
    bounds = [b for b in (min, max) if b is not None]
    ops = [op for op, b in (("max", min), ("min", max)) if b is not None]

    def build(value: Val, *limits: Val) -> Val:
        for op, limit in zip(ops, limits):
            value = value.binary(op, limit)
        return value

    elementwise(rec, out, [x, *bounds], build, ir_dtype(out.dtype))


@lowering("clamp_min.default", "clamp_min.Tensor")
def clamp_min(rec: Recorder, out: torch.Tensor, x: torch.Tensor, low: Any) -> None:
    clamp(rec, out, x, low)


@lowering("clamp_max.default", "clamp_max.Tensor")
def clamp_max(rec: Recorder, out: torch.Tensor, x: torch.Tensor, high: Any) -> None:
    clamp(rec, out, x, None, high)


@lowering("relu.default")
def relu(rec: Recorder, out: torch.Tensor, x: torch.Tensor) -> None:
    elementwise(rec, out, [x], lambda a: a.binary("max", 0))


@lowering("threshold_backward.default")
def threshold_backward(rec: Recorder, out: torch.Tensor, g: torch.Tensor, x: torch.Tensor, t: float) -> None:
    elementwise(rec, out, [g, x], lambda a, b: b.le(t).where(0.0, a), "f32")


@lowering("hardtanh.default")
def hardtanh(rec: Recorder, out: torch.Tensor, x: torch.Tensor, low: float = -1, high: float = 1) -> None:
    elementwise(rec, out, [x], lambda a: a.binary("max", float(low)).binary("min", float(high)), "f32")


@lowering("hardtanh_backward.default")
def hardtanh_backward(rec: Recorder, out: torch.Tensor, g: torch.Tensor, x: torch.Tensor,
                      low: float, high: float) -> None:
    elementwise(rec, out, [g, x], lambda a, b: b.gt(float(low)).both(b.lt(float(high))).where(a, 0.0), "f32")


@lowering("silu.default")
def silu(rec: Recorder, out: torch.Tensor, x: torch.Tensor) -> None:
    elementwise(rec, out, [x], lambda a: a * a.unary("sigmoid"))


@lowering("silu_backward.default")
def silu_backward(rec: Recorder, out: torch.Tensor, g: torch.Tensor, x: torch.Tensor) -> None:
    def build(a: Val, b: Val) -> Val:
        s = b.unary("sigmoid")
        return a * s * (1.0 + b * (1.0 - s))

    elementwise(rec, out, [g, x], build)


_R2 = math.sqrt(0.5)


@lowering("gelu.default")
def gelu(rec: Recorder, out: torch.Tensor, x: torch.Tensor, approximate: str = "none") -> None:
    def exact(a: Val) -> Val:
        return 0.5 * a * (1.0 + (a * _R2).unary("erf"))

    def tanh(a: Val) -> Val:
        return 0.5 * a * (1.0 + (math.sqrt(2 / math.pi) * (a + 0.044715 * a * a * a)).unary("tanh"))

    elementwise(rec, out, [x], exact if approximate == "none" else tanh)


@lowering("gelu_backward.default")
def gelu_backward(rec: Recorder, out: torch.Tensor, g: torch.Tensor, x: torch.Tensor,
                  approximate: str = "none") -> None:
    def exact(d: Val, a: Val) -> Val:
        cdf = 0.5 * (1.0 + (a * _R2).unary("erf"))
        return d * (cdf + a * (a * a * -0.5).unary("exp") * (1 / math.sqrt(2 * math.pi)))

    def tanh(d: Val, a: Val) -> Val:
        k = math.sqrt(2 / math.pi)
        t = (k * (a + 0.044715 * a * a * a)).unary("tanh")
        inner = k * (1.0 + 3 * 0.044715 * a * a)
        return d * (0.5 * (1.0 + t) + 0.5 * a * (1.0 - t * t) * inner)

    elementwise(rec, out, [g, x], exact if approximate == "none" else tanh)


@lowering("leaky_relu.default")
def leaky_relu(rec: Recorder, out: torch.Tensor, x: torch.Tensor, slope: float = 0.01) -> None:
    elementwise(rec, out, [x], lambda a: a.gt(0.0).where(a, a * float(slope)))


@lowering("leaky_relu_backward.default")
def leaky_relu_backward(rec: Recorder, out: torch.Tensor, g: torch.Tensor, x: torch.Tensor,
                        slope: float, is_result: bool) -> None:
    elementwise(rec, out, [g, x], lambda a, b: b.gt(0.0).where(a, a * float(slope)))


@lowering("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(rec: Recorder, out: torch.Tensor, x: torch.Tensor, mask: torch.Tensor, value: Any) -> None:
    kind = ir_dtype(out.dtype)
    elementwise(rec, out, [mask, x, value], lambda m, a, b: m.where(b.to(kind), a))


@lowering("clone.default", "_to_copy.default", "contiguous.default", "prims.convert_element_type.default",
          "copy.default", "lift_fresh_copy.default", "prims.device_put.default", "alias_copy.default")
def copy(rec: Recorder, out: torch.Tensor, x: torch.Tensor, *rest: Any, **options: Any) -> None:
    source = rest[0] if rest and isinstance(rest[0], torch.Tensor) else x
    elementwise(rec, out, [source], lambda a: a)


@lowering("fill.Scalar", "fill.Tensor")
def fill(rec: Recorder, out: torch.Tensor, x: torch.Tensor, value: Any) -> None:
    elementwise(rec, out, [value], lambda a: a, ir_dtype(out.dtype))


@lowering("full.default", "full_like.default", "new_full.default", "scalar_tensor.default")
def full(rec: Recorder, out: torch.Tensor, *args: Any, **options: Any) -> None:
    value = args[-1] if len(args) > 1 else options.get("fill_value", args[0])
    elementwise(rec, out, [value], lambda a: a, ir_dtype(out.dtype))


@lowering("zeros.default", "zeros_like.default", "new_zeros.default", "zero.default", "empty.memory_format",
          "empty_like.default", "new_empty.default", "empty_strided.default", "new_empty_strided.default",
          "empty_permuted.default")
def zeros(rec: Recorder, out: torch.Tensor, *args: Any, **options: Any) -> None:
    elementwise(rec, out, [0], lambda a: a, ir_dtype(out.dtype))


@lowering("ones.default", "ones_like.default", "new_ones.default")
def ones(rec: Recorder, out: torch.Tensor, *args: Any, **options: Any) -> None:
    elementwise(rec, out, [1], lambda a: a, ir_dtype(out.dtype))


@lowering("arange.default", "arange.start", "arange.start_step")
def arange(rec: Recorder, out: torch.Tensor, *args: Any, **options: Any) -> None:
    start = args[0] if len(args) > 1 else 0
    step = args[2] if len(args) > 2 else 1
    kind = ir_dtype(out.dtype)
    view = rec.map(tuple(out.shape), [], lambda b: iota(b, 0).to(kind) * _fit(step, kind) + _fit(start, kind))
    rec.bind(out, view)


@lowering("eye.default", "eye.m")
def eye(rec: Recorder, out: torch.Tensor, *args: Any, **options: Any) -> None:
    kind = ir_dtype(out.dtype)
    rec.bind(out, rec.map(tuple(out.shape), [], lambda b: iota(b, 0).eq(iota(b, 1)).to(kind)))


@lowering("tril.default", "triu.default")
def triangle(rec: Recorder, out: torch.Tensor, x: torch.Tensor, diagonal: int = 0) -> None:
    kind, rank, lower = ir_dtype(out.dtype), x.dim(), rec.source == "aten.tril.default"

    def build(a: Val) -> Val:
        row, col = iota(a.builder, rank - 2), iota(a.builder, rank - 1)
        keep = col.le(row + diagonal) if lower else col.ge(row + diagonal)
        return keep.where(a, _fit(0, kind))

    rec.bind(out, rec.map(tuple(out.shape), [rec.read(x)], build))


# ── random: Philox of (seed, key, step, index), so that layout and fusion cannot change it ────────


def uniform(rec: Recorder, shape: tuple[int, ...], build: Callable[..., Val], inputs: Sequence[torch.Tensor] = ()) -> Any:
    """A map that also gets a uniform number in [0, 1) for each point."""
    seed, step = rec.slot_view("handheld.seed"), rec.slot_view("handheld.step")
    key = rec.random_key()

    def program(s: Val, t: Val, *rest: Val) -> Val:
        index = linear_index(s.builder)
        number = s.builder.op("random", "f32", index.index, s.index, t.index, params=(key,))
        return build(Val(s.builder, number, "f32"), *rest)

    return rec.map(shape, [seed, step, *(rec.read(t) for t in inputs)], program)


@lowering("native_dropout.default")
def native_dropout(rec: Recorder, out: tuple[torch.Tensor, torch.Tensor], x: torch.Tensor, p: float,
                   train: bool | None = None) -> None:
    scale = 0.0 if p >= 1 else 1 / (1 - p)
    mask = uniform(rec, tuple(x.shape), lambda u: u.ge(float(p)))
    rec.bind(out[1], mask)
    elementwise(rec, out[0], [x, out[1]], lambda a, m: m.where(a * scale, 0.0))


@lowering("bernoulli.p", "bernoulli.float")
def bernoulli_p(rec: Recorder, out: torch.Tensor, x: torch.Tensor, p: float = 0.5, generator: Any = None) -> None:
    rec.bind(out, uniform(rec, tuple(x.shape), lambda u: u.lt(float(p)).to(ir_dtype(out.dtype))))


@lowering("bernoulli_.float")
def bernoulli_in_place(rec: Recorder, out: torch.Tensor, x: torch.Tensor, p: float = 0.5,
                       generator: Any = None) -> torch.Tensor:
    # ≥ 1 - p rather than < p: dropout keeps an element where its mask is 1
    view = uniform(rec, tuple(x.shape), lambda u: u.ge(float(1 - p)).to(ir_dtype(x.dtype)))
    with torch.utils._python_dispatch._disable_current_modes():
        value = torch.empty(x.shape, dtype=x.dtype, device="meta")
    rec.bind(value, view)
    rec.write(x, value)
    return x


@lowering("bernoulli.default")
def bernoulli(rec: Recorder, out: torch.Tensor, x: torch.Tensor, generator: Any = None) -> None:
    rec.bind(out, uniform(rec, tuple(x.shape), lambda u, p: u.lt(p).to("f32"), [x]))


@lowering("rand.default", "rand_like.default")
def rand(rec: Recorder, out: torch.Tensor, *args: Any, **options: Any) -> None:
    rec.bind(out, uniform(rec, tuple(out.shape), lambda u: u))


@lowering("randn.default", "randn_like.default")
def randn(rec: Recorder, out: torch.Tensor, *args: Any, **options: Any) -> None:
    shape = tuple(out.shape)
    first, second = uniform(rec, shape, lambda u: u), uniform(rec, shape, lambda u: u)

    def box_muller(a: Val, b: Val) -> Val:
        radius = ((1.0 - a).unary("log") * -2.0).unary("sqrt")  # 1 - u is never 0
        return radius * (b * (2 * math.pi)).unary("cos")

    rec.bind(out, rec.map(shape, [first, second], box_muller))


@lowering("randint.default", "randint.low", "randint_like.default", "randint_like.low_dtype")
def randint(rec: Recorder, out: torch.Tensor, *args: Any, **options: Any) -> None:
    numbers = [a for a in args if isinstance(a, int)]
    low, high = (0, numbers[0]) if len(numbers) == 1 else (numbers[0], numbers[1])
    rec.bind(out, uniform(rec, tuple(out.shape), lambda u: (u * float(high - low)).to("i32") + low))

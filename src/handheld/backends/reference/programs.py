"""Runs scalar programs on PyTorch tensors: one PyTorch op per instruction, on any device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from handheld.graph import interpret
from handheld.graph.dtypes import DTYPES, F32, I32
from handheld.graph.graph import View


class TorchArrays(interpret.Arrays[torch.Tensor]):
    """The tensors of a graph. f32 is computed in `float_dtype`."""

    def __init__(
        self, values: Mapping[int, torch.Tensor], float_dtype: torch.dtype, device: torch.device | str
    ) -> None:
        self.values = values
        self.device = device
        self.dtypes = {name: getattr(torch, row.torch) for name, row in DTYPES.items()} | {F32: float_dtype}

    def view(self, view: View) -> torch.Tensor:
        """Returns the elements of a view. They may share memory with its tensor."""
        elements = self.strided(view.tensor, view.shape, view.strides, view.offset)
        return self.cast(elements, F32) if elements.dtype is torch.float16 else elements

    def strided(self, tensor: int, shape: Sequence[int], strides: Sequence[int], offset: int) -> torch.Tensor:
        flat = self.flat(tensor)
        if 0 in shape or flat.numel() == 0:
            return flat.new_zeros(tuple(shape))
        return strided(flat, shape, strides, offset)

    def flat(self, tensor: int) -> torch.Tensor:
        return self.values[tensor].reshape(-1)

    def full(self, shape: Sequence[int], value: float, dtype: str) -> torch.Tensor:
        return torch.full(tuple(shape), value, dtype=self.dtypes[dtype], device=self.device)

    def arange(self, size: int) -> torch.Tensor:
        return torch.arange(size, dtype=torch.int32, device=self.device)

    def cast(self, x: torch.Tensor, dtype: str) -> torch.Tensor:
        return x.to(self.dtypes[dtype])

    def long(self, x: torch.Tensor) -> torch.Tensor:
        return x.long()

    def expand(self, x: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        return x.expand(tuple(shape))

    def apply(self, op: str, dtype: str, args: Sequence[torch.Tensor]) -> torch.Tensor:
        if op in _INTEGER and dtype == I32:
            return _INTEGER[op](*args)
        return _TABLE[op](*args)

    def reduce(self, op: str, x: torch.Tensor, axes: Sequence[int]) -> torch.Tensor:
        if op in _REDUCE:
            return _REDUCE[op](x, dim=tuple(axes), keepdim=True)
        kept = [1 if d in axes else n for d, n in enumerate(x.shape)]
        outer = [d for d in range(x.dim()) if d not in axes]
        rows = x.permute([*outer, *axes]).flatten(len(outer))
        if op == "prod":
            return rows.prod(dim=-1).reshape(kept)
        rows = rows.int() if rows.dtype is torch.bool else rows
        return (rows.argmax(dim=-1) if op == "arg_max" else rows.argmin(dim=-1)).reshape(kept)


def strided(flat: torch.Tensor, shape: Sequence[int], strides: Sequence[int], offset: int) -> torch.Tensor:
    """Like `as_strided` within `flat`, but negative strides work too (with a copy)."""
    back = [d for d, s in enumerate(strides) if s < 0]
    offset += sum((shape[d] - 1) * strides[d] for d in back)
    out = flat.as_strided(tuple(shape), tuple(abs(s) for s in strides), flat.storage_offset() + offset)
    return out.flip(back) if back else out


def _divide(mode: str) -> Callable[..., torch.Tensor]:
    def divide(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        safe = torch.where(b == 0, 1, b).long()  # INT_MIN / -1 would overflow in 32 bits.
        return torch.where(b == 0, 0, torch.div(a.long(), safe, rounding_mode=mode))

    return divide


def _modulo(op: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def modulo(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.where(b == 0, 0, op(a.long(), torch.where(b == 0, 1, b).long()))

    return modulo


def _pow(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Raises integers to integer powers. The result of a negative power is truncated."""
    inverse = torch.where(a.abs() == 1, torch.where((b & 1) == 1, a, 1), 0)
    return torch.where(b < 0, inverse, torch.pow(a, b.clamp(min=0)))


_REDUCE: dict[str, Callable[..., torch.Tensor]] = {
    "sum": torch.sum,
    "max_of": torch.amax,
    "min_of": torch.amin,
    "any_of": torch.any,
    "all_of": torch.all,
}

_INTEGER: dict[str, Callable[..., torch.Tensor]] = {
    "floordiv": _divide("floor"),
    "truncdiv": _divide("trunc"),
    "mod": _modulo(torch.remainder),
    "fmod": _modulo(torch.fmod),
    "pow": _pow,
}

_TABLE: dict[str, Callable[..., torch.Tensor]] = {
    "neg": torch.neg,
    "abs": torch.abs,
    "sign": torch.sign,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "log": torch.log,
    "log2": torch.log2,
    "log10": torch.log10,
    "log1p": torch.log1p,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "sin": torch.sin,
    "cos": torch.cos,
    "tan": torch.tan,
    "asin": torch.asin,
    "acos": torch.acos,
    "atan": torch.atan,
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "tanh": torch.tanh,
    "asinh": torch.asinh,
    "acosh": torch.acosh,
    "atanh": torch.atanh,
    "erf": torch.erf,
    "erfc": torch.erfc,
    "ceil": torch.ceil,
    "floor": torch.floor,
    "round": torch.round,
    "trunc": torch.trunc,
    "not": torch.logical_not,
    "bitnot": torch.bitwise_not,
    "isnan": torch.isnan,
    "isinf": torch.isinf,
    "sigmoid": torch.sigmoid,
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.true_divide,
    "floordiv": torch.floor_divide,
    "mod": torch.remainder,
    "fmod": torch.fmod,
    "truncdiv": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "pow": torch.pow,
    "atan2": torch.atan2,
    "max": torch.maximum,
    "min": torch.minimum,
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,  # For bools this is the logical xor.
    "shl": torch.bitwise_left_shift,
    "shr": torch.bitwise_right_shift,
    "where": torch.where,
}

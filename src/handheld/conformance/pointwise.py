"""Pointwise ops, activations, casts, creation, in-place writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import nn

from handheld.conformance.case import Case, cl, inside, ints, mask, module, normal, of, positive

S = (3, 7)  # small and prime

_ANY = [
    "exp",
    "exp2",
    "expm1",
    "sin",
    "cos",
    "tan",
    "sinh",
    "cosh",
    "tanh",
    "atan",
    "asinh",
    "erf",
    "erfc",
    "sigmoid",
    "neg",
    "abs",
    "sign",
    "ceil",
    "floor",
    "round",
    "trunc",
]
_POSITIVE = ["log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "square"]
_INSIDE = ["asin", "acos", "atanh", "frac", "logit"]
_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "relu6": nn.ReLU6,
    "elu": lambda: nn.ELU(0.7),
    "selu": nn.SELU,
    "celu": lambda: nn.CELU(1.3),
    "gelu": nn.GELU,
    "gelu-tanh": lambda: nn.GELU("tanh"),
    "silu": nn.SiLU,
    "mish": nn.Mish,
    "softplus": nn.Softplus,
    "softplus-beta": lambda: nn.Softplus(2.0, 3.0),
    "softsign": nn.Softsign,
    "tanhshrink": nn.Tanhshrink,
    "softshrink": lambda: nn.Softshrink(0.3),
    "hardshrink": lambda: nn.Hardshrink(0.3),
    "hardtanh": lambda: nn.Hardtanh(-0.5, 0.8),
    "hardsigmoid": nn.Hardsigmoid,
    "hardswish": nn.Hardswish,
    "leaky_relu": lambda: nn.LeakyReLU(0.1),
    "threshold": lambda: nn.Threshold(0.2, -1.0),
    "logsigmoid": nn.LogSigmoid,
    "glu": lambda: nn.GLU(1),
    "softmin": lambda: nn.Softmin(1),
    "softmax2d": nn.Softmax2d,
    "prelu-one": nn.PReLU,
    "prelu": lambda: nn.PReLU(6),
}


def _unary() -> Iterator[Case]:
    for name in _ANY:
        yield of(f"unary {name}", getattr(torch, name), normal(*S))
    for name in _POSITIVE:
        yield of(f"unary {name}", getattr(torch, name), positive(*S))
    for name in _INSIDE:
        yield of(
            f"unary {name}", getattr(torch, name), inside(*S) if name != "logit" else lambda: torch.rand(S) * 0.8 + 0.1
        )
    yield of("unary acosh", lambda x: torch.acosh(x + 1), positive(*S))
    yield of("unary sinc", torch.sinc, normal(*S))
    yield of("unary lgamma by parts", lambda x: torch.special.xlog1py(x, x), positive(*S))
    yield of("unary xlogy", torch.xlogy, positive(*S), positive(*S))
    yield of(
        "fake_quantize tensor",
        lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 3, -8, 7),
        normal(*S),
        rounded=True,
    )
    yield of(
        "fake_quantize channels",
        lambda x: torch.fake_quantize_per_channel_affine(
            x, 0.1 + 0.1 * torch.arange(x.shape[1]), torch.arange(x.shape[1]).int() % 3, 1, -8, 7
        ),
        normal(*S),
        rounded=True,
    )
    yield of("is all true", lambda x: torch._is_all_true(x > 0) | torch._is_any_true(x > 0), normal(*S))
    yield of("unary of int", lambda x: x.float().sqrt() + torch.sin(x), ints(9, *S), rounded=True)
    yield of(
        "unary nan_to_num", lambda x: torch.nan_to_num(x / x.round(), 0.5, 3.0, -2.0), lambda: torch.randn(S) * 0.6
    )
    yield of(
        "unary isfinite",
        lambda x: (torch.isfinite(1 / x.round()), torch.isnan(x), torch.isinf(1 / x.round())),
        normal(*S),
    )
    yield of("unary 0-dim", lambda x: x.exp() * 2 + x.sum(), normal())
    yield of("unary empty", lambda x: x.exp() + 1, normal(0, 3))
    yield of("unary size 1", lambda x: x.tanh(), normal(1, 1, 1))
    for name, make in _ACTIVATIONS.items():
        yield module(
            f"activation {name}", make, normal(2, 6, 3, 5), rounded=name == "hardsigmoid"
        )  # PyTorch's constant 1/6 is float32.
    yield of("activation rrelu eval", lambda x: F.rrelu(x, training=False), normal(*S))
    yield of("activation inplace", lambda x: F.relu_(F.silu(x * 2, inplace=True)), normal(*S))
    yield of("activation channels last", lambda x: F.gelu(x).mul(2), cl(2, 5, 3, 4))


def _binary() -> Iterator[Case]:
    two = (normal(*S), normal(*S))
    for name in [
        "add",
        "sub",
        "mul",
        "div",
        "maximum",
        "minimum",
        "atan2",
        "fmod",
        "remainder",
        "hypot",
        "copysign",
        "logaddexp",
        "fmax",
        "fmin",
    ]:
        yield of(f"binary {name}", getattr(torch, name), normal(*S), normal(*S))
    yield of("binary pow", torch.pow, positive(*S), normal(*S))
    for power in (0, 0.5, 1, 2, 3, 4, -1, -0.5, 2.7, -2):
        yield of(f"binary pow {power}", lambda x, p=power: x**p, positive(*S))
    yield of("binary scalar pow", lambda x: 2.0**x, normal(*S))
    yield of(
        "binary alpha",
        lambda x, y: torch.add(x, y, alpha=2) + torch.sub(x, y, alpha=0.5) + torch.rsub(x, y, alpha=3),
        *two,
    )
    yield of("binary broadcast", lambda x, y, z: x * y + z, normal(3, 1, 5), normal(7, 1), normal(5))
    yield of("binary 0-dim", lambda x, y: x * y + y, normal(*S), normal())
    yield of("binary scalar", lambda x: 3 - x / 2 + 5 * x - 1 / x, positive(*S))
    yield of("binary transposed", lambda x, y: x.t() * y, normal(7, 3), normal(*S))
    yield of("binary expanded", lambda x, y: x.expand(5, 7) + y, normal(1, 7), normal(5, 7))
    yield of("binary channels last", lambda x, y: x + y, cl(2, 5, 3, 4), normal(2, 5, 3, 4))
    yield of(
        "binary int",
        lambda a, b: (a + b, a * b, a - b, a // (b + 1), a % (b + 1), a / (b + 1), a**2),
        ints(9, *S),
        ints(9, *S),
        rounded=True,
    )
    yield of("binary int and float", lambda a, x: a * x + a, ints(9, *S), normal(*S))
    yield of(
        "binary div modes",
        lambda x, y: (
            torch.div(x, y, rounding_mode="floor"),
            torch.div(x, y, rounding_mode="trunc"),
            x.detach() // y.detach(),
        ),
        normal(*S),
        positive(*S),
    )


def _choosing() -> Iterator[Case]:
    two = (normal(*S), normal(*S))
    yield of("binary compare", lambda x, y: (x > y, x >= y, x < 0.5, x <= y, x == y.round(), x != y), *two)
    yield of(
        "binary bool",
        lambda a, b: (a & b, a | b, a ^ b, ~a, a.logical_not(), a.logical_xor(b), a.float() * 2),
        mask(*S),
        mask(*S),
        rounded=True,
    )
    yield of("binary bits", lambda a, b: (a & b, a | b, a ^ b, ~a, a << 2, a >> 1), ints(64, *S), ints(64, *S))
    yield of("binary lerp", lambda x, y: torch.lerp(x, y, 0.3), *two)
    yield of("binary lerp tensor", torch.lerp, normal(*S), normal(*S), positive(*S))
    yield of(
        "binary addcmul",
        lambda x, y, z: torch.addcmul(x, y, z, value=0.5) + torch.addcdiv(x, y, z, value=2),
        normal(*S),
        normal(*S),
        positive(*S),
    )
    yield of("binary where", torch.where, mask(*S), normal(*S), normal(7))
    yield of("binary where scalar", lambda m, x: torch.where(m, x, 0.0) + torch.where(m, 1.0, x), mask(*S), normal(*S))
    yield of("binary masked_fill", lambda m, x: x.masked_fill(m, -2.0), mask(*S), normal(*S))
    yield of("binary clamp", lambda x: x.clamp(-0.5, 0.7) + x.clamp(min=0.1) + x.clamp(max=0.3), normal(*S))
    yield of("binary clamp tensor", torch.clamp, normal(*S), lambda: -torch.rand(S), positive(*S))
    yield of("binary cross", torch.linalg.cross, normal(5, 3), normal(5, 3))
    yield of("binary dist", torch.dist, *two)
    yield of(
        "binary bits by number",
        lambda a, b: (a | 5, a ^ 3, a & 6, a.bitwise_left_shift(b), a.bitwise_right_shift(b), a << b, a >> b),
        ints(64, *S),
        ints(3, *S),
    )
    yield of("binary floor by number", lambda a, x: (a // 3, x.detach() // 0.7), ints(9, *S), normal(*S))
    yield of("binary div mode number", lambda x: torch.div(x, 0.3, rounding_mode="floor"), normal(*S))
    yield of("binary clamp_max", lambda x, y: x.clamp_max(0.3) + torch.clamp_max(x, y), normal(*S), normal(*S))
    yield of("binary masked_fill tensor", lambda m, x, v: x.masked_fill(m, v), mask(*S), normal(*S), normal())
    yield of("binary copysign number", lambda x: torch.copysign(x, -2.0), normal(*S))
    yield of("unary signbit angle", lambda x: (torch.signbit(x), torch.angle(x)), normal(*S))
    yield of("unary round decimals", lambda x: (x.round(decimals=2), (x * 100).round(decimals=-1)), normal(*S))


def _casts() -> Iterator[Case]:
    yield of("cast", lambda x: (x.int(), x.bool(), (x * 3).long(), x.double() * 2, x.to(torch.int32) * x), normal(*S))
    yield of("cast int", lambda a: (a.float() / 3, a.bool(), a.int(), a.to(torch.uint8)), ints(9, *S), rounded=True)
    yield of("cast half", lambda x: x.half().float().sum() * 0 + x, normal(*S))
    yield of("copy", lambda x: x.clone() + x.t().contiguous().t(), normal(*S))
    yield of("copy memory format", lambda x: x.contiguous(memory_format=torch.channels_last) * 2, normal(2, 3, 4, 5))


def _creation() -> Iterator[Case]:
    yield of(
        "create",
        lambda x: x + torch.zeros(7) + torch.ones_like(x) + torch.full((3, 1), 2.5) + x.new_zeros(S),
        normal(*S),
    )
    yield of(
        "create arange", lambda x: x * torch.arange(7) + torch.arange(0, 3.5, 0.5) + torch.arange(9, 2, -1), normal(*S)
    )
    yield of("create linspace", lambda x: x * torch.linspace(-1, 2, 7, dtype=x.dtype), normal(*S), rounded=True)
    yield of("create strided", lambda x: x + torch.empty_strided(S, (1, 3)).zero_() + x.new_ones(7), normal(*S))
    yield of("create eye square", lambda x: x @ torch.eye(7, dtype=x.dtype), normal(*S))
    yield of("create eye", lambda x: x + torch.eye(3, 7), normal(*S))
    yield of("create tri", lambda x: x.tril() + x.triu(1) + x.tril(-2), normal(*S))
    yield of("create tri indices", lambda x: x[torch.tril_indices(3, 3)[0], torch.tril_indices(3, 3)[1]], normal(*S))
    yield of("create tensor", lambda x: x * torch.tensor([1.0, 2, 3, 4, 5, 6, 7]) + torch.tensor(2.0), normal(*S))
    yield of("create one_hot", lambda a, x: F.one_hot(a, 5).to(x.dtype) @ x, ints(5, 4), normal(5, 3))
    yield of("create meshgrid", lambda x, y: sum(torch.meshgrid(x, y, indexing="ij")), normal(3), normal(4))
    yield of("create diag", lambda x: torch.diag(x) + torch.diag_embed(x), normal(4))
    yield of("create bucketize", lambda x: torch.bucketize(x, torch.tensor([-1.0, 0, 0.5])), normal(*S))


def _in_place() -> Iterator[Case]:
    def slices(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = x * 1
        z[:, 0] = y[:, 1]
        z[1] += 2
        z[:, 2:5] *= y[:, :3]
        z[..., -1] = 0
        return z

    def strided(x: torch.Tensor) -> torch.Tensor:
        z = x.clone()
        z[::2, 1::3].mul_(3).add_(1)
        z.t()[2].zero_()
        return z

    def views(x: torch.Tensor) -> torch.Tensor:
        z = x.clone()
        flat = z.view(-1)
        flat[4:9] = flat[:5].clone() * 2
        z[1:].copy_(z[:1].expand(2, 4) + z[1:])
        return z

    def out(x: torch.Tensor) -> torch.Tensor:
        z = torch.empty(S, dtype=x.dtype)
        torch.mul(x.detach(), 2, out=z)
        torch.add(z, 1, out=z)
        return z + x

    def loop(x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(7, dtype=x.dtype)
        for row in x:
            total += row * row.cos()
        return total

    yield of("inplace slices", slices, normal(*S), normal(*S))
    yield of("inplace strided", strided, normal(5, 8))
    yield of("inplace views", views, normal(3, 4))
    yield of("inplace out", out, normal(*S))
    yield of("inplace loop", loop, normal(4, 7))
    yield of("inplace masked", lambda x, m: (x * 1).masked_fill_(m, 3.0).clamp_(min=-0.5).neg_(), normal(*S), mask(*S))
    yield of("inplace index", lambda x, i: (x * 1).index_fill_(0, i, 0.5), normal(5, 3), lambda: torch.tensor([0, 3]))
    yield of("inplace fill diagonal", lambda x: (x * 1).fill_diagonal_(2.0), normal(4, 4))
    yield of("inplace setitem mask", _set, normal(*S), mask(*S))
    yield of("inplace channels last", lambda x: x.mul(1).add_(1).relu_(), cl(2, 3, 4, 5))


def _set(x: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
    x = x * 1
    x[where] = 0.25
    return x


def pointwise_cases() -> list[Case]:
    return [*_unary(), *_binary(), *_choosing(), *_casts(), *_creation(), *_in_place()]

"""Lowerings of activation functions and their gradients."""

from __future__ import annotations

import math

import torch

from handheld.frontend.pointwise import elementwise
from handheld.frontend.record import Recorder
from handheld.frontend.registry import lowering
from handheld.frontend.values import Val
from handheld.graph.dtypes import F32


@lowering("relu.default")
def relu(rec: Recorder, out: torch.Tensor, x: torch.Tensor) -> None:
    elementwise(rec, out, [x], lambda a: a.binary("max", 0))


@lowering("threshold_backward.default")
def threshold_backward(rec: Recorder, out: torch.Tensor, g: torch.Tensor, x: torch.Tensor, t: float) -> None:
    elementwise(rec, out, [g, x], lambda a, b: b.le(t).where(0.0, a), F32)


@lowering("hardtanh.default")
def hardtanh(rec: Recorder, out: torch.Tensor, x: torch.Tensor, low: float = -1, high: float = 1) -> None:
    elementwise(rec, out, [x], lambda a: a.binary("max", float(low)).binary("min", float(high)), F32)


@lowering("hardtanh_backward.default")
def hardtanh_backward(
    rec: Recorder, out: torch.Tensor, g: torch.Tensor, x: torch.Tensor, low: float, high: float
) -> None:
    elementwise(rec, out, [g, x], lambda a, b: b.gt(float(low)).both(b.lt(float(high))).where(a, 0.0), F32)


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
def gelu_backward(
    rec: Recorder, out: torch.Tensor, g: torch.Tensor, x: torch.Tensor, approximate: str = "none"
) -> None:
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
def leaky_relu_backward(
    rec: Recorder, out: torch.Tensor, g: torch.Tensor, x: torch.Tensor, slope: float, is_result: bool
) -> None:
    elementwise(rec, out, [g, x], lambda a, b: b.gt(0.0).where(a, a * float(slope)))

"""The contractions that bench/kernels.py times: matrix products and convolutions of the suite."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from handheld.graph.graph import Graph, GraphInput, GraphOutput, Node, Origin, Tensor, View, contiguous_strides
from handheld.graph.program import Instr, Store

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Contraction:
    """One node. `t` says which operand of a matmul is transposed in memory. `a` and `b` of a convolution are
    x and w, also for its gradients."""

    op: str
    a: Shape
    b: Shape
    t: str = ""
    stride: int = 1
    padding: int = 0

    @property
    def name(self) -> str:
        sizes = " ".join("x".join(map(str, shape)) for shape in (self.a, self.b))
        more = f" /{self.stride}" if self.stride > 1 else ""
        return f"{sizes}{more}{' ' + self.t + 'ᵀ' if self.t else ''}"


#: m, n, k, and which operands are transposed: forward "b", gradient in x "", in w "a"
PRODUCTS = (
    ((2048,), 2048, 2048, ""),
    ((4096,), 4096, 4096, ""),
    ((2048,), 1024, 256, "b"),
    ((2048,), 256, 1024, ""),
    ((1024,), 256, 2048, "a"),
    ((2048,), 5000, 256, "b"),
    ((2048,), 256, 5000, ""),
    ((5000,), 256, 2048, "a"),
    ((2048,), 768, 256, "b"),
    ((2048,), 256, 256, ""),
    ((256,), 256, 2048, "a"),
    ((64, 128), 128, 64, "b"),
    ((64, 128), 64, 128, ""),
    ((64, 128), 64, 128, "a"),
    ((128,), 1024, 784, "b"),
    ((128,), 1024, 1024, "b"),
    ((1024,), 1024, 128, "a"),
    ((64,), 120, 400, "b"),
    ((32,), 10, 1280, "b"),
)
#: x, out channels, kernel, stride, padding
CONVOLUTIONS = (
    ((64, 1, 28, 28), 6, 5, 1, 2),
    ((64, 6, 14, 14), 16, 5, 1, 0),
    ((32, 3, 32, 32), 32, 3, 2, 1),
    ((32, 16, 16, 16), 96, 1, 1, 0),
    ((32, 144, 8, 8), 24, 1, 1, 0),
    ((32, 64, 2, 2), 384, 1, 1, 0),
    ((32, 576, 2, 2), 96, 1, 1, 0),
    ((32, 960, 1, 1), 160, 1, 1, 0),
    ((32, 3, 32, 32), 64, 3, 1, 1),
    ((32, 64, 32, 32), 64, 3, 1, 1),
    ((32, 64, 32, 32), 128, 3, 2, 1),
    ((32, 64, 32, 32), 128, 1, 2, 0),
    ((32, 128, 16, 16), 128, 3, 1, 1),
    ((32, 256, 8, 8), 256, 3, 1, 1),
    ((32, 512, 4, 4), 512, 3, 1, 1),
    ((4, 3, 224, 224), 64, 7, 2, 3),
    ((4, 256, 56, 56), 64, 1, 1, 0),
    ((4, 64, 56, 56), 256, 1, 1, 0),
    ((4, 1024, 14, 14), 256, 1, 1, 0),
    ((4, 256, 14, 14), 256, 3, 1, 1),
    ((8, 16, 55, 55), 64, 3, 1, 1),
    ((8, 512, 13, 13), 64, 1, 1, 0),
    ((16, 64, 32, 32), 128, 4, 2, 1),
    ((16, 256, 8, 8), 512, 4, 2, 1),
)


def rows(large: bool) -> list[Contraction]:
    contractions = []
    for (*batch, m), n, k, t in PRODUCTS:
        if m * n * k < 2**36 or large:
            a = (*batch, k, m) if t == "a" else (*batch, m, k)
            b = (*batch, n, k) if t == "b" else (*batch, k, n)
            contractions.append(Contraction("matmul", a, b, t))
    for op in ("conv", "conv_input", "conv_weight"):
        for x, out, kernel, stride, padding in CONVOLUTIONS:
            contractions.append(Contraction(op, x, (out, x[1], kernel, kernel), "", stride, padding))
    return contractions


def operation(row: Contraction) -> tuple[list[Shape], Callable[..., torch.Tensor]]:
    """The shapes of the inputs, and the function with which PyTorch computes the result from them."""
    if row.op == "matmul":
        turn = {"a": lambda a, b: a.mT @ b, "b": lambda a, b: a @ b.mT, "": torch.matmul}
        return [row.a, row.b], turn[row.t]
    pair, pad = (row.stride, row.stride), (row.padding, row.padding)
    if row.op == "conv":
        return [row.a, row.b], lambda x, w: torch.conv2d(x, w, None, pair, pad)
    size = (torch.tensor(row.a[2:]) + 2 * row.padding - row.b[2]) // row.stride + 1
    y = (row.a[0], row.b[0], *size.tolist())
    which = row.op == "conv_weight"

    def gradient(dy: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        x, w = (other, blank(row.b, dy)) if which else (blank(row.a, dy), other)
        gradients: Any = torch.ops.aten.convolution_backward(
            dy, x, w, None, pair, pad, (1, 1), False, (0, 0), 1, (not which, which, False)
        )
        return gradients[int(which)]

    return [y, row.a if which else row.b], gradient


_blanks: dict[tuple[Shape, str], torch.Tensor] = {}


def blank(shape: Shape, like: torch.Tensor) -> torch.Tensor:
    """A tensor whose values are not read: the op needs only its shape."""
    return _blanks.setdefault((shape, like.device.type), torch.zeros(shape, device=like.device))


def graph_of(row: Contraction, inputs: list[torch.Tensor], out: Shape) -> Graph:
    """A graph of one node that reads its operands as PyTorch's op does."""
    shapes = [tuple(t.shape) for t in inputs] + [out]
    tensors = {i: Tensor(i, s, "f32", "input" if i < 2 else "activation") for i, s in enumerate(shapes)}
    views = []
    for i, t in enumerate(inputs):
        seen = t.mT if row.t == "ab"[i] else t
        views.append(View(i, tuple(seen.shape), tuple(seen.stride()), 0))
    attrs: dict[str, Any] = {"shape": out}
    if row.op != "matmul":
        attrs.update(stride=(row.stride,) * 2, padding=(row.padding,) * 2, dilation=(1, 1), groups=1)
    if row.op != "conv_weight":
        attrs.update(program=(Instr("acc", "f32"),), stores=(Store(0),))
    node = Node(row.op, tuple(views), (2,), attrs, Origin("forward", "", row.op))
    whole = View(2, out, contiguous_strides(out), 0)
    return Graph(
        "bench",
        tensors,
        (node,),
        (GraphInput("a", 0, "float32"), GraphInput("b", 1, "float32")),
        {},
        (),
        (GraphOutput("y", whole, "float32"),),
    )

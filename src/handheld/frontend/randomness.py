"""Lowerings of random ops.

Every number is Philox of (seed, key, step, index), where `key` belongs to the op and `index` to the element.
Layout and fusion therefore cannot change the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from handheld.frontend.pointwise import elementwise
from handheld.frontend.record import Recorder
from handheld.frontend.registry import decomposed, lowering
from handheld.frontend.state import ir_dtype
from handheld.frontend.values import Val, linear_index
from handheld.graph.dtypes import F32, I32
from handheld.graph.graph import View


def uniform(
    rec: Recorder, shape: tuple[int, ...], build: Callable[..., Val], inputs: Sequence[torch.Tensor] = ()
) -> Any:
    """Adds a map whose `build` gets a uniform random number in [0, 1) for each element, then the inputs."""
    seed, step = rec.slot_view("handheld.seed"), rec.slot_view("handheld.step")
    key = rec.random_key()

    def program(s: Val, t: Val, *rest: Val) -> Val:
        index = linear_index(s.builder)
        number = s.builder.op("random", F32, index.index, s.index, t.index, params=(key,))
        return build(Val(s.builder, number, F32), *rest)

    return rec.map(shape, [seed, step, *(rec.read(t) for t in inputs)], program)


@lowering("native_dropout.default")
def native_dropout(
    rec: Recorder, out: tuple[torch.Tensor, torch.Tensor], x: torch.Tensor, p: float, train: bool | None = None
) -> None:
    scale = 0.0 if p >= 1 else 1 / (1 - p)
    mask = uniform(rec, tuple(x.shape), lambda u: u.ge(float(p)))
    rec.bind(out[1], mask)
    elementwise(rec, out[0], [x, out[1]], lambda a, m: m.where(a * scale, 0.0))


@lowering("bernoulli.p")
def bernoulli_p(
    rec: Recorder, out: torch.Tensor, x: torch.Tensor, p: float = 0.5, generator: torch.Generator | None = None
) -> None:
    rec.bind(out, uniform(rec, tuple(x.shape), lambda u: u.lt(float(p)).to(ir_dtype(out.dtype))))


@lowering("bernoulli_.float")
def bernoulli_in_place(
    rec: Recorder, out: torch.Tensor, x: torch.Tensor, p: float = 0.5, generator: torch.Generator | None = None
) -> torch.Tensor:
    # The test is u >= 1 - p, not u < p, so that dropout keeps the same elements as native_dropout.
    view = uniform(rec, tuple(x.shape), lambda u: u.ge(float(1 - p)).to(ir_dtype(x.dtype)))
    with torch.utils._python_dispatch._disable_current_modes():
        value = torch.empty(x.shape, dtype=x.dtype, device="meta")
    rec.bind(value, view)
    rec.write(x, value)
    return x


@lowering("bernoulli.default")
def bernoulli(rec: Recorder, out: torch.Tensor, x: torch.Tensor, generator: torch.Generator | None = None) -> None:
    rec.bind(out, uniform(rec, tuple(x.shape), lambda u, p: u.lt(p).to(F32), [x]))


@lowering("rand.default", "rand_like.default")
def rand(rec: Recorder, out: torch.Tensor, *args: object, **options: object) -> None:
    rec.bind(out, uniform(rec, tuple(out.shape), lambda u: u))


@lowering("randn.default", "randn_like.default")
def randn(rec: Recorder, out: torch.Tensor, *args: object, **options: object) -> None:
    shape = tuple(out.shape)
    first, second = uniform(rec, shape, lambda u: u), uniform(rec, shape, lambda u: u)

    def box_muller(a: Val, b: Val) -> Val:
        radius = ((1.0 - a).unary("log") * -2.0).unary("sqrt")  # The argument is never 0, because u < 1.
        return radius * (b * (2 * math.pi)).unary("cos")

    rec.bind(out, rec.map(shape, [first, second], box_muller))


@lowering("randint.default", "randint.low", "randint_like.default", "randint_like.low_dtype")
def randint(rec: Recorder, out: torch.Tensor, *args: object, **options: object) -> None:
    numbers = [a for a in args if isinstance(a, int)]
    low, high = (0, numbers[0]) if len(numbers) == 1 else (numbers[0], numbers[1])
    rec.bind(out, uniform(rec, tuple(out.shape), lambda u: (u * float(high - low)).to(I32) + low))


@lowering("uniform.default")
def uniform_between(
    rec: Recorder,
    out: torch.Tensor,
    x: torch.Tensor,
    low: float = 0,
    high: float = 1,
    generator: torch.Generator | None = None,
) -> None:
    width = float(high) - float(low)
    rec.bind(out, uniform(rec, tuple(out.shape), lambda u: u * width + float(low)))


@lowering("exponential.default")
def exponential(
    rec: Recorder, out: torch.Tensor, x: torch.Tensor, rate: float = 1, generator: torch.Generator | None = None
) -> None:
    scale = -1.0 / float(rate)
    rec.bind(out, uniform(rec, tuple(out.shape), lambda u: (1.0 - u).unary("log") * scale))


@lowering("randperm.default")
def randperm(rec: Recorder, out: torch.Tensor, n: int, **options: object) -> None:
    """Sorts random numbers; their order is the permutation."""
    keys = uniform(rec, (1, n), lambda u: u)
    outputs = rec.emit("sort", [keys], [((1, n), F32), ((1, n), I32)], {"descending": False})
    rec.bind(out, View(outputs[1], (n,), (1,)))


# ── random numbers from other random numbers ─────────────────────────────────────────────────────


@decomposed("normal_functional.default")
def normal(
    x: torch.Tensor, mean: float = 0, std: float = 1, *, generator: torch.Generator | None = None
) -> torch.Tensor:
    return torch.randn_like(x) * std + mean


@decomposed("normal.float_float")
def normal_of_size(mean: float, std: float, size: Sequence[int], **options: object) -> torch.Tensor:
    values: torch.Tensor = torch.randn(list(size)) * std + mean
    return values


@decomposed("normal.Tensor_float", "normal.Tensor_Tensor")
def normal_around(
    mean: torch.Tensor, std: torch.Tensor | float = 1, *, generator: torch.Generator | None = None
) -> torch.Tensor:
    values: torch.Tensor = torch.randn_like(mean) * std + mean
    return values


@decomposed("normal.float_Tensor")
def normal_wide(mean: float, std: torch.Tensor, *, generator: torch.Generator | None = None) -> torch.Tensor:
    return torch.randn_like(std) * std + mean


@decomposed("log_normal.default")
def log_normal(
    x: torch.Tensor, mean: float = 1, std: float = 2, *, generator: torch.Generator | None = None
) -> torch.Tensor:
    return (torch.randn_like(x) * std + mean).exp()


@decomposed("cauchy.default")
def cauchy(
    x: torch.Tensor, median: float = 0, sigma: float = 1, *, generator: torch.Generator | None = None
) -> torch.Tensor:
    return (math.pi * (torch.rand_like(x) - 0.5)).tan() * sigma + median


@decomposed("geometric.default")
def geometric(x: torch.Tensor, p: float, *, generator: torch.Generator | None = None) -> torch.Tensor:
    return (torch.log1p(-torch.rand_like(x)) / math.log1p(-p)).ceil().clamp(min=1)


@decomposed("multinomial.default")
def multinomial(
    p: torch.Tensor, count: int, replacement: bool = False, *, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Draws from the cumulative distribution or, without replacement, takes the largest noisy logits."""
    if replacement:
        edges = p.cumsum(-1)
        points = torch.rand([*p.shape[:-1], count]) * edges[..., -1:]
        return (edges.unsqueeze(-2) <= points.unsqueeze(-1)).sum(-1).clamp(max=p.shape[-1] - 1)
    noisy = p.log() - (-(1 - torch.rand_like(p)).log()).log()
    return noisy.topk(count, -1).indices

"""Views, joining, padding, indexing, gathering, scattering, and special uses of autograd."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from handheld.conformance.case import Case, cl, ints, mask, module, normal, of


def _with_zeros(x: torch.Tensor) -> Any:
    """The same zeros are joined twice, in different shapes."""
    zeros = x.new_zeros(10)
    return torch.cat([zeros.unsqueeze(1).expand(-1, 5), x]), torch.cat([zeros, x[0]])


def _views() -> Iterator[Case]:
    yield of("view transpose", lambda x: x.transpose(1, 2) * x.permute(0, 2, 1), normal(3, 5, 7))
    yield of("view reshape", lambda x: x.t().reshape(-1) * x.reshape(35), normal(5, 7))
    yield of("view slices", lambda x: x[1:, ::2] + x[:-1, 1::2] * x[0, 2], normal(4, 6))
    yield of("view select", lambda x: x[1] * x[:, 2].sum() + x[-1, -1], normal(4, 6))
    yield of(
        "view chunk split", lambda x: x.chunk(3, 1)[1] * x.split([2, 4], 1)[0] + x.unbind(1)[5][:, None], normal(4, 6)
    )
    yield of("view squeeze", lambda x: x.squeeze(1) + x[:, 0].unsqueeze(0).squeeze(0), normal(3, 1, 5))
    yield of("view expand", lambda x: x.expand(4, 3, 5) * torch.arange(4)[:, None, None], normal(3, 5))
    yield of("view repeat", lambda x: x.repeat(2, 3) * 2 + x.tile((2, 3)), normal(3, 5))
    yield of("view repeat_interleave", lambda x: x.repeat_interleave(3, 1), normal(3, 5))
    yield of("view diagonal", lambda x: x.diagonal() * x.diagonal(1, 0, 1)[:4], normal(4, 6))
    yield of("view movedim", lambda x: x.movedim(0, -1) + x.swapaxes(0, 1).transpose(1, 2), normal(3, 4, 5))
    yield of("view as_strided", lambda x: x.as_strided((3, 4), (2, 3), 1), normal(20))
    yield of("view narrow", lambda x: x.narrow(1, 2, 3) * x.narrow(0, 0, 4)[:, :1], normal(4, 6))
    yield of("view flip roll", lambda x: x.flip(0) + x.roll(2, 1) + x.roll((1, -1), (0, 1)) + x.rot90(2), normal(4, 6))
    yield of("view empty", lambda x: x[:, 2:2].sum() + x[3:3], normal(4, 6))
    yield of("view size 1", lambda x: x[0].t() * x[:, :, 0], normal(1, 1, 1))
    yield of("view windows", lambda x: x.view(2, 2, 3, 2, 4).permute(0, 1, 3, 2, 4).reshape(8, 12), normal(2, 6, 8))
    yield of("view of channels last", lambda x: x.permute(0, 2, 3, 1).reshape(2, 12, 5) * 2, cl(2, 5, 3, 4))


def _joining() -> Iterator[Case]:
    yield of("cat", lambda x, y: torch.cat([x, y, x], 1), normal(3, 2), normal(3, 5))
    yield of("cat dims", lambda x, y: torch.cat([x, y], -2), normal(2, 3, 4), normal(2, 1, 4))
    yield of("cat many", lambda x: torch.cat([x * k for k in range(30)], 1), normal(2, 3))
    yield of("cat empty", lambda x: torch.cat([x, x[:, :0], torch.empty(0), x], 1), normal(2, 3))
    yield of("cat types", lambda x, a: torch.cat([x, a], 0), normal(2, 3), ints(5, 4, 3))
    yield of("cat ints", lambda a, m: (torch.cat([a, a + 1]), torch.cat([m, ~m])), ints(5, 4), mask(3))
    yield of("cat zeros", _with_zeros, normal(5, 5))
    yield of("cat channels last", lambda x, y: torch.cat([x, y], 1), cl(2, 3, 4, 5), cl(2, 2, 4, 5))
    yield of(
        "stack", lambda x, y: torch.stack([x, y, x], 1) * 2 + torch.stack([x, y, y], -2), normal(3, 5), normal(3, 5)
    )
    yield of(
        "hstack vstack",
        lambda x, y: torch.hstack([x, y]).sum() + torch.vstack([x, y]) + torch.dstack([x, y]).sum(),
        normal(3, 5),
        normal(3, 5),
    )
    for mode in ("constant", "reflect", "replicate", "circular"):
        yield of(f"pad {mode} 2d", lambda x, m=mode: F.pad(x, (1, 2, 3, 1), m), normal(2, 3, 5, 6))
        yield of(f"pad {mode} 1d", lambda x, m=mode: F.pad(x, (2, 1), m), normal(2, 3, 7))
    yield of("pad value", lambda x: F.pad(x, (1, 0, 0, 2), value=-3.5), normal(3, 4))
    yield of("pad negative", lambda x: F.pad(x, (-1, 2, 1, -2)), normal(4, 5))
    yield of("pad all dims", lambda x: F.pad(x, (0, 0, 1, 1, 2, 0)), normal(2, 3, 4))
    yield of(
        "pad int", lambda a, m: (F.pad(a, (1, 1), value=-100), F.pad(m, (0, 2), value=True)), ints(9, 3, 4), mask(3, 4)
    )
    yield module(
        "pad modules",
        lambda: nn.Sequential(nn.ZeroPad2d(1), nn.ReflectionPad2d(1), nn.ReplicationPad2d((1, 0, 2, 1))),
        normal(1, 2, 4, 5),
    )


def _indexing() -> Iterator[Case]:
    yield of("index rows", lambda x, i: x[i], normal(7, 3), ints(7, 5))
    yield of("index columns", lambda x, i: x[:, i], normal(3, 7), ints(7, 5))
    yield of("index two", lambda x, i, j: x[i, j], normal(5, 7), ints(5, 4), ints(7, 4))
    yield of("index two apart", lambda x, i, j: x[i, :, j], normal(5, 3, 7), ints(5, 4), ints(7, 4))
    yield of("index middle", lambda x, i: x[:, i, 1:], normal(3, 7, 4), ints(7, 2, 5))
    yield of("index broadcast", lambda x, i, j: x[i[:, None], j], normal(5, 7), ints(5, 3), ints(7, 4))
    yield of("index negative", lambda x, i: x[i - 3], normal(5, 2), ints(5, 6))
    yield of("index list", lambda x: x[[0, 2, 2]] + x[:, [1]].sum(), normal(4, 3))
    yield of("index arange", lambda x, i: x[torch.arange(4), i], normal(4, 6), ints(6, 4))
    yield of("index transposed", lambda x, i: x.t()[i], normal(3, 7), ints(7, 5))
    yield of("index bias table", lambda t, i: t[i.view(-1)].view(3, 3, 2).permute(2, 0, 1), normal(5, 2), ints(5, 3, 3))
    yield of("index_select", lambda x, i: x.index_select(1, i) + x.index_select(-1, i), normal(3, 7), ints(7, 5))
    yield of("gather", lambda x, i: x.gather(1, i), normal(3, 7), ints(7, 3, 4))
    yield of("gather 0", lambda x, i: x.gather(0, i), normal(5, 4), ints(5, 2, 3))
    yield of(
        "take", lambda x, i: x.take(i) + torch.take_along_dim(x, i.view(1, 4) % 2, 0).sum(), normal(3, 4), ints(12, 4)
    )
    yield of("index scalar", lambda x, i: x[i], normal(5, 3), ints(5))
    yield of(
        "index mask sum", lambda x, m: torch.where(m, x, 0).sum(1) / m.sum(1).clamp(min=1), normal(3, 5), mask(3, 5)
    )


def _scattering() -> Iterator[Case]:
    yield of(
        "scatter",
        lambda x, i, y: x.scatter(1, i, y),
        normal(3, 7),
        lambda: torch.stack([torch.randperm(7)[:4] for _ in range(3)]),
        normal(3, 4),
    )
    yield of(
        "scatter value", lambda x, i: x.scatter(0, i, 2.5), normal(5, 3), lambda: torch.tensor([[0, 1, 2], [3, 4, 0]])
    )
    yield of("scatter_add", lambda x, i, y: x.scatter_add(1, i, y), normal(3, 7), ints(7, 3, 9), normal(3, 9))
    yield of(
        "scatter_add wide", lambda x, i, y: x.scatter_add(0, i, y.detach()), normal(5, 4), ints(5, 3, 2), normal(4, 4)
    )
    for reduce in ("sum", "mean", "amax", "amin", "prod"):
        yield of(
            f"scatter_reduce {reduce}",
            lambda x, i, y, r=reduce: x.scatter_reduce(1, i, y, r, include_self=True),
            normal(3, 5),
            ints(5, 3, 6),
            normal(3, 6),
        )
        yield of(
            f"scatter_reduce {reduce} alone",
            lambda x, i, y, r=reduce: x.scatter_reduce(1, i, y, r, include_self=False),
            normal(3, 5),
            ints(5, 3, 6),
            normal(3, 6),
        )
    yield of("index_add", lambda x, i, y: x.index_add(0, i, y, alpha=2), normal(5, 3), ints(5, 7), normal(7, 3))
    yield of(
        "scatter add by name",
        lambda x, i, y: x.detach().scatter(1, i, y.detach(), reduce="add"),
        normal(3, 7),
        ints(7, 3, 4),
        lambda: torch.ones(3, 4),
    )


def _putting() -> Iterator[Case]:
    yield of(
        "index_reduce",
        lambda x, i, y: x.detach().index_reduce(0, i, y.detach(), "amax"),
        normal(5, 3),
        ints(5, 7),
        normal(7, 3),
    )
    yield of("index gathered and read", lambda x, i: (x.gather(1, i) * x).sum(0) + x, normal(4, 5), ints(5, 4, 5))
    yield of(
        "index_copy", lambda x, i, y: x.index_copy(1, i, y), normal(3, 5), lambda: torch.tensor([4, 0]), normal(3, 2)
    )
    yield of("index_put", lambda x, i, y: x.index_put((i,), y, accumulate=True), normal(5, 3), ints(5, 7), normal(7, 3))
    yield of(
        "index_put two",
        lambda x, i, j, y: x.index_put((i, j), y, accumulate=True),
        normal(5, 7),
        ints(5, 4),
        ints(7, 4),
        normal(4),
    )
    yield of(
        "index_put set",
        lambda x, y: x.index_put((torch.tensor([3, 1]), torch.tensor([0, 2])), y),
        normal(5, 3),
        normal(2),
    )
    yield of("index_put slices", _put, normal(4, 5, 3), normal(4, 2, 3))
    yield of("masked_scatter", lambda x, m, y: x.masked_scatter(m, y), normal(3, 4), mask(3, 4), normal(12))
    yield of(
        "select_scatter",
        lambda x, y: x.select_scatter(y, 1, 2) + x.slice_scatter(y[:, None], 1, 3, 4),
        normal(3, 5),
        normal(3),
    )
    yield of("segment mean", lambda x, i: torch.zeros(4, 3, dtype=x.dtype).index_add(0, i, x), normal(9, 3), ints(4, 9))
    yield of("isin", lambda a: (a == torch.tensor([1, 3])[:, None, None]).any(0), ints(5, 3, 4))


def _put(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x = x * 1
    x[:, torch.tensor([4, 0])] = y
    return x


class _Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x * g  # Not the true gradient, so that the case fails unless this function is used.


def _autograd() -> Iterator[Case]:
    def penalty(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(x @ w).sum()
        (g,) = torch.autograd.grad(y, x, create_graph=True)
        return (g.norm(dim=1) - 1).square().mean()

    def conv_penalty(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = F.softplus(F.conv2d(x, w, padding=1)).sum()
        (g,) = torch.autograd.grad(y, x, create_graph=True)
        return g.square().sum()

    yield of("autograd function", lambda x: _Square.apply(x) + x, normal(3, 5))
    yield of("autograd penalty", penalty, normal(4, 3), normal(3, 5))
    yield of("autograd conv penalty", conv_penalty, normal(2, 3, 5, 5), normal(4, 3, 3, 3))
    yield of("autograd detach", lambda x, y: x * y.detach() + x.detach() * y, normal(3, 5), normal(3, 5))
    yield of("autograd no_grad", lambda x: x * _frozen(x), normal(3, 5))
    yield of("autograd reused", lambda x: x * x + x.sin() * x.sum() + x, normal(3, 5))
    yield of(
        "autograd checkpoint",
        lambda x, w: checkpoint(lambda a: torch.tanh(a @ w).sin(), x, use_reentrant=False),
        normal(4, 3),
        normal(3, 5),
    )
    yield of("autograd straight through", lambda x: x + (x.round() - x).detach(), normal(3, 5))
    yield of("autograd hook", _hooked, normal(3, 5))
    yield of("autograd unused", lambda x, y: x * 2, normal(3), normal(4))


def _frozen(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return x.exp()


def _hooked(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    y.register_hook(lambda g: g * 2)
    return y * y


def index_cases() -> list[Case]:
    return [*_views(), *_joining(), *_indexing(), *_scattering(), *_putting(), *_autograd()]

"""Matrix products, convolutions, attention and recurrence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from handheld.conformance.case import Case, cl, mask, module, normal, of


def _matmul() -> Iterator[Case]:
    yield of("mm", torch.mm, normal(5, 7), normal(7, 3))
    yield of("mm transposed", lambda a, b: a.t() @ b.t(), normal(7, 5), normal(3, 7))
    yield of("mm size 1", torch.mm, normal(1, 1), normal(1, 3))
    yield of("mm empty sum", torch.mm, normal(3, 0), normal(0, 4))
    yield of("mm no rows", torch.mm, normal(0, 5), normal(5, 4))
    yield of("mm long", torch.mm, normal(3, 4099), normal(4099, 2), long=True)
    yield of("mm odd", torch.mm, normal(67, 129), normal(129, 71), long=True)
    yield of("mv", lambda a, x: a @ x + a.mv(x), normal(5, 7), normal(7))
    yield of("dot", lambda x, y: x @ y + x.dot(y), normal(7), normal(7))
    yield of("bmm", torch.bmm, normal(3, 5, 7), normal(3, 7, 2))
    yield of("matmul broadcast", torch.matmul, normal(2, 1, 5, 7), normal(3, 7, 2))
    yield of("matmul vector", lambda a, x: a @ x, normal(2, 3, 5), normal(5))
    yield of("matmul expanded", lambda a, b: a.expand(4, 3, 5) @ b, normal(1, 3, 5), normal(4, 5, 2))
    yield of("addmm", lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), normal(3), normal(5, 7), normal(7, 3))
    yield of(
        "baddbmm", lambda c, a, b: torch.baddbmm(c, a, b, alpha=0.5), normal(3, 5, 2), normal(3, 5, 7), normal(3, 7, 2)
    )
    yield of(
        "addmv addr",
        lambda c, a, x: torch.addmv(c, a, x) + torch.addr(a, c, x).sum(),
        normal(5),
        normal(5, 7),
        normal(7),
    )
    yield of("addbmm", torch.addbmm, normal(5, 2), normal(3, 5, 7), normal(3, 7, 2))
    yield of("grouped mm", _grouped, normal(9, 4), normal(3, 4, 5))
    yield of("outer", torch.outer, normal(3), normal(5))
    yield of("einsum", lambda a, b: torch.einsum("bij,bjk->bik", a, b), normal(2, 3, 5), normal(2, 5, 4))
    yield of("einsum heads", lambda a, b: torch.einsum("bqhd,bkhd->bhqk", a, b), normal(2, 3, 2, 5), normal(2, 4, 2, 5))
    yield of(
        "einsum diagonal",
        lambda a, b: torch.einsum("ij,ij->i", a, b) + torch.einsum("ij->j", a).sum(),
        normal(3, 5),
        normal(3, 5),
    )
    yield of("einsum outer", lambda a, b: torch.einsum("i,j->ij", a, b), normal(3), normal(5))
    yield of(
        "tensordot kron",
        lambda a, b: torch.tensordot(a, b, dims=([1], [0])).sum() + torch.kron(a, b),
        normal(2, 3),
        normal(3, 2),
    )
    yield of(
        "grouped slices", lambda a, b: torch.cat([a[:, :3] @ b[:3], a[:, 3:] @ b[3:]], 1), normal(4, 7), normal(7, 2)
    )
    yield module("linear", lambda: nn.Linear(7, 3), normal(2, 5, 7))
    yield module("linear no bias", lambda: nn.Linear(7, 1, bias=False), normal(5, 7))
    yield module("bilinear", lambda: nn.Bilinear(3, 4, 5), normal(2, 3), normal(2, 4))


def _grouped(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Rows in three groups, the second empty, each with its own matrix."""
    ends = torch.tensor([4, 4, 9], dtype=torch.int32)
    if x.dtype == torch.float64:  # PyTorch has no kernel for float64.
        return torch.cat([x[:4] @ w[0], x[4:] @ w[2]])
    return torch._grouped_mm(x, w, ends)


_CONVS: dict[str, tuple[tuple[int, ...], dict[str, Any], tuple[int, ...]]] = {
    "1x1": ((5, 7, 1), {}, (2, 5, 4, 6)),
    "3x3": ((3, 5, 3), {}, (2, 3, 7, 6)),
    "3x3 padded": ((3, 5, 3), {"padding": 1}, (2, 3, 7, 5)),
    "stride 2": ((3, 4, 3), {"stride": 2, "padding": 1}, (2, 3, 7, 8)),
    "stride 2 leftover": ((3, 4, 3), {"stride": 2}, (2, 3, 8, 8)),
    "stride 3 kernel 2": ((3, 4, 2), {"stride": 3}, (1, 3, 10, 11)),
    "dilated": ((2, 3, 3), {"dilation": 2, "padding": 2}, (2, 2, 8, 7)),
    "groups": ((6, 4, 3), {"groups": 2, "padding": 1}, (2, 6, 5, 5)),
    "groups stride": ((6, 9, 3), {"groups": 3, "stride": 2, "padding": 1}, (2, 6, 7, 5)),
    "depthwise": ((5, 5, 3), {"groups": 5, "padding": 1}, (2, 5, 6, 7)),
    "depthwise stride": ((4, 4, 5), {"groups": 4, "stride": 2, "padding": 2}, (2, 4, 9, 8)),
    "depthwise dilated": ((3, 3, 3), {"groups": 3, "dilation": 3, "padding": 3}, (1, 3, 8, 9)),
    "depthwise channels": ((10, 10, 3), {"groups": 10, "stride": 2, "padding": 1}, (2, 10, 5, 4)),
    "depthwise few pixels": ((11, 11, 3), {"groups": 11, "padding": 1}, (2, 11, 2, 2)),
    "depthwise multiplier": ((3, 6, 3), {"groups": 3, "padding": 1}, (2, 3, 6, 5)),
    "no bias": ((3, 5, 3), {"bias": False}, (2, 3, 6, 6)),
    "one pixel": ((3, 5, 3), {"padding": 1}, (2, 3, 1, 1)),
    "one pixel, many channels": ((9, 10, 3), {"padding": 1}, (2, 9, 1, 1)),
    "four pixels, many channels": ((9, 10, 3), {"padding": 1, "stride": 2}, (2, 9, 2, 2)),
    "kernel is image": ((3, 5, 4), {}, (2, 3, 4, 4)),
    "uneven kernel": ((3, 5, (3, 1)), {"padding": (1, 0), "stride": (1, 2)}, (2, 3, 6, 7)),  # type: ignore[dict-item]
    "same": ((3, 5, (2, 3)), {"padding": "same"}, (2, 3, 6, 7)),  # type: ignore[dict-item]
    "same dilated": ((3, 4, 4), {"padding": "same", "dilation": 2}, (1, 3, 7, 8)),
    "reflect": ((3, 4, 3), {"padding": 2, "padding_mode": "reflect"}, (2, 3, 6, 5)),
    "circular": ((3, 4, 3), {"padding": 1, "padding_mode": "circular"}, (2, 3, 6, 5)),
    "replicate": ((3, 4, 3), {"padding": 1, "padding_mode": "replicate"}, (2, 3, 6, 5)),
}
_TRANSPOSED: dict[str, tuple[tuple[int, ...], dict[str, Any], tuple[int, ...]]] = {
    "plain": ((3, 5, 3), {}, (2, 3, 4, 5)),
    "stride 2": ((3, 5, 4), {"stride": 2, "padding": 1}, (2, 3, 4, 5)),
    "output padding": ((3, 5, 3), {"stride": 2, "padding": 1, "output_padding": 1}, (2, 3, 4, 5)),
    "groups": ((4, 6, 3), {"groups": 2, "stride": 2}, (2, 4, 3, 4)),
    "depthwise": ((4, 4, 4), {"groups": 4, "stride": 2, "padding": 1}, (2, 4, 3, 4)),
    "dilated": ((3, 2, 3), {"dilation": 2, "bias": False}, (1, 3, 4, 4)),
    "kernel below stride": ((3, 2, 2), {"stride": 3}, (1, 3, 3, 4)),
}


def _convolution() -> Iterator[Case]:
    for name, (sizes, options, shape) in _CONVS.items():
        yield module(f"conv2d {name}", lambda s=sizes, o=options: nn.Conv2d(*s, **o), normal(*shape))
    for name, (sizes, options, shape) in _TRANSPOSED.items():
        yield module(f"conv_transpose2d {name}", lambda s=sizes, o=options: nn.ConvTranspose2d(*s, **o), normal(*shape))
    yield module("conv2d unbatched", lambda: nn.Conv2d(3, 5, 3), normal(3, 6, 7))
    yield module(
        "conv2d channels last", lambda: nn.Conv2d(3, 5, 3).to(memory_format=torch.channels_last), cl(2, 3, 6, 7)
    )
    yield of("conv2d of slice", lambda x, w: F.conv2d(x[:, 1:4, ::2, 1:], w), normal(2, 5, 9, 8), normal(4, 3, 3, 3))
    yield of("conv2d expanded", lambda x, w: F.conv2d(x.expand(3, 2, 6, 6), w), normal(1, 2, 6, 6), normal(4, 2, 3, 3))
    yield of(
        "conv2d large",
        lambda x, w: F.conv2d(x, w, padding=3, stride=2),
        normal(1, 3, 33, 35),
        normal(17, 3, 7, 7),
        long=True,
    )
    yield of(
        "conv2d double use",
        lambda x, w: F.conv2d(F.conv2d(x, w, padding=1), w, padding=1),
        normal(1, 3, 5, 5),
        normal(3, 3, 3, 3),
    )
    yield of(
        "conv2d normalised weight",
        lambda x, w: F.conv2d(x, (w - w.mean((1, 2, 3), True)) / w.std((1, 2, 3), keepdim=True)),
        normal(2, 3, 5, 5),
        normal(4, 3, 3, 3),
    )


def _other_convolutions() -> Iterator[Case]:
    for stride, pad, dilation, groups in ((1, 0, 1, 1), (2, 1, 1, 1), (1, 4, 4, 1), (1, 1, 1, 4), (3, 2, 2, 2)):
        yield module(
            f"conv1d {stride} {pad} {dilation} {groups}",
            lambda s=stride, p=pad, d=dilation, g=groups: nn.Conv1d(4, 8, 3, s, p, d, g),
            normal(2, 4, 17),
        )
    yield module(
        "conv1d causal",
        lambda: nn.Sequential(nn.ConstantPad1d((4, 0), 0.0), nn.Conv1d(3, 3, 3, dilation=2)),
        normal(2, 3, 11),
    )
    yield module("conv_transpose1d", lambda: nn.ConvTranspose1d(4, 3, 4, 2, 1), normal(2, 4, 7))
    volumes: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
        "": ((2, 3, 3), {}),
        "padded": ((2, 3, 3), {"padding": 1, "stride": 2}),
        "groups": ((4, 6, 2), {"groups": 2}),
        "dilated": ((2, 3, 2), {"dilation": 2, "padding": (2, 0, 1)}),
        "patches": ((3, 5, 2), {"stride": 2, "bias": False}),
    }
    for name, (sizes, options) in volumes.items():
        yield module(
            f"conv3d {name}".strip(), lambda s=sizes, o=options: nn.Conv3d(*s, **o), normal(2, sizes[0], 5, 4, 6)
        )
    yield module("conv_transpose3d", lambda: nn.ConvTranspose3d(3, 2, 3, stride=2, padding=1), normal(2, 3, 3, 2, 4))
    yield of(
        "unfold fold",
        lambda x: F.fold(F.unfold(x, 3, padding=1, stride=2) * 2, (6, 7), 3, padding=1, stride=2),
        normal(2, 3, 6, 7),
    )
    yield of("unfold dilated", lambda x: F.unfold(x, (2, 3), dilation=2), normal(2, 3, 6, 7))
    yield of("tensor unfold", lambda x: x.unfold(1, 3, 2), normal(2, 9))


def _attention() -> Iterator[Case]:
    q, k, v = normal(2, 3, 5, 4), normal(2, 3, 7, 4), normal(2, 3, 7, 4)
    sdpa = F.scaled_dot_product_attention
    yield of("attention", sdpa, q, k, v)
    yield of("attention scale", lambda q, k, v: sdpa(q, k, v, scale=0.3), q, k, v)
    yield of(
        "attention causal",
        lambda q, k, v: sdpa(q, k, v, is_causal=True),
        normal(2, 3, 5, 4),
        normal(2, 3, 5, 4),
        normal(2, 3, 5, 4),
    )
    yield of("attention causal wide", lambda q, k, v: sdpa(q, k, v, is_causal=True), q, k, v)
    yield of("attention bool mask", lambda q, k, v, m: sdpa(q, k, v, m | (torch.arange(7) == 0)), q, k, v, mask(5, 7))
    yield of("attention float mask", lambda q, k, v, m: sdpa(q, k, v, m.detach()), q, k, v, normal(2, 1, 5, 7))
    yield of("attention learned mask", sdpa, q, k, v, normal(3, 5, 7))
    yield of("attention row masked", sdpa, q, k, v, lambda: torch.arange(35).reshape(5, 7) >= 7)
    yield of(
        "attention inf mask",
        lambda q, k, v, m: sdpa(q, k, v, torch.where(m, 0.0, float("-inf"))),
        q,
        k,
        v,
        lambda: torch.arange(35).reshape(5, 7) % 3 != 1,
    )
    yield of(
        "attention grouped",
        lambda q, k, v: sdpa(q, k, v, enable_gqa=True),
        normal(2, 4, 5, 4),
        normal(2, 2, 7, 4),
        normal(2, 2, 7, 4),
    )
    yield of(
        "attention transposed",
        lambda x: sdpa(*(t.transpose(1, 2) for t in x.view(2, 5, 3, 2, 4).unbind(2))),
        normal(2, 5, 24),
    )
    yield of("attention rank 3", sdpa, normal(2, 5, 4), normal(2, 7, 4), normal(2, 7, 4))
    yield of("attention rank 2", sdpa, normal(5, 4), normal(7, 4), normal(7, 4))
    yield of("attention value width", sdpa, normal(2, 3, 5, 4), normal(2, 3, 7, 4), normal(2, 3, 7, 6))
    yield from _whole_attention()
    yield of("attention by hand", lambda q, k, v: (q @ k.transpose(-1, -2) / 2).softmax(-1) @ v, q, k, v)


def _transformers() -> Iterator[Case]:
    yield module(
        "multihead",
        lambda: _First(nn.MultiheadAttention(8, 2, batch_first=True)),
        normal(2, 5, 8),
        normal(2, 7, 8),
        normal(2, 7, 8),
    )
    yield module(
        "multihead weights", lambda: nn.MultiheadAttention(8, 2), normal(5, 2, 8), normal(7, 2, 8), normal(7, 2, 8)
    )
    yield module(
        "transformer encoder", lambda: nn.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True), normal(2, 5, 8)
    )
    yield module(
        "transformer encoder first",
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 12, 0.0, "gelu", norm_first=True), 2, enable_nested_tensor=False
        ),
        normal(5, 2, 8),
    )
    yield module(
        "transformer decoder",
        lambda: nn.TransformerDecoderLayer(8, 2, 12, 0.0, batch_first=True),
        normal(2, 5, 8),
        normal(2, 7, 8),
    )


def _attend(*tensors: torch.Tensor, **options: Any) -> torch.Tensor:
    """Looks the function up at the call, so that capture's replacement is found."""
    return F.scaled_dot_product_attention(*tensors, **options)


def _whole_attention() -> Iterator[Case]:
    q, k, v = normal(2, 3, 5, 4), normal(2, 3, 7, 4), normal(2, 3, 7, 4)
    yield of("attention whole", _attend, q, k, v)
    yield of("attention whole one key", _attend, *(normal(2, 3, 1, 4) for _ in "qkv"))
    yield of("attention whole one query", _attend, normal(2, 3, 1, 4), k, v)
    yield of("attention whole value width", _attend, q, k, normal(2, 3, 7, 6))
    yield of("attention whole prime", _attend, normal(1, 2, 67, 16), *(normal(1, 2, 71, 16) for _ in "kv"))
    yield of("attention whole long", _attend, normal(1, 1, 3, 16), *(normal(1, 1, 2053, 16) for _ in "kv"))
    yield of("attention whole wide heads", _attend, *(normal(1, 1, 9, 130) for _ in "qkv"))
    yield of(
        "attention whole causal",
        lambda q, k, v: _attend(q, k, v, is_causal=True, scale=0.7),
        *(normal(1, 2, 70, 8) for _ in "qkv"),
    )
    yield of("attention whole causal more keys", lambda q, k, v: _attend(q, k, v, is_causal=True), q, k, v)
    yield of("attention whole bool mask", _attend, q, k, v, mask(2, 1, 5, 7))
    yield of(
        "attention whole padding", _attend, q, k, v, lambda: torch.arange(7) < torch.tensor([3, 7]).view(2, 1, 1, 1)
    )
    yield of("attention whole rows masked", _attend, q, k, v, lambda: torch.arange(35).reshape(5, 7) % 14 >= 7)
    yield of("attention whole float mask", lambda q, k, v, m: _attend(q, k, v, m.detach()), q, k, v, normal(3, 5, 7))
    yield of(
        "attention whole inf mask",
        lambda q, k, v, m: _attend(q, k, v, torch.where(m, 0.0, float("-inf"))),
        q,
        k,
        v,
        lambda: torch.arange(35).reshape(5, 7) % 14 >= 5,
    )
    yield of(
        "attention whole grouped",
        lambda q, k, v: _attend(q, k, v, enable_gqa=True),
        normal(2, 6, 5, 4),
        normal(2, 2, 7, 4),
        normal(2, 2, 7, 4),
    )
    yield of(
        "attention whole transposed",
        lambda x: _attend(*(t.transpose(1, 2) for t in x.view(2, 5, 3, 2, 4).unbind(2))),
        normal(2, 5, 24),
    )


class _First(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        return self.inner(*tensors, need_weights=False)[0]


def _recurrent() -> Iterator[Case]:
    variants: dict[str, dict[str, Any]] = {
        "": {},
        "batch first": {"batch_first": True},
        "two layers": {"num_layers": 2},
        "both ways": {"bidirectional": True},
        "both ways, two layers": {"bidirectional": True, "num_layers": 2, "batch_first": True},
        "no bias": {"bias": False},
    }
    for cell in (nn.LSTM, nn.GRU):
        for name, options in variants.items():
            yield module(
                f"{cell.__name__.lower()} {name}".strip(), lambda c=cell, o=options: c(3, 5, **o), normal(4, 2, 3)
            )
    yield module("lstm with state", lambda: _State(nn.LSTM(3, 5)), normal(4, 2, 3), normal(1, 2, 5), normal(1, 2, 5))
    yield module("gru with state", lambda: nn.GRU(3, 5), normal(4, 2, 3), normal(1, 2, 5))
    yield module("lstm unbatched", lambda: nn.LSTM(3, 5), normal(4, 3))
    yield module("lstm one step", lambda: nn.LSTM(3, 5), normal(1, 2, 3))
    yield module("lstm projected", lambda: nn.LSTM(3, 5, proj_size=2), normal(3, 2, 3))
    yield module("rnn tanh", lambda: nn.RNN(3, 5, num_layers=2), normal(4, 2, 3))
    yield module("rnn relu", lambda: nn.RNN(3, 5, nonlinearity="relu", batch_first=True), normal(2, 4, 3))
    yield module("lstm cell", lambda: nn.LSTMCell(3, 5), normal(2, 3))
    yield module("gru cell", lambda: nn.GRUCell(3, 5), normal(2, 3))
    yield module("rnn cell", lambda: nn.RNNCell(3, 5), normal(2, 3))


class _State(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> Any:
        return self.inner(x, (h, c))


def layer_cases() -> list[Case]:
    return [*_matmul(), *_convolution(), *_other_convolutions(), *_attention(), *_transformers(), *_recurrent()]

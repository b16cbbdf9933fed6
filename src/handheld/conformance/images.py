"""Pooling, resizing, and modules made of several ops."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import nn

from handheld.conformance.case import Case, cl, ints, module, normal, of


def _pooling() -> Iterator[Case]:
    image = normal(2, 3, 7, 8)
    for kernel, stride, pad, dilation, ceil in (
        (2, 2, 0, 1, False),
        (3, 2, 1, 1, False),
        (3, 1, 1, 1, False),
        (2, 3, 0, 1, False),
        (3, 2, 0, 1, True),
        (3, 1, 1, 2, False),
        ((2, 3), (1, 2), (1, 0), 1, False),
    ):
        yield of(
            f"max_pool2d {kernel} {stride} {pad} {dilation} {ceil}",
            lambda x, a=(kernel, stride, pad, dilation, ceil): F.max_pool2d(x, *a),
            image,
        )
    for kernel, stride, pad, ceil, count in (
        (2, 2, 0, False, True),
        (3, 2, 1, False, True),
        (3, 2, 1, False, False),
        (3, 1, 1, False, True),
        (3, 2, 0, True, True),
        (3, 3, 1, True, False),
        ((2, 3), (2, 1), (0, 1), False, True),
    ):
        yield of(
            f"avg_pool2d {kernel} {stride} {pad} {ceil} {count}",
            lambda x, a=(kernel, stride, pad, ceil, count): F.avg_pool2d(x, *a),
            image,
        )
    yield of("avg_pool2d divisor", lambda x: F.avg_pool2d(x, 2, divisor_override=3), image)
    yield of("max_pool2d indices", lambda x: F.max_pool2d(x, 2, return_indices=True), image)
    yield of(
        "max_unpool2d", lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2, output_size=(7, 8)), image
    )
    yield of("max_pool2d unbatched", lambda x: F.max_pool2d(x, 2), normal(3, 6, 6))
    yield of("max_pool2d channels last", lambda x: F.max_pool2d(x, 2), cl(2, 3, 6, 6))
    yield of("pool1d", lambda x: F.max_pool1d(x, 3, 2, 1) + F.avg_pool1d(x, 3, 2, 1), normal(2, 3, 11))
    yield of("lp_pool2d", lambda x: F.lp_pool2d(x, 2, 2), lambda: torch.rand(2, 3, 6, 6) + 0.1)


def _other_pooling() -> Iterator[Case]:
    image = normal(2, 3, 7, 8)
    for size in (1, 2, 3, (3, 5), (7, 8), 9):
        yield of(f"adaptive_avg_pool2d {size}", lambda x, s=size: F.adaptive_avg_pool2d(x, s), image, rounded=True)
    for size in (1, 3, (3, 5)):
        yield of(f"adaptive_max_pool2d {size}", lambda x, s=size: F.adaptive_max_pool2d(x, s), image)
    yield of(
        "adaptive_pool1d",
        lambda x: F.adaptive_avg_pool1d(x, 4) + F.adaptive_max_pool1d(x, 4),
        normal(2, 3, 11),
        rounded=True,
    )
    yield of(
        "global pools",
        lambda x: x.mean((2, 3)) + x.amax((2, 3)) + F.adaptive_avg_pool2d(x, 1).flatten(1),
        image,
        rounded=True,
    )
    yield of("pool3d", lambda x: F.avg_pool3d(x, 2) + F.max_pool3d(x, 2), normal(2, 3, 4, 4, 4))
    yield of("pool3d padded", lambda x: F.avg_pool3d(x, 3, 2, 1) + F.max_pool3d(x, 3, 2, 1), normal(2, 3, 5, 4, 6))
    yield of(
        "pool3d uncounted", lambda x: F.avg_pool3d(x, (2, 3, 2), 2, 1, count_include_pad=False), normal(3, 5, 4, 6)
    )
    yield of("max_pool3d indices", lambda x: F.max_pool3d(x, (2, 3, 2), 1, return_indices=True), normal(2, 3, 4, 5, 3))
    yield of("adaptive_avg_pool3d", lambda x: F.adaptive_avg_pool3d(x, (2, 1, 3)), normal(2, 3, 5, 4, 6), rounded=True)


def _resizing() -> Iterator[Case]:
    image = normal(2, 3, 5, 6)
    for mode in ("nearest", "nearest-exact", "bilinear", "bicubic", "area"):
        for size in ((10, 12), (7, 4), (3, 11)):
            yield of(
                f"interpolate {mode} {size}", lambda x, m=mode, s=size: F.interpolate(x, s, mode=m), image, rounded=True
            )
    yield of("interpolate scale", lambda x: F.interpolate(x, scale_factor=2.0), image, rounded=True)
    yield of(
        "interpolate scale 1.5", lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear"), image, rounded=True
    )
    yield of(
        "interpolate corners",
        lambda x: F.interpolate(x, (9, 9), mode="bilinear", align_corners=True),
        image,
        rounded=True,
    )
    yield of(
        "interpolate cubic corners",
        lambda x: F.interpolate(x, (9, 9), mode="bicubic", align_corners=True),
        image,
        rounded=True,
    )
    yield of(
        "interpolate antialias",
        lambda x: F.interpolate(x, (3, 4), mode="bilinear", antialias=True),
        image,
        rounded=True,
    )
    yield of(
        "interpolate antialias cubic",
        lambda x: F.interpolate(x, (3, 4), mode="bicubic", antialias=True),
        image,
        rounded=True,
    )
    yield of(
        "interpolate 1d",
        lambda x: F.interpolate(x, 9, mode="linear") + F.interpolate(x, 9),
        normal(2, 3, 5),
        rounded=True,
    )
    yield of("interpolate same", lambda x: F.interpolate(x, (5, 6), mode="bilinear"), image, rounded=True)
    yield of(
        "interpolate channels last", lambda x: F.interpolate(x, (9, 9), mode="bilinear"), cl(2, 3, 5, 6), rounded=True
    )
    yield of(
        "interpolate exact 1d 3d",
        lambda x, y: (F.interpolate(x, 7, mode="nearest-exact"), F.interpolate(y, (3, 7, 5), mode="nearest-exact")),
        normal(2, 3, 5),
        normal(1, 2, 4, 5, 3),
        rounded=True,
    )
    yield of("pad replicate 3d", lambda x: F.pad(x, (1, 2, 0, 1, 2, 0), "replicate"), normal(1, 2, 3, 4, 3))
    yield of(
        "interpolate 3d",
        lambda x: F.interpolate(x, (3, 7, 5), mode="trilinear") + F.interpolate(x, (3, 7, 5)),
        normal(1, 2, 4, 5, 3),
        rounded=True,
    )


def _sampling() -> Iterator[Case]:
    image = normal(2, 3, 5, 6)
    grid = lambda: torch.rand(2, 4, 3, 2) * 2.4 - 1.2  # noqa: E731
    for mode in ("bilinear", "nearest", "bicubic"):
        for padding in ("zeros", "border", "reflection"):
            yield of(
                f"grid_sample {mode} {padding}",
                lambda x, g, m=mode, p=padding: F.grid_sample(x, g, m, p, align_corners=False),
                image,
                grid,
            )
    yield of(
        "affine_grid",
        lambda x, t: F.grid_sample(x, F.affine_grid(t, [2, 3, 4, 5], align_corners=True), align_corners=True),
        image,
        normal(2, 2, 3),
    )
    yield of("pixel_shuffle", lambda x: F.pixel_unshuffle(F.pixel_shuffle(x, 2) * 2, 2), normal(2, 8, 3, 4))
    yield module("channel_shuffle", lambda: nn.ChannelShuffle(2), normal(2, 6, 3, 4))


def _modules() -> Iterator[Case]:
    yield module("embedding", lambda: nn.Embedding(11, 5), ints(11, 3, 4))
    yield module("embedding padding", lambda: nn.Embedding(11, 5, padding_idx=2), ints(11, 3, 4))
    yield module("embedding repeated", lambda: nn.Embedding(3, 5), ints(3, 4, 9))
    yield module("embedding frequency", lambda: nn.Embedding(5, 3, scale_grad_by_freq=True), ints(5, 4, 6))
    yield module("embedding empty", lambda: nn.Embedding(5, 3), ints(5, 0, 2))
    for mode in ("sum", "mean", "max"):
        yield module(f"embedding_bag {mode}", lambda m=mode: nn.EmbeddingBag(11, 5, mode=m), ints(11, 3, 4))
    yield module("weight_norm", lambda: nn.utils.parametrizations.weight_norm(nn.Linear(5, 3)), normal(4, 5))
    yield module("weight_norm conv", lambda: nn.utils.parametrizations.weight_norm(nn.Conv1d(3, 4, 3)), normal(2, 3, 7))
    yield module(
        "spectral_norm eval", lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(5, 3)).eval(), normal(4, 5)
    )
    yield module("orthogonal-free tied", _Tied, normal(4, 5))
    yield module(
        "flatten",
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 4), nn.Unflatten(1, (2, 2))),
        normal(2, 2, 4, 4),
    )


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 5)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))


def image_cases() -> list[Case]:
    return [*_pooling(), *_other_pooling(), *_resizing(), *_sampling(), *_modules()]

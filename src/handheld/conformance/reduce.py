"""Reductions, softmax, norms, losses, scans and sorts."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import nn

from handheld.conformance.case import Case, cl, ints, mask, module, normal, of, positive

A = (3, 5, 7)


def _reductions() -> Iterator[Case]:
    for name in ("sum", "mean", "prod", "amax", "amin", "var", "std", "logsumexp"):
        fn = getattr(torch, name)
        for dim in (0, 1, -1, (0, 2)):
            if name == "prod" and isinstance(dim, tuple):
                continue
            yield of(f"reduce {name} {dim}", lambda x, f=fn, d=dim: f(x, dim=d), normal(*A))
        yield of(f"reduce {name} keepdim", lambda x, f=fn: f(x, dim=1, keepdim=True), normal(*A))
    for name in ("sum", "mean", "prod", "amax", "amin", "max", "min", "var", "std"):
        yield of(f"reduce {name} all", getattr(torch, name), normal(*A))
    yield of("reduce max dim", lambda x: x.max(1).values + x.min(1).values, normal(*A))
    yield of("reduce arg", lambda x: (x.argmax(1), x.argmin(-1), x.argmax(), x.max(0).indices), normal(*A))
    yield of("reduce arg ties", lambda a: (a.argmax(1), a.argmin(1), a.max(1).indices), ints(3, 4, 9))
    yield of("reduce any all", lambda m: (m.any(), m.all(), m.any(1), m.all(0), m.any(-1, keepdim=True)), mask(4, 5))
    yield of("reduce any all dims", lambda m: (m.any((0, 2)), m.all((1, 2))), mask(3, 4, 5))
    yield of("reduce pdist", torch.pdist, normal(5, 3))
    yield of("reduce int", lambda a: (a.sum(), a.sum(1), a.amax(0), a.prod(1)), ints(4, 3, 5))
    yield of("reduce bool sum", lambda m: (m.sum(), m.sum(1), m.float().mean()), mask(4, 5), rounded=True)
    yield of("reduce count_nonzero", lambda a: a.count_nonzero(1), ints(3, 4, 6))
    yield of("reduce norm", lambda x: (x.norm(), x.norm(dim=1), x.norm(p=1, dim=0), x.norm(p=3, dim=2)), normal(*A))
    yield of("reduce linalg norm", lambda x: torch.linalg.vector_norm(x, dim=(1, 2)) + x.abs().amax(), normal(*A))
    yield of("reduce normalize", lambda x: F.normalize(x, dim=1), normal(*A))
    yield of("reduce var_mean", lambda x: torch.var_mean(x, (0, 2), correction=0), normal(*A))
    yield of("reduce std unbiased", lambda x: x.std(1, unbiased=False), normal(*A))
    yield of("reduce empty", lambda x: x.sum(0) + x.sum(), normal(0, 3))
    yield of("reduce size 1", lambda x: x.mean(1) + x.amax((0, 1)), normal(1, 1, 4))
    yield of("reduce 0-dim", lambda x: x.sum() + x.mean() + x.amax(), normal())
    yield of("reduce long", lambda x: x.sum() + (x * x).mean(), normal(70001), long=True)
    yield of("reduce long rows", lambda x: x.square().mean(1), normal(3, 20011), long=True)
    yield of("reduce tall", lambda x: x.square().sum(0), normal(5003, 3), long=True)
    yield of("reduce transposed", lambda x: x.transpose(0, 2).sum(1) + x.permute(2, 0, 1).mean(2).t().sum(), normal(*A))
    yield of("reduce channels last", lambda x: x.mean((2, 3)) + x.sum(), cl(2, 5, 3, 4))
    yield of("reduce far from zero", lambda x: (x + 1000).var(1), normal(3, 101), long=True)
    yield of("reduce trace", lambda x: x.trace() + x.diagonal().sum(), normal(4, 6))
    yield of("reduce cosine", lambda x, y: F.cosine_similarity(x, y, dim=1), normal(*A), normal(*A))
    yield of("reduce pairwise", F.pairwise_distance, normal(5, 7), normal(5, 7))
    yield of("reduce cdist", torch.cdist, normal(4, 3), normal(5, 3))
    yield of("reduce median", lambda x: x.median(1).values + x.median(), normal(3, 7))
    yield of("reduce kthvalue", lambda x: x.kthvalue(2, 1).values, normal(3, 7))
    yield of("reduce histc", lambda x: torch.histc(x.detach(), 5, -2, 2), normal(31))
    # PyTorch 2.11 has no derivative of aminmax.
    yield of("reduce aminmax", lambda x, y: x.detach().aminmax(dim=1).max - y.max(), normal(3, 7), normal(3, 7))


def _softmax() -> Iterator[Case]:
    for dim in (0, 1, -1):
        yield of(f"softmax {dim}", lambda x, d=dim: x.softmax(d), normal(*A))
        yield of(f"log_softmax {dim}", lambda x, d=dim: x.log_softmax(d), normal(*A))
    yield of("softmax large", lambda x: (x * 50).softmax(-1), normal(4, 33))
    yield of(
        "softmax masked",
        lambda x, m: x.masked_fill(m, float("-inf")).softmax(-1),
        normal(4, 9),
        lambda: torch.arange(36).reshape(4, 9) % 3 == 0,
    )
    yield of("softmax 0-dim", lambda x: x.softmax(0) + x.log_softmax(0), normal())
    yield of("softmax size 1", lambda x: x.softmax(1), normal(4, 1))
    yield of("softmax gumbel-free", lambda x: F.softmin(x, 1) + torch.logit(x.softmax(1)), normal(3, 5))


def _norms() -> Iterator[Case]:
    def nudged(norm: nn.Module) -> nn.Module:
        for p in norm.parameters():
            nn.init.normal_(p, 1.0, 0.3)
        return norm

    yield module("batch_norm 2d", lambda: nudged(nn.BatchNorm2d(5)), normal(3, 5, 4, 7))
    yield module("batch_norm 1d", lambda: nudged(nn.BatchNorm1d(5)), normal(7, 5))
    yield module("batch_norm 1d sequence", lambda: nudged(nn.BatchNorm1d(5, momentum=0.3)), normal(3, 5, 7))
    yield module("batch_norm 3d", lambda: nudged(nn.BatchNorm3d(3)), normal(2, 3, 2, 3, 4))
    yield module("batch_norm plain", lambda: nn.BatchNorm2d(5, affine=False), normal(3, 5, 4, 7))
    yield module(
        "batch_norm no stats", lambda: nudged(nn.BatchNorm2d(5, track_running_stats=False)), normal(3, 5, 4, 7)
    )
    yield module("batch_norm cumulative", lambda: nudged(nn.BatchNorm2d(5, momentum=None)), normal(3, 5, 4, 7))
    yield module("batch_norm eval", lambda: nudged(nn.BatchNorm2d(5)).eval(), normal(3, 5, 4, 7))
    yield module("batch_norm channels last", lambda: nudged(nn.BatchNorm2d(5)), cl(3, 5, 4, 7))
    yield module(
        "batch_norm offset", lambda: nudged(nn.BatchNorm2d(3)), lambda: torch.randn(4, 3, 5, 5) + 30, long=True
    )
    yield module("layer_norm", lambda: nudged(nn.LayerNorm(7)), normal(3, 5, 7))
    yield module("layer_norm 2d", lambda: nudged(nn.LayerNorm((5, 7))), normal(3, 5, 7))
    yield module("layer_norm plain", lambda: nn.LayerNorm(7, elementwise_affine=False), normal(3, 7))
    yield module("layer_norm no bias", lambda: nudged(nn.LayerNorm(7, bias=False)), normal(3, 7))
    yield module("layer_norm permuted", lambda: nudged(nn.LayerNorm(5)), lambda: torch.randn(3, 5, 7).transpose(1, 2))
    yield module("layer_norm size 1", lambda: nudged(nn.LayerNorm(1)), normal(3, 1))
    yield module("rms_norm", lambda: nudged(nn.RMSNorm(7, eps=1e-5)), normal(3, 5, 7))
    yield module("rms_norm plain", lambda: nn.RMSNorm((5, 7), 1e-6, elementwise_affine=False), normal(3, 5, 7))
    for groups in (1, 2, 3, 6):
        yield module(f"group_norm {groups}", lambda g=groups: nudged(nn.GroupNorm(g, 6)), normal(3, 6, 4, 5))
    yield module("group_norm plain", lambda: nn.GroupNorm(2, 6, affine=False), normal(3, 6, 5))
    yield module("group_norm vectors", lambda: nudged(nn.GroupNorm(2, 10)), normal(4, 10))
    yield module("group_norm 3d", lambda: nudged(nn.GroupNorm(2, 4)), normal(2, 4, 2, 3, 3))
    yield module("group_norm channels last", lambda: nudged(nn.GroupNorm(2, 6)), cl(3, 6, 4, 5))
    yield module("instance_norm", lambda: nn.InstanceNorm2d(5), normal(3, 5, 4, 7))
    yield module("instance_norm affine", lambda: nudged(nn.InstanceNorm2d(5, affine=True)), normal(3, 5, 4, 7))
    yield module(
        "instance_norm tracked",
        lambda: nudged(nn.InstanceNorm1d(5, affine=True, track_running_stats=True)),
        normal(3, 5, 7),
    )
    yield module("local_response_norm", lambda: nn.LocalResponseNorm(3), normal(2, 7, 4, 5))


def _losses() -> Iterator[Case]:
    logits, target = normal(5, 7), ints(7, 5)
    for reduction in ("mean", "sum", "none"):
        r = {"reduction": reduction}
        yield of(f"loss cross_entropy {reduction}", lambda x, t, r=r: F.cross_entropy(x, t, **r), logits, target)
        yield of(f"loss mse {reduction}", lambda x, y, r=r: F.mse_loss(x, y, **r), normal(3, 5), normal(3, 5))
        yield of(f"loss l1 {reduction}", lambda x, y, r=r: F.l1_loss(x, y, **r), normal(3, 5), normal(3, 5))
        yield of(
            f"loss smooth_l1 {reduction}",
            lambda x, y, r=r: F.smooth_l1_loss(x, y, beta=0.7, **r),
            normal(3, 5),
            normal(3, 5),
        )
        yield of(
            f"loss huber {reduction}", lambda x, y, r=r: F.huber_loss(x, y, delta=0.7, **r), normal(3, 5), normal(3, 5)
        )
        yield of(
            f"loss bce_logits {reduction}",
            lambda x, y, r=r: F.binary_cross_entropy_with_logits(x, y, **r),
            normal(3, 5),
            lambda: torch.rand(3, 5),
        )
        yield of(
            f"loss bce {reduction}",
            lambda x, y, r=r: F.binary_cross_entropy(x.sigmoid(), y.detach(), **r),
            normal(3, 5),
            lambda: torch.rand(3, 5),
        )
        yield of(f"loss nll {reduction}", lambda x, t, r=r: F.nll_loss(x.log_softmax(1), t, **r), logits, target)
        yield of(
            f"loss kl {reduction}", lambda x, y, r=r: F.kl_div(x.log_softmax(1), y.softmax(1), **r), logits, logits
        )


def _cross_entropies() -> Iterator[Case]:
    logits, target = normal(5, 7), ints(7, 5)
    weights = lambda: torch.rand(7) + 0.2  # noqa: E731
    yield of("loss cross_entropy weights", lambda x, t, w: F.cross_entropy(x, t, w.detach()), logits, target, weights)
    yield of("loss cross_entropy smoothing", lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1), logits, target)
    yield of(
        "loss cross_entropy weights smoothing",
        lambda x, t, w: F.cross_entropy(x, t, w.detach(), label_smoothing=0.2),
        logits,
        target,
        weights,
    )
    yield of(
        "loss cross_entropy ignore",
        lambda x, t: F.cross_entropy(x, t, ignore_index=-100),
        logits,
        lambda: torch.tensor([1, -100, 3, 6, -100]),
    )
    yield of(
        "loss cross_entropy ignore class",
        lambda x, t: F.cross_entropy(x, t, ignore_index=2, reduction="sum"),
        logits,
        lambda: torch.tensor([1, 2, 3, 6, 2]),
    )
    yield of("loss cross_entropy probabilities", lambda x, y: F.cross_entropy(x, y.softmax(1)), logits, logits)
    yield of("loss cross_entropy images", F.cross_entropy, normal(2, 5, 3, 4), ints(5, 2, 3, 4))
    yield of(
        "loss cross_entropy sequence",
        lambda x, t: F.cross_entropy(x.transpose(1, 2), t),
        normal(2, 7, 5),
        ints(5, 2, 7),
    )
    yield of("loss cross_entropy one", F.cross_entropy, normal(5), ints(5))


def _other_losses() -> Iterator[Case]:
    logits = normal(5, 7)
    yield of(
        "loss bce pos_weight",
        lambda x, y, w: F.binary_cross_entropy_with_logits(x, y.detach(), pos_weight=w.detach()),
        normal(3, 5),
        lambda: torch.rand(3, 5),
        positive(5),
    )
    yield of(
        "loss kl log target",
        lambda x, y: F.kl_div(x.log_softmax(1), y.log_softmax(1), log_target=True, reduction="batchmean"),
        logits,
        logits,
    )
    yield of("loss gaussian", F.gaussian_nll_loss, normal(3, 5), normal(3, 5), positive(3, 5))
    yield of("loss poisson", F.poisson_nll_loss, normal(3, 5), positive(3, 5))
    yield of("loss triplet", F.triplet_margin_loss, normal(4, 5), normal(4, 5), normal(4, 5))
    yield of(
        "loss triplet swap",
        lambda a, p, n: F.triplet_margin_loss(a, p, n, swap=True, margin=2.0),
        normal(4, 5),
        normal(4, 5),
        normal(4, 5),
    )
    sign = lambda: torch.tensor([1.0, -1, 1, -1])  # noqa: E731
    yield of(
        "loss cosine_embedding",
        lambda x, y, s: F.cosine_embedding_loss(x, y, s.detach(), 0.1),
        normal(4, 5),
        normal(4, 5),
        sign,
    )
    yield of(
        "loss margin_ranking", lambda x, y, s: F.margin_ranking_loss(x, y, s.detach(), 0.1), normal(4), normal(4), sign
    )
    yield of("loss hinge_embedding", lambda x, s: F.hinge_embedding_loss(x, s.detach()), normal(4), sign)
    yield of("loss soft_margin", lambda x, s: F.soft_margin_loss(x, s.detach()), normal(4), sign)
    yield of("loss multi_margin", F.multi_margin_loss, normal(4, 5), ints(5, 4))
    yield of(
        "loss multilabel_margin",
        F.multilabel_margin_loss,
        normal(2, 4),
        lambda: torch.tensor([[3, 0, -1, 1], [1, -1, 0, 2]]),
    )
    yield of(
        "loss multilabel_soft_margin",
        lambda x, t: F.multilabel_soft_margin_loss(x, t.float()),
        normal(4, 5),
        mask(4, 5),
    )


def _ordering() -> Iterator[Case]:
    yield of("scan cumsum", lambda x: x.cumsum(0) + x.cumsum(1) + x.cumsum(-1), normal(*A))
    yield of("scan cumprod", lambda x: x.cumprod(1), positive(*A))
    yield of("scan cummax", lambda x: x.cummax(1).values + x.cummin(0).values, normal(*A))
    yield of("scan logcumsumexp", lambda x: x.logcumsumexp(1), normal(*A))
    yield of("scan int", lambda a, m: (a.cumsum(1), m.cumsum(0), m.long().cumsum(1)), ints(9, 3, 5), mask(3, 5))
    yield of("scan flip", lambda x: x.flip(1).cumsum(1).flip(1), normal(*A))
    yield of("scan empty", lambda x: x.cumsum(1), normal(3, 0))
    yield of("scan 0-dim", lambda x: x.cumsum(0), normal())
    yield of("sort", lambda x: x.sort(1).values + x.sort(0, descending=True).values, normal(*A))
    yield of("sort indices", lambda x: x.sort(-1).indices, normal(*A))
    yield of("argsort", lambda x: (x.argsort(1), x.argsort(0, descending=True)), normal(*A))
    yield of("topk", lambda x: x.topk(3, 1).values, normal(*A))
    yield of("topk smallest", lambda x: x.topk(2, largest=False), normal(3, 11))
    yield of("topk gather", lambda x, y: y.gather(1, x.topk(2, 1).indices), normal(3, 5), normal(3, 5))
    yield of("unique sort of int", lambda a: a.sort(1).values, ints(9, 3, 7))
    yield of(
        "searchsorted",
        lambda x, y: torch.searchsorted(x.sort(1).values.detach(), y.detach()),
        normal(3, 7),
        normal(3, 4),
    )


def reduce_cases() -> list[Case]:
    return [*_reductions(), *_softmax(), *_norms(), *_losses(), *_cross_entropies(), *_other_losses(), *_ordering()]

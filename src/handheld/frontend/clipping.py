"""Limits gradients before the update, like torch.nn.utils.clip_grad_norm_ and clip_grad_value_."""

from __future__ import annotations

from handheld.frontend.record import Recorder
from handheld.frontend.reductions import fold
from handheld.frontend.values import Val
from handheld.graph.graph import View


def clip_norm(rec: Recorder, gradients: dict[int, View], limit: float) -> dict[int, View]:
    """Scales all gradients so that their joint norm is at most `limit`, like clip_grad_norm_."""
    rec.torch_op = "clip_grad_norm"
    sums = [fold(rec, g, tuple(range(len(g.shape))), lambda a: (a * a).reduce("sum")) for g in gradients.values()]
    while len(sums) > 1:
        sums = [_add_all(rec, sums[i : i + 8]) for i in range(0, len(sums), 8)]
    factor = rec.map((), [sums[0]], lambda s: (limit / (s.unary("sqrt") + 1e-6)).binary("min", 1.0))
    return {k: rec.map(g.shape, [g, factor], lambda a, f: a * f) for k, g in gradients.items()}


def _add_all(rec: Recorder, views: list[View]) -> View:
    def build(*vals: Val) -> Val:
        total = vals[0]
        for v in vals[1:]:
            total = total + v
        return total

    return rec.map((), views, build)


def clip_value(rec: Recorder, gradients: dict[int, View], limit: float) -> dict[int, View]:
    """Limits every element of every gradient to [-limit, limit], like clip_grad_value_."""
    rec.torch_op = "clip_grad_value"
    return {
        k: rec.map(g.shape, [g], lambda a: a.binary("max", -limit).binary("min", limit)) for k, g in gradients.items()
    }

"""Sums of gradients over several batches, or over the parts of one batch, in slots of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from handheld.frontend.record import Recorder
from handheld.frontend.state import StateBuilder
from handheld.frontend.values import Val, constant
from handheld.graph.dtypes import F32
from handheld.graph.graph import View
from handheld.passes.scale import ACCUMULATED, WEIGHT

Views = dict[int, View]


def accumulate(
    rec: Recorder, state: StateBuilder, parameters: Sequence[torch.Tensor], views: Views, count: int, last: bool
) -> tuple[Views, dict[str, int]]:
    """Adds the gradients of a batch to the sums. The last of `count` batches returns the means and clears the sums.

    Returns the gradients of the update by the identity of their parameters, and the new values of slots.
    """

    def ending(total: Val, own: Val) -> Val:
        return (total + own) * (1.0 / count)

    return _summed(rec, state, parameters, views, [], lambda total, own: total + own, ending if last else None)


def accumulate_part(
    rec: Recorder, state: StateBuilder, parameters: Sequence[torch.Tensor], views: Views, last: bool
) -> tuple[Views, dict[str, int]]:
    """Like `accumulate`, for a part of a batch. Its share of the batch is in a slot, which the trainer writes."""
    if WEIGHT not in state.slots:
        state.add_value(WEIGHT, np.array(1.0, np.float32), "control")

    def adding(total: Val, own: Val, weight: Val) -> Val:
        return total + own * weight

    return _summed(rec, state, parameters, views, [rec.slot_view(WEIGHT)], adding, adding if last else None)


def _summed(
    rec: Recorder,
    state: StateBuilder,
    parameters: Sequence[torch.Tensor],
    views: Views,
    more: list[View],
    adding: Callable[..., Val],
    ending: Callable[..., Val] | None,
) -> tuple[Views, dict[str, int]]:
    writes: dict[str, int] = {}
    sums: Views = {}
    for p in parameters:
        if id(p) not in views:
            continue
        slot = f"{ACCUMULATED}{state.find(p)}"
        if slot not in state.slots:
            state.add_value(slot, np.zeros(tuple(p.shape), np.float32), "optimizer")
        total = rec.slot_view(slot)
        operands = [total, views[id(p)], *more]
        if ending is not None:
            sums[id(p)] = rec.map(total.shape, operands, ending)
            writes[slot] = rec.map(total.shape, [], lambda b: constant(b, 0.0, F32)).tensor
        else:
            writes[slot] = rec.map(total.shape, operands, adding).tensor
    return sums, writes

"""Metrics of an evaluation. A metric turns the outputs of one batch into (total, count)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray

#: From the outputs by name and the batch's arrays to a mean over the batch, or to its total and count.
Metric = Callable[[Mapping[str, Array], Sequence[Array]], "float | tuple[float, float]"]


def accuracy(outputs: Mapping[str, Array], batch: Sequence[Array]) -> tuple[float, float]:
    """The share of labels for which the largest output is right. Negative labels are ignored."""
    scores, labels = next(iter(outputs.values())), np.asarray(batch[-1])
    guess = scores.argmax(axis=class_axis(scores.shape, labels.shape))
    counted = labels >= 0
    return float((guess == labels)[counted].sum()), float(counted.sum())


def class_axis(scores: tuple[int, ...], labels: tuple[int, ...]) -> int | None:
    """The axis of the classes: 1 for [n, c, ...] as in PyTorch's cross entropy, the last for [..., c], else None."""
    if len(scores) != len(labels) + 1:
        return None
    if scores[:1] + scores[2:] == labels:
        return 1
    return len(scores) - 1 if scores[:-1] == labels else None


def default_metrics(outputs: Mapping[str, Array], batch: Sequence[Any]) -> dict[str, Metric]:
    """Accuracy if the outputs are class scores and the last input holds labels; else no metric."""
    if not outputs or not batch:
        return {}
    scores, labels = next(iter(outputs.values())), np.asarray(batch[-1])
    if scores.dtype.kind != "f" or labels.dtype.kind not in "iu":
        return {}
    return {"accuracy": accuracy} if class_axis(scores.shape, labels.shape) is not None else {}


class Means:
    """Running totals of metrics."""

    def __init__(self) -> None:
        self._totals: dict[str, tuple[float, float]] = {}

    def add(self, name: str, value: float | tuple[float, float]) -> None:
        total, count = value if isinstance(value, tuple) else (float(value), 1.0)
        total_so_far, seen = self._totals.get(name, (0.0, 0.0))
        self._totals[name] = (total_so_far + total, seen + count)

    def values(self) -> dict[str, float]:
        return {name: total / count for name, (total, count) in self._totals.items() if count}

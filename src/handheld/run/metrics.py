"""Metrics of an evaluation. A metric turns the outputs of one batch into (total, count)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

import numpy as np

Array = np.ndarray

#: The names of inputs that hold labels. Without one of them, the last input does.
LABELS = ("labels", "label")


class Arrays(Sequence[Array]):
    """The arrays of a batch, by position (`batch[-1]`) or by name (`batch["labels"]`)."""

    def __init__(self, named: Mapping[str, Array]) -> None:
        self.named = dict(named)

    @overload
    def __getitem__(self, key: int | str) -> Array: ...
    @overload
    def __getitem__(self, key: slice) -> list[Array]: ...
    def __getitem__(self, key: int | str | slice) -> Array | list[Array]:
        if isinstance(key, str):
            return self.named[key]
        return list(self.named.values())[key]

    def __len__(self) -> int:
        return len(self.named)

    @property
    def label_name(self) -> str:
        """The name of the labels: one of LABELS, or that of the last array."""
        return next((name for name in LABELS if name in self.named), list(self.named)[-1])

    @property
    def labels(self) -> Array:
        return self.named[self.label_name]


#: From the outputs by name and the batch's arrays to a mean over the batch, or to its total and count.
Metric = Callable[[Mapping[str, Array], Sequence[Array]], "float | tuple[float, float]"]


def accuracy(outputs: Mapping[str, Array], batch: Sequence[Array]) -> tuple[float, float]:
    """The share of labels for which the largest output is right. Negative labels are ignored."""
    scores, labels = next(iter(outputs.values())), _labels(batch)
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
    """Accuracy if the outputs are class scores and there are labels; else no metric.

    A language model that is given its tokens as labels shifts them itself. Which output belongs to which label is
    then not known here, so there is no accuracy.
    """
    if not outputs or not batch:
        return {}
    scores, labels = next(iter(outputs.values())), _labels(batch)
    if isinstance(batch, Arrays) and labels.ndim > 1 and _is_input(labels, batch):
        return {}
    if scores.dtype.kind != "f" or labels.dtype.kind not in "iu":
        return {}
    return {"accuracy": accuracy} if class_axis(scores.shape, labels.shape) is not None else {}


def _labels(batch: Sequence[Array]) -> Array:
    return np.asarray(batch.labels if isinstance(batch, Arrays) else batch[-1])


def _is_input(labels: Array, batch: Arrays) -> bool:
    """Whether the labels are the tokens of another input, except for those that are ignored."""
    others = [value for name, value in batch.named.items() if name != batch.label_name]
    kept = labels >= 0
    return any(value.shape == labels.shape and np.array_equal(value[kept], labels[kept]) for value in others)


class Means:
    """Running totals of metrics."""

    def __init__(self) -> None:
        self._totals: dict[str, tuple[float, float]] = {}

    def add(self, name: str, value: float | tuple[float, float], samples: int = 1) -> None:
        """Adds a total and its count, or the mean of a number of samples."""
        total, count = value if isinstance(value, tuple) else (float(value) * samples, float(samples))
        total_so_far, seen = self._totals.get(name, (0.0, 0.0))
        self._totals[name] = (total_so_far + total, seen + count)

    def values(self) -> dict[str, float]:
        return {name: total / count for name, (total, count) in self._totals.items() if count}

"""Checks that data fits a model, before a device is opened."""

from __future__ import annotations

from typing import Any

import numpy as np

from handheld.data import ArrayData, Data, DataSet, ImageData, TextData
from handheld.data.dataset import listed
from handheld.errors import BatchError, DataError
from handheld.graph.graph import Graph, IndexRange
from handheld.resolve import resized
from handheld.run.batch import check_batch
from handheld.run.sizes import rows


def check_fit(graph: Graph, dataset: DataSet, model: str) -> None:
    """Check shapes, types, and the range of labels or tokens."""
    limits = graph.ranges
    for data in filter(None, (dataset.train, dataset.test)):
        try:
            check_batch(graph, resized(next(iter(data.epoch(0))), rows(graph)))
        except BatchError as error:
            raise misfit(dataset, model, error) from None
        for given, array in zip(graph.inputs, _held(data, graph), strict=True):
            if given.name in limits and array is not None:
                _, low, high, ignore = limits[given.name]
                bad = array[((array < low) | (array >= high)) & (array != ignore)]
                if bad.size:
                    text = (
                        f"it holds {int(bad.flat[0])}; the model takes classes or tokens from {low} to {high - 1}. "
                        "Try: other data, or a model with more classes or tokens"
                    )
                    raise misfit(dataset, model, BatchError(text, limits[given.name]))


def misfit(dataset: DataSet, model: str, error: BatchError) -> DataError:
    """The error for data that does not fit. It speaks of classes where a label is out of range."""
    if error.allowed is None or not _is_label(dataset, error.allowed):
        return DataError(f"{dataset.name} does not fit {model}: {error}")
    _, low, high, _ = error.allowed
    names, scores = dataset.classes, high - low
    many = f"{scores} class" + ("" if scores == 1 else "es")
    if len(names) > scores:
        return DataError(
            f"{dataset.name} does not fit {model}: the data has {len(names)} classes ({listed(names)}), but the model "
            f"gives scores for {scores}. Try: a last layer with {len(names)} outputs, or data with {many}"
        )
    held_labels = (_labels(data) for data in (dataset.train, dataset.test) if data is not None)
    values = sorted({int(v) for labels in held_labels if labels is not None for v in np.unique(labels)})
    held = f"the labels of the data are {listed([str(v) for v in values])}" if values else "a label is out of range"
    need = f"a last layer with {max(values) + 1} outputs, or " if values and values[0] >= low else ""
    return DataError(
        f"{dataset.name} does not fit {model}: {held}, but the model gives scores for {many} ({low} to {high - 1}). "
        f"Try: {need}labels from {low} to {high - 1}"
    )


def one_class(dataset: DataSet) -> str:
    """A warning if all samples have the same class, or ""."""
    labels = _labels(dataset.train)
    if dataset.facts.kind == "text" or not (len(dataset.classes) == 1 or (labels is not None and np.ptp(labels) == 0)):
        return ""
    number = 0 if len(dataset.classes) == 1 or labels is None else int(labels.flat[0])
    name = dataset.classes[number] if 0 <= number < len(dataset.classes) else str(number)
    hint = {
        "images": "one sub-folder per class",
        "table": "rows of more classes, or --label COLUMN for another column",
    }.get(dataset.facts.kind, "samples of more classes")
    return f"{dataset.name}: there is only one class, {name}, so accuracy says nothing. Try: {hint}"


def _is_label(dataset: DataSet, allowed: IndexRange | tuple[str, int, int, int | None]) -> bool:
    """Whether a range belongs to the labels, and not to the tokens that a model reads."""
    data = dataset.train
    if _labels(data) is None:
        return False
    last = str(len(data.arrays) - 1) if isinstance(data, ArrayData) and not data.names else "1"
    return allowed[0] in ("label", "labels", last)


def _labels(data: Data) -> Any:
    """The class of each training sample, if samples have one whole number each; else None."""
    if isinstance(data, ImageData):
        return data.labels
    if not isinstance(data, ArrayData) or len(data.arrays) < 2:
        return None
    last = next((i for i, name in enumerate(data.names) if name in ("label", "labels")), len(data.arrays) - 1)
    labels = data.arrays[last]
    return labels if labels.dtype.kind in "iu" and labels.ndim == 1 and labels.size else None


def _held(data: Data, graph: Graph) -> tuple[Any, ...]:
    """The arrays that the data keeps in memory, one per input; None for an input that is read from files."""
    if isinstance(data, TextData):
        return data.tokens, data.tokens
    if isinstance(data, ImageData):
        return None, data.labels
    if isinstance(data, ArrayData) and data.names:
        return tuple(data.arrays[data.names.index(given.name)] for given in graph.inputs)
    return data.arrays if isinstance(data, ArrayData) else ()

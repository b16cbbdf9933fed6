"""Runs the evaluation graph over a test set and returns the mean loss and the metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from handheld.run.batches import Batch, Data, Indexed
from handheld.run.metrics import Means, Metric, default_metrics

if TYPE_CHECKING:
    from handheld.run.trainer import Trainer


def evaluate(
    trainer: Trainer, data: Data, metrics: Mapping[str, Metric] | None = None, check: Callable[[], None] | None = None
) -> dict[str, float]:
    """The `loss` and the metrics over a test set. Without `metrics`, accuracy if the outputs are class scores.

    For data that can be indexed, every sample counts: an incomplete last batch is filled up, and the
    added samples are ignored by the metrics. The loss is the mean over the full batches. `check` is
    called after each batch; it may raise an exception to stop.
    """
    means, last = Means(), Means()
    for batch, counted in _batches(data):
        loss, outputs = trainer.evaluate(*batch)
        arrays = list(batch[0].values()) if isinstance(batch[0], Mapping) else list(batch)
        rows = int(np.shape(arrays[0])[0])
        (means if counted == rows else last).add("loss", float(loss))
        outputs = {name: _first(value, rows, counted) for name, value in outputs.items()}
        arrays = [_first(np.asarray(value), rows, counted) for value in arrays]
        chosen = default_metrics(outputs, arrays) if metrics is None else metrics
        for name, metric in chosen.items():
            means.add(name, metric(outputs, arrays))
        if check is not None:
            check()
    return {**last.values(), **means.values()}


def _first(array: Any, rows: int, counted: int) -> Any:
    return array[:counted] if array.ndim and array.shape[0] == rows else array


def _batches(data: Data) -> Iterator[tuple[Batch, int]]:
    """Batches of one size, each with the number of its samples that count."""
    if not isinstance(data, Indexed):
        yield from ((batch, data.batch_size) for batch in data.epoch(0))
        return
    random = np.random.default_rng(0)
    for start in range(0, data.samples, data.batch_size):
        indices = np.arange(start, start + data.batch_size) % data.samples
        yield data.take(indices, random), min(data.batch_size, data.samples - start)

"""Runs the evaluation graph over a test set and returns the mean loss and the metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from handheld.data.batches import Batch, Data, Indexed
from handheld.run.metrics import Arrays, Means, Metric, default_metrics
from handheld.run.pieces import run_pieces

if TYPE_CHECKING:
    from handheld.run.trainer import Trainer


class Evaluation(dict[str, float]):
    """The `loss` and the metrics of a test set by name. `note` says what they do not cover, or is ""."""

    def __init__(self, values: Mapping[str, float], note: str = "") -> None:
        super().__init__(values)
        self.note = note


def evaluate(
    trainer: Trainer, data: Data, metrics: Mapping[str, Metric] | None = None, check: Callable[[], None] | None = None
) -> Evaluation:
    """The `loss` and the metrics over all samples of a test set.

    Without `metrics`, accuracy if the outputs are class scores. Every sample has the same weight, so the loss is
    that of PyTorch over the whole test set. `check` is called after each batch; it may raise an exception to stop.
    """
    means, samples, covered, notes = Means(), 0, 0, dict[str, None]()
    for batch in _batches(data):
        result = run_pieces(trainer, "evaluate", batch, strict=False)
        samples, covered = samples + result.samples, covered + result.covered
        if result.covered:
            means.add("loss", float(result.loss), result.covered)
        notes |= dict.fromkeys(filter(None, (result.why, result.uncut)))
        named = batch[0] if isinstance(batch[0], Mapping) else {str(i): value for i, value in enumerate(batch)}
        arrays = Arrays({name: np.asarray(value) for name, value in named.items()})
        chosen = default_metrics(result.outputs, arrays) if metrics is None else metrics
        for name, metric in chosen.items():
            means.add(name, metric(result.outputs, arrays), result.samples)
        if check is not None:
            check()
    partly = f"the test loss covers {covered} of {samples} samples: " if covered < samples else ""
    return Evaluation(means.values(), partly + "; ".join(notes))


def _batches(data: Data) -> Iterator[Batch]:
    """All batches in order; the last one may be smaller."""
    if not isinstance(data, Indexed):
        yield from data.epoch(0)
        return
    random = np.random.default_rng(0)
    for start in range(0, data.samples, data.batch_size):
        yield data.take(np.arange(start, min(start + data.batch_size, data.samples)), random)

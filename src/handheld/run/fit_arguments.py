"""Checks the arguments of `fit` before the first step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from handheld.data.batches import Data, IterableData
from handheld.errors import CheckpointError, DataError, HandheldError
from handheld.files import remove_stale
from handheld.run.batch import batch_sizes
from handheld.run.parts import parts_of

if TYPE_CHECKING:
    from handheld.run.trainer import Trainer


def writable(path: Path) -> Path:
    """The path, or CheckpointError if it cannot be written. Removes what a killed run left of it."""
    if path.is_dir() or not path.absolute().parent.is_dir():
        why = "it is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise CheckpointError(f"{path} cannot be written: {why}")
    remove_stale(path)
    return path


def check_counts(epochs: object, every: object) -> None:
    if type(epochs) is not int or epochs < 0:
        raise HandheldError(f"epochs={epochs!r:.40} must be a whole number, 0 or more")
    if every is not None and (type(every) is not int or every < 1):
        raise HandheldError(f"every={every!r:.40} must be a whole number of steps, 1 or more")


def check_graphs(trainer: Trainer, find_nan: bool) -> None:
    graphs = trainer.plan.graphs
    if find_nan and parts_of(trainer.plan) is not None:
        raise HandheldError("find_nan does not work in micro-batches. Try: a smaller batch without a memory limit")
    if "train" not in graphs and not batch_sizes(graphs, "train") and parts_of(trainer.plan) is None:
        raise HandheldError(
            f"fit runs the graph 'train', but this plan has {', '.join(graphs)}. "
            "Try: run each update by name, trainer.run(name, *batch)"
        )


def batches_per_update(trainer: Trainer) -> int:
    graphs = (plan.graph for name, plan in trainer.plan.graphs.items() if name.partition("@")[0] == "train")
    return max((int(graph.notes.get("accumulate", 1)) for graph in graphs), default=1)


def check_calls(callbacks: object, metrics: object) -> None:
    """Raise an error if a metric is no function, or a callback has no method that `fit` would call."""
    if metrics is not None and not (isinstance(metrics, Mapping) and all(map(callable, metrics.values()))):
        raise HandheldError("metrics must be a dictionary that maps names to functions f(outputs, batch)")
    if not isinstance(callbacks, Sequence):
        raise HandheldError("callbacks must be a list of objects with on_step, on_loss, on_epoch or on_message")
    for callback in callbacks:
        if not any(hasattr(callback, name) for name in ("on_step", "on_loss", "on_epoch", "on_message")):
            raise HandheldError(
                f"the callback {callback!r:.60} has no on_step, on_loss, on_epoch or on_message, "
                "so it would never be called"
            )


def as_data(data: Any, epochs: int) -> Data:
    batches = data if isinstance(data, Data) else IterableData(data)
    if epochs > 1 and isinstance(batches, IterableData) and batches.once:
        raise DataError(
            f"the data can be read only once, but there are {epochs} epochs. "
            "Try: a list, or a function that makes a new iterator for each epoch"
        )
    return batches

"""Checks the arguments of `fit` before the first step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from handheld.errors import CheckpointError, DataError, HandheldError
from handheld.run.batches import Data, IterableData


def writable(path: Path) -> Path:
    """The path, or CheckpointError if it cannot be written."""
    if path.is_dir() or not path.absolute().parent.is_dir():
        why = "it is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise CheckpointError(f"{path} cannot be written: {why}")
    return path


def check_callbacks(callbacks: object) -> None:
    """Raise an error if a callback has no method that `fit` would call."""
    if not isinstance(callbacks, Sequence):
        raise HandheldError("callbacks must be a list of objects with on_step, on_epoch or on_message")
    for callback in callbacks:
        if not any(hasattr(callback, name) for name in ("on_step", "on_epoch", "on_message")):
            raise HandheldError(
                f"the callback {callback!r:.60} has no on_step, on_epoch or on_message, so it would never be called"
            )


def as_data(data: Any, epochs: int) -> Data:
    batches = data if isinstance(data, Data) else IterableData(data)
    source = getattr(batches, "batches", None)
    if epochs > 1 and source is not None and not callable(source) and iter(source) is source:
        raise DataError(
            f"the data can be read only once, but there are {epochs} epochs. "
            "Try: a list, or a function that makes a new iterator for each epoch"
        )
    return batches

"""What `fit` is called with, checked before the first step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from handheld.errors import CheckpointError, DataError, HandheldError
from handheld.run.batches import Data, IterableData


def writable(path: Path) -> Path:
    """A place that cannot be written is known before the first step."""
    if path.is_dir() or not path.absolute().parent.is_dir():
        why = "it is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise CheckpointError(f"{path} cannot be written: {why}")
    return path


def check_callbacks(callbacks: Any) -> None:
    """A callback that would never be called is a mistake."""
    if not isinstance(callbacks, Sequence):
        raise HandheldError("callbacks should be a list of objects with on_step, on_epoch or on_message")
    for callback in callbacks:
        if not any(hasattr(callback, name) for name in ("on_step", "on_epoch", "on_message")):
            raise HandheldError(
                f"the callback {callback!r:.60} has none of on_step, on_epoch and on_message, and would never be called"
            )


def as_data(data: Any, epochs: int) -> Data:
    found = data if isinstance(data, Data) else IterableData(data)
    given = getattr(found, "batches", None)
    if epochs > 1 and given is not None and not callable(given) and iter(given) is given:
        raise DataError(
            f"the data can be read once only and {epochs} epochs are asked for. "
            "Try: a list, or a function that makes a new iterator for each epoch"
        )
    return found

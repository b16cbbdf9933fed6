"""What a checkpoint of the training loop holds, and whether it fits a step and its data.

Nothing here needs a device: a checkpoint that is damaged, of another model or of other data is
known before one is opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from handheld import package
from handheld.errors import CheckpointError
from handheld.graph.graph import Slot
from handheld.run.batches import Data
from handheld.run.history import History


@dataclass(frozen=True)
class Checkpoint:
    """A state, and where in the epochs it was reached. `partial` is what the present epoch has
    gathered: the sum of its losses, their number, samples and seconds."""

    state: dict[str, np.ndarray]
    epoch: int
    position: int
    micro: int
    partial: tuple[float, int, int, float]
    history: History
    #: how many epochs were asked for, and where it was trained; 0 and empty if that was not kept
    epochs: int
    device: str


def read_checkpoint(path: Path, data: Data, slots: Mapping[str, Slot]) -> Checkpoint:
    """The checkpoint, if the next step from it would be the one that was due; or an error."""
    if not path.exists():
        raise CheckpointError(f"there is no checkpoint {path} to resume from")
    state, meta = package.load_state(path)
    try:
        epoch, position, micro = (int(meta[k]) for k in ("epoch", "position", "micro"))
        loss_sum, losses, samples, seconds = meta["partial"]
        partial = float(loss_sum), int(losses), int(samples), float(seconds)
        facts, history = dict(meta["data"]), History.from_json(meta["history"])
        epochs, device = int(meta.get("epochs", 0)), str(meta.get("device", ""))
    except (KeyError, TypeError, ValueError):
        raise CheckpointError(
            f"{path} is no checkpoint of a training loop: a part of it is missing or malformed"
        ) from None
    for name, value in data_facts(data).items():
        if facts.get(name, value) != value:
            what = (
                "is of other data: the samples are not the same"
                if name == "content"
                else f"was written with {name} {facts[name]} of the data; now it is {value}, and the "
                "batches would differ"
            )
            raise CheckpointError(
                f"{path} {what}. To train what was learned on other data: --export a step file, and train that"
            )
    try:
        by_slot(state, slots)
    except CheckpointError as error:
        raise CheckpointError(f"{path} is of another model: {error}") from None
    return Checkpoint(state, epoch, position, micro, partial, history, epochs, device)


def data_facts(data: Data) -> dict[str, int]:
    """What must be the same for the next batch to be the same."""
    found = {
        name: int(getattr(data, name)) for name in ("batch_size", "samples", "seed", "content") if hasattr(data, name)
    }
    # an iterable does not know before its first batch
    return {name: value for name, value in found.items() if value or name != "batch_size"}


def by_slot(state: Mapping[str, Any], slots: Mapping[str, Slot], strict: bool = True) -> dict[str, np.ndarray]:
    """Values under PyTorch's names -> values of slots, or an error that says what does not fit.
    Unless `strict`, names that one side lacks are left out."""
    owner = {alias: slot for slot in slots.values() for alias in slot.names}
    unknown = [n for n in state if n not in owner]
    missing = [s.name for s in slots.values() if s.role in ("parameter", "buffer") and not set(s.names) & set(state)]
    if strict and (unknown or missing):
        said = [
            f"{words} {', '.join(names[:3])}{' …' if len(names) > 3 else ''}"
            for words, names in (("it has no value for", missing), ("the model has no", unknown))
            if names
        ]
        raise CheckpointError(f"the state does not fit: {'; '.join(said)}")
    arrays = {}
    for name, value in state.items():
        if name in owner:
            slot, array = owner[name], np.asarray(value)
            if array.shape != slot.shape:
                raise CheckpointError(f"{name} has shape {array.shape}; this step needs {slot.shape}")
            arrays[slot.name] = array
    return arrays

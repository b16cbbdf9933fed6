"""The content of a training checkpoint, and the check that it fits a step and its data.

Nothing here needs a device: a damaged checkpoint, or one of another model or other data, is reported
before a device is opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from handheld import package
from handheld.data.batches import Data
from handheld.errors import CheckpointError
from handheld.graph.graph import Slot
from handheld.passes.scale import ACCUMULATED, WEIGHT
from handheld.run.history import History
from handheld.run.stopping import Kept

#: What the names of the best epoch's values begin with, beside those of the current state.
BEST = "handheld.best/"
#: What the names of an optimizer's state begin with.
_OPTIMIZER = ("optimizer.", "optimizer_", ACCUMULATED)


@dataclass(frozen=True)
class Checkpoint:
    """The state, and the epoch and position where it was reached.

    `partial` holds the sums of the unfinished epoch: losses, number of losses, samples and seconds.
    """

    state: dict[str, np.ndarray]
    epoch: int
    position: int
    micro: int
    partial: tuple[float, float, int, float]
    history: History
    #: The number of epochs of that training, and its device; 0 and "" in a file that does not hold them.
    epochs: int
    device: str
    #: The scheduler as `Stepper.saved` wrote it, or None.
    scheduler: object = None
    #: The state of the best epoch, if it was kept.
    best: Kept | None = None
    #: The samples of the unfinished epoch that were left out.
    dropped: int = 0
    #: How many batches one update used; 0 in a file that does not hold it.
    accumulate: int = 0


def write_checkpoint(
    path: Path, state: Mapping[str, np.ndarray], meta: Mapping[str, object], best: Kept | None
) -> None:
    """Write the state and where it was reached, and the state of the best epoch if that is another one."""
    arrays, facts = dict(state), dict(meta)
    if best is not None:
        same = best.epoch == meta["epoch"] and not meta["position"]
        facts["best"] = {"epoch": best.epoch, "micro": best.micro, "same": same}
        if not same:
            arrays |= {f"{BEST}{name}": value for name, value in best.state.items()}
    package.save_state(path, arrays, facts)


def _best(state: dict[str, np.ndarray], meta: Mapping[str, Any]) -> Kept | None:
    """Take the state of the best epoch out of a checkpoint's arrays."""
    other = {name.removeprefix(BEST): state.pop(name) for name in list(state) if name.startswith(BEST)}
    facts = meta.get("best")
    if facts is None:
        return None
    return Kept(int(facts["epoch"]), dict(state) if facts["same"] else other, int(facts["micro"]))


def read_checkpoint(path: Path, data: Data, slots: Mapping[str, Slot]) -> Checkpoint:
    """Read the checkpoint. Raises CheckpointError unless the next step will be the one that was due."""
    if not path.exists():
        raise CheckpointError(f"there is no checkpoint {path} to resume from")
    state, meta = package.load_state(path)
    try:
        epoch, position, micro = (int(meta[k]) for k in ("epoch", "position", "micro"))
        loss_sum, losses, samples, seconds = meta["partial"]
        partial = float(loss_sum), float(losses), int(samples), float(seconds)
        facts, history = dict(meta["data"]), History.from_json(meta["history"])
        epochs, device = int(meta.get("epochs", 0)), str(meta.get("device", ""))
        best = _best(state, meta)
        accumulate = int(meta.get("accumulate", 0))
        dropped = int(meta.get("dropped", 0))
    except (KeyError, TypeError, ValueError):
        raise CheckpointError(
            f"{path} is not a checkpoint of a training loop: a part of it is missing or malformed"
        ) from None
    if not micro and accumulate <= 1:
        _without_sums(state, slots)
        _without_sums({} if best is None else best.state, slots)
    for values in (state,) if best is None else (state, best.state):
        _check_fits(path, values, slots)
    for name, value in data_facts(data).items():
        if facts.get(name, value) != value:
            what = f"was written with {name} {facts[name]} of the data; now it is {value}, so the batches would differ"
            if name == "content":
                what = "belongs to other data: the samples are not the same"
            if name == "prepared":
                before, now = facts[name] or "nothing", value or "nothing"
                what = f"was written with data prepared by {before}; now it is {now}, so the batches would differ"
            option = {"batch_size": "batch", "seed": "seed"}.get(name)
            further = "to continue with other data, --export a step file and train that"
            raise CheckpointError(f"{path} {what}. Try: {f'--{option} {facts[name]}' if option else further}")
    return Checkpoint(
        state,
        epoch,
        position,
        micro,
        partial,
        history,
        epochs,
        device,
        meta.get("scheduler"),
        best,
        dropped,
        accumulate,
    )


@dataclass(frozen=True)
class Result:
    """What a training gave: the state of its best epoch if that was kept, else the last one."""

    state: dict[str, np.ndarray]
    #: Which state it is, such as "best epoch 13 of 15 by test loss".
    words: str
    #: What `checkpoint_origin` wrote; empty in an old file.
    origin: Mapping[str, Any]


def read_result(path: Path, last: bool = False) -> Result:
    """Read what prediction and export take from a checkpoint. With `last`, the last state in any case."""
    state, meta = package.load_state(path)
    try:
        best = _best(state, meta)
        epoch, position = int(meta.get("epoch", 0)), int(meta.get("position", 0))
        history = meta.get("history") or {}
        done, by = len(history.get("epochs", ())), str(history.get("best_by", ""))
    except (AttributeError, KeyError, TypeError, ValueError):
        raise CheckpointError(f"{path} is malformed. Try: an earlier copy, or train again") from None
    words = f"last, in epoch {epoch + 1} after batch {position}" if position else f"last, after epoch {epoch}"
    if best is not None and not last:
        state, words = best.state, f"best epoch {best.epoch} of {done}{f' by {by}' if by else ''}"
    origin = meta.get("step")
    return Result(state, words, origin if isinstance(origin, Mapping) else {})


def read_history(path: Path) -> History:
    """The epochs of a checkpoint's training."""
    _, meta = package.load_state(path)
    return History.from_json(meta.get("history") or {"epochs": [], "steps": 0, "paused_seconds": 0.0})


def _check_fits(path: Path, state: Mapping[str, np.ndarray], slots: Mapping[str, Slot]) -> None:
    """Raise CheckpointError if the state is that of another model, or of another optimizer for the same model."""
    model = {name: value for name, value in state.items() if not name.startswith(_OPTIMIZER)}
    problem = next((f"it has no value for {s.name}" for s in slots.values() if _lacks(state, s)), "")
    try:
        by_slot(state, slots)
    except CheckpointError as error:
        problem = str(error)
        try:
            by_slot(model, slots)
        except CheckpointError:
            raise CheckpointError(f"{path} belongs to another model: {problem}") from None
    if problem:
        raise CheckpointError(
            f"{path} was written with another optimizer, or with another accumulate: {problem}. "
            "Try: the optimizer and --accumulate (accumulate=) of that training"
        )


def _without_sums(state: dict[str, np.ndarray], slots: Mapping[str, Slot]) -> None:
    """Makes the state fit a step with or without micro-batches: between two updates, their sums are zeros."""
    for name in [name for name in state if name.startswith(ACCUMULATED) or name == WEIGHT]:
        if name not in slots:
            del state[name]
    if WEIGHT in slots:
        state.setdefault(WEIGHT, np.ones(slots[WEIGHT].shape, np.float32))
        for slot in slots.values():
            if slot.name.startswith(ACCUMULATED):
                state.update({n: np.zeros(slot.shape, np.float32) for n in slot.names if n not in state})


def _lacks(state: Mapping[str, np.ndarray], slot: Slot) -> bool:
    return slot.role == "optimizer" and not any(name in state for name in slot.names)


def data_facts(data: Data) -> dict[str, int | str]:
    """What must be the same for the next batch to be the same."""
    facts: dict[str, int | str] = {
        name: int(getattr(data, name)) for name in ("batch_size", "samples", "seed", "content") if hasattr(data, name)
    }
    if hasattr(data, "prepared"):
        facts["prepared"] = str(data.prepared)
    # An iterable does not know its batch size before its first batch.
    return {name: value for name, value in facts.items() if value or name != "batch_size"}


def by_slot(state: Mapping[str, Any], slots: Mapping[str, Slot], strict: bool = True) -> dict[str, np.ndarray]:
    """Values under PyTorch's names as values of slots. Raises CheckpointError if a shape does not fit.

    Without `strict`, names that only one side has are ignored.
    """
    owner = {alias: slot for slot in slots.values() for alias in slot.names}
    unknown = [n for n in state if n not in owner]
    missing = [s.name for s in slots.values() if s.role in ("parameter", "buffer") and not set(s.names) & set(state)]
    if strict and (unknown or missing):
        problems = [
            f"{words} {', '.join(names[:3])}{' …' if len(names) > 3 else ''}"
            for words, names in (("it has no value for", missing), ("the model has no", unknown))
            if names
        ]
        raise CheckpointError(f"the state does not fit: {'; '.join(problems)}")
    arrays = {}
    for name, value in state.items():
        if name in owner:
            slot, array = owner[name], np.asarray(value)
            if array.shape != slot.shape:
                raise CheckpointError(f"{name} has shape {array.shape}; this step needs {slot.shape}")
            arrays[slot.name] = array
    return arrays

"""What a training run did, epoch by epoch. Checkpoints store it as plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from handheld.errors import CheckpointError


@dataclass
class Epoch:
    """One pass over the data. `test` holds the metrics of the evaluation that followed.

    `dropped` counts the training samples that were left out. `note` says what the metrics do not cover.
    """

    number: int
    loss: float
    rate: float
    samples: int
    seconds: float
    test: dict[str, float] = field(default_factory=dict)
    dropped: int = 0
    note: str = ""

    @property
    def samples_per_second(self) -> float:
        return self.samples / self.seconds if self.seconds > 0 else 0.0


@dataclass
class History:
    """All epochs so far, including those before a resume."""

    epochs: list[Epoch] = field(default_factory=list)
    steps: int = 0
    #: Seconds spent waiting for the device to cool down.
    paused_seconds: float = 0.0
    #: Why training ended before its last epoch, or "".
    stopped: str = ""
    #: The number of the best epoch (0: none), and the metric that says so, such as "test loss".
    best_epoch: int = 0
    best_by: str = ""
    #: The epoch whose state the trainer holds at the end, with keep_best; 0 for that of the last step.
    kept_epoch: int = 0
    #: Whether training ended because patience was exhausted.
    early: bool = False

    @property
    def best(self) -> Epoch | None:
        """The best epoch, if `fit` was asked to find it."""
        return next((e for e in self.epochs if e.number == self.best_epoch), None)

    @property
    def last(self) -> Epoch | None:
        return self.epochs[-1] if self.epochs else None

    @property
    def dropped(self) -> int:
        """The training samples that were left out, over all epochs."""
        return sum(e.dropped for e in self.epochs)

    @property
    def test(self) -> dict[str, float]:
        """The metrics of the latest evaluation, or of the epoch whose state was kept."""
        if self.kept_epoch:
            return next(e.test for e in self.epochs if e.number == self.kept_epoch)
        return next((e.test for e in reversed(self.epochs) if e.test), {})

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(data: Any) -> History:
        """Read the history of a checkpoint. Raises CheckpointError if it is malformed."""
        try:
            epochs = [
                Epoch(
                    number=int(e["number"]),
                    loss=float(e["loss"]),
                    rate=float(e["rate"]),
                    samples=int(e["samples"]),
                    seconds=float(e["seconds"]),
                    test={str(k): float(v) for k, v in _items(e["test"])},
                    dropped=int(e.get("dropped", 0)),
                    note=str(e.get("note", "")),
                )
                for e in data["epochs"]
            ]
            return History(epochs, int(data["steps"]), float(data["paused_seconds"]))
        except (AttributeError, KeyError, TypeError, ValueError, IndexError):
            raise CheckpointError("the checkpoint's history is malformed") from None


def _items(data: Any) -> Any:
    if not isinstance(data, Mapping):
        raise TypeError("metrics must be a dictionary")
    return data.items()

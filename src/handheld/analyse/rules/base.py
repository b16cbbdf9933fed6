"""What a rule returns: a piece of advice, with what it would gain and how to try it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from handheld.store.record import Record
from handheld.units import size

if TYPE_CHECKING:
    from handheld.analyse.run import Run

#: What a change does to the training.
SAME, TRAINING, MODEL = "same results", "other training", "other model"

STEP, SAMPLE, BYTES, JOULES = "ms per step", "ms per sample", "bytes", "J per sample"


@dataclass(frozen=True, slots=True)
class Gain(Record):
    """A quantity before and after a change. `low` is the best value after it that is likely, `high` the worst."""

    quantity: str
    before: float
    after: float
    low: float
    high: float

    @property
    def share(self) -> float:
        """The share that is saved."""
        return 1 - self.after / self.before if self.before else 0.0

    @property
    def factor(self) -> float:
        return self.before / self.after if self.after else 1.0

    @property
    def spread(self) -> str:
        """The range of the factor, or "" if there is none."""
        best, worst = (self.before / value if value else 1.0 for value in (self.low, self.high))
        return f"{worst:.2f} to {best:.2f}" if f"{worst:.2f}" != f"{best:.2f}" else ""

    @property
    def values(self) -> str:
        return f"{said(self.after, self.quantity)} instead of {said(self.before, self.quantity)}"

    @property
    def text(self) -> str:
        return f"{self.factor:.2f}x{f' ({self.spread})' if self.spread else ''}: {self.values}"


def said(value: float, quantity: str) -> str:
    """A value of a quantity that advice is about, with its unit."""
    if quantity == BYTES:
        return size(round(value))
    return f"{value:.3g} {quantity}" if value < 100 else f"{value:.0f} {quantity}"


@dataclass(frozen=True, slots=True)
class Change(Record):
    """What `handheld advise --try` changes in the conditions of the run. None and empty values stay as they were."""

    optional: ClassVar[frozenset[str]] = frozenset({"batch", "precision", "tune_s", "on", "memory_limit"})

    batch: int | None = None
    precision: str | None = None
    tune_s: float | None = None
    on: str | None = None
    freeze: tuple[str, ...] = ()
    memory_limit: int | None = None


@dataclass(frozen=True, slots=True)
class Advice(Record):
    """One rule's answer. `costs_ms` is the part of a step that the bottleneck costs."""

    rule: str
    seen: str
    costs_ms: float
    change: str
    gain: Gain
    command: str
    effect: str = SAME
    to: Change | None = None  # how to try it
    why_not: str = ""  # why it cannot be tried automatically
    evidence: dict[str, object] = field(default_factory=dict)


def batch_of(run: Run) -> int:
    return next((step.batch for step in run.steps() if step.batch), 0)


def one_graph(run: Run) -> bool:
    """Whether a step runs one graph. Rules about the batch know only such steps."""
    return len(run.graphs) == 1

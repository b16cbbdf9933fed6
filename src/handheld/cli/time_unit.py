"""The unit of the times in the tables of a run."""

from __future__ import annotations

from dataclasses import dataclass

from handheld.analyse.run import Run

SHORT_MS = 1.0  # The ops of a shorter step take a few µs: in ms with three decimals they would read 0.001 or 0.000.


@dataclass(frozen=True)
class TimeUnit:
    """ms, or µs for short steps. All tables of a run have the same unit."""

    name: str
    factor: float
    decimals: int

    @staticmethod
    def of(run: Run) -> TimeUnit:
        steps = [parts.ms for graph in run.graphs if (parts := run.parts(graph))]
        return TimeUnit.for_ms(max(steps, default=SHORT_MS))

    @staticmethod
    def for_ms(ms: float) -> TimeUnit:
        return TimeUnit("µs", 1e3, 2) if ms < SHORT_MS else TimeUnit("ms", 1.0, 3)

    def number(self, ms: float) -> str:
        return f"{ms * self.factor:.{self.decimals}f}"

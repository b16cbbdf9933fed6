"""Medians and their spread."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Measured:
    """A median, and the range between the quartiles relative to it."""

    median: float
    spread: float

    @staticmethod
    def of(values: Sequence[float]) -> Measured:
        middle = statistics.median(values)
        if len(values) < 2 or not middle:
            return Measured(middle, 0.0)
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
        return Measured(middle, (high - low) / abs(middle))

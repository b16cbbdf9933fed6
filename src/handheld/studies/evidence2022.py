"""Whether a comparison of two measured times is a result, or could be noise.

A ratio is told only if it was repeated often enough, its interval excludes the opposite, and the machine was not busy
with other work. The interval is that of the quartiles: the slow quarter of one side against the fast quarter of the
other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from handheld.analyse.busy import others_in
from handheld.units import count as times

LEAST = 5  # Fewer repetitions have no interval.

Row = dict[str, Any]


@dataclass(frozen=True)
class Ratio:
    """A ratio of two times with its interval. `doubt` says why nothing can be told from it, or is empty."""

    value: float
    low: float
    high: float
    doubt: str = ""

    def above(self, limit: float) -> bool | None:
        """Whether the ratio is above (True) or below (False) the limit; None if that cannot be told."""
        if self.doubt or self.low <= limit <= self.high:
            return None
        return self.low > limit

    @property
    def why(self) -> str:
        """Why it cannot be told on which side of a limit the ratio is."""
        return self.doubt or f"the measurements allow ratios from {self.low:.2g} to {self.high:.2g}"


def ratio(result: Row, over: Mapping[str, Any], under: Mapping[str, Any]) -> Ratio:
    """The ratio of two times, each with its median, quartiles and number of repetitions."""
    repeated = min(over["n"], under["n"])
    few = f"it was repeated only {times(repeated, 'time')}, and {LEAST} are needed" if repeated < LEAST else ""
    return Ratio(
        value=over["median"] / under["median"],
        low=over["p25"] / under["p75"],
        high=over["p75"] / under["p25"],
        doubt=busy(result) or few,
    )


def busy(result: Row) -> str:
    """How much of the cores other processes held, if it was enough to disturb the study; else ""."""
    others = others_in(result.get("others"))
    return f"other processes held {others.share:.0%} of the cores" if others and others.busy else ""


def warning(result: Row) -> str:
    """The warning for the top of the page, or ""."""
    others = others_in(result.get("others"))
    return others.warning if others else ""

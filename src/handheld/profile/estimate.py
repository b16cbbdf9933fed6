"""A stated model of what a device takes, for estimates of energy where nothing measures it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from handheld.errors import HandheldError


@dataclass(frozen=True)
class Estimate:
    """Watts while the device runs a command, and while it runs none: said by the user, measured by
    no one. What follows from it is marked as an estimate wherever it appears."""

    watts_busy: float
    watts_idle: float = 0.0

    def __post_init__(self) -> None:
        fine = all(math.isfinite(w) and w >= 0 for w in (self.watts_busy, self.watts_idle))
        if not fine or self.watts_busy < self.watts_idle or not self.watts_busy:
            raise HandheldError(
                f"an estimate needs watts when busy, above 0, and when idle, from "
                f"0 to those; these are {self.watts_busy:g} and "
                f"{self.watts_idle:g}"
            )

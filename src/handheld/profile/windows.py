"""When to record: windows of a few steps in a row, as often as their cost allows.

`wait` steps are not looked at, `warmup` steps are noted but not recorded, then `active` steps are
noted and some of them recorded (None: all that follow). The first window opens at once; the next
one when all of them together, with it, have cost no more than SHARE of the time since the first.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from handheld.errors import HandheldError

WINDOW = 4  # steps; the first of them starts on an empty device, the others as steps do
SHARE = 0.02  # of a run's time that recording may cost
WARMUP = 2  # the first steps are never like the others


class Windows:
    def __init__(self, wait: int = 0, warmup: int = WARMUP, active: int | None = None) -> None:
        if wait < 0 or warmup < 0 or (active is not None and active < 1):
            raise HandheldError("a schedule has wait and warmup of 0 or more, and active of 1 or "
                                f"more; this one has {wait}, {warmup} and {active}")
        self.wait, self.warmup, self.active = wait, warmup, active
        self.seen = self.steps = self.count = 0  # steps seen and noted; windows
        self.cost_ns = 0
        self._first_ns = self._next = 0

    def notes(self) -> bool:
        """Whether the step that begins now is noted."""
        self.seen += 1
        over = self.active is not None and self.steps >= self.warmup + self.active
        return self.seen > self.wait and not over

    def due(self) -> bool:
        """Whether a window may open now."""
        if self.steps < max(self.warmup, self._next):
            return False
        if not self.count:
            return True
        cost = self.cost_ns * (self.count + 1) / self.count
        return cost <= SHARE * (time.monotonic_ns() - self._first_ns)

    def opened(self) -> None:
        self._first_ns = self._first_ns or time.monotonic_ns()

    def closed(self) -> None:
        self.count += 1
        self._next = self.steps + WINDOW

    @contextlib.contextmanager
    def costs(self) -> Iterator[None]:
        """What is done inside is the cost of recording."""
        begun = time.monotonic_ns()
        try:
            yield
        finally:
            self.cost_ns += time.monotonic_ns() - begun

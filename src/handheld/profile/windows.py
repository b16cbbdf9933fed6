"""When to record: windows of a few steps in a row, as often as their cost allows.

`wait` steps are not looked at, `warmup` steps are noted but not recorded, then `active` steps are
noted and some of them recorded (None: all that follow). The first window opens at once; the next
one when all of them together, with it, have cost no more than SHARE of the time since the first.
A window costs what it takes to open and read it, and what its steps take longer than others.
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
            raise HandheldError(
                "a schedule has wait and warmup of 0 or more, and active of 1 or "
                f"more; this one has {wait}, {warmup} and {active}"
            )
        self.wait, self.warmup, self.active = wait, warmup, active
        self.seen = self.steps = self.count = 0  # steps seen and noted; windows
        self.cost_ns = 0
        self._first_ns = self._next = 0
        self._mark_ns = self._aside_ns = 0  # when a window last opened or closed; costs since
        self._step_ns = 0.0  # what a step between the last two windows took

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
        took = self._since()
        if self.count:
            self._step_ns = took / max(self.steps - (self._next - WINDOW), 1)
        self._first_ns = self._first_ns or self._mark_ns

    def closed(self, steps: int) -> None:
        """A window of so many steps is over."""
        took = self._since()
        if self._step_ns:
            self.cost_ns += max(0, int(took - steps * self._step_ns))
        self.count += 1
        self._next = self.steps + WINDOW

    def skip(self, ns: int) -> None:
        """So much of the time was not the run's."""
        if self._first_ns:
            self._first_ns += ns
            self._mark_ns += ns

    def _since(self) -> int:
        """Time since the last mark, costs aside; sets the next."""
        now = time.monotonic_ns()
        took = now - self._mark_ns - self._aside_ns
        self._mark_ns, self._aside_ns = now, 0
        return took

    @contextlib.contextmanager
    def costs(self) -> Iterator[None]:
        """What is done inside is the cost of recording."""
        begun = time.monotonic_ns()
        try:
            yield
        finally:
            took = time.monotonic_ns() - begun
            self.cost_ns += took
            if begun >= self._mark_ns:
                self._aside_ns += took

"""Decides which steps are recorded: windows of a few steps in sequence, as often as their cost allows.

The first `wait` steps are ignored. The next `warmup` steps are timed as a whole but not recorded. Then follow `active`
steps (None: all), of which some are recorded. The first window opens at once. Another one opens as soon as the cost of
all windows, including the new one, is at most SHARE of the time since the first. The first FIRST windows may cost
FIRST_SHARE of it, or FIRST_NS in all, so that a short run has enough windows to be compared with another; those beyond
SHARE are further apart, so that enough steps between them are not recorded. The cost of a window is the time to open
and read it, plus the additional time of its steps compared with others.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from handheld.errors import HandheldError

WINDOW = 4  # steps per window; the first of them starts on an idle device, the others start as usual
SHARE = 0.02  # the share of a run's time that recording may cost
FIRST = 4  # A comparison needs 3 windows in both runs, and one may be disturbed.
FIRST_SHARE, FIRST_NS = 0.1, 100_000_000
WARMUP = 2  # The first steps always differ from the others.
IDLE_S = 1.0  # how long the machine is idle before the first step, to measure its idle power


class Windows:
    def __init__(self, wait: int = 0, warmup: int = WARMUP, active: int | None = None) -> None:
        if wait < 0 or warmup < 0 or (active is not None and active < 1):
            raise HandheldError(
                "a schedule needs wait and warmup of 0 or more, and active of 1 or "
                f"more; these are {wait}, {warmup} and {active}"
            )
        self.wait, self.warmup, self.active = wait, warmup, active
        self.seen = self.steps = self.count = 0  # all steps, steps that were written, windows
        self.cost_ns = 0
        self._first_ns = self._next = 0
        self._mark_ns = self._aside_ns = 0  # when a window last opened or closed; the cost since then
        self._step_ns = 0.0  # mean time of a step between the last two windows

    def notes(self) -> bool:
        """Whether the step that begins now is written to the run file."""
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
        elapsed = time.monotonic_ns() - self._first_ns
        early = self.count < FIRST and self.steps >= self._next + WINDOW
        return cost <= (max(FIRST_SHARE * elapsed, FIRST_NS) if early else SHARE * elapsed)

    def opened(self) -> None:
        took = self._since()
        if self.count:
            self._step_ns = took / max(self.steps - (self._next - WINDOW), 1)
        self._first_ns = self._first_ns or self._mark_ns

    def closed(self, steps: int) -> None:
        """A window of `steps` steps has ended."""
        took = self._since()
        if self._step_ns:
            self.cost_ns += max(0, int(took - steps * self._step_ns))
        self.count += 1
        self._next = self.steps + WINDOW

    def skip(self, ns: int) -> None:
        """Leave `ns` out of the run's time."""
        if self._first_ns:
            self._first_ns += ns
            self._mark_ns += ns

    def _since(self) -> int:
        """The time since the last mark without the cost of recording. Sets the mark to now."""
        now = time.monotonic_ns()
        took = now - self._mark_ns - self._aside_ns
        self._mark_ns, self._aside_ns = now, 0
        return took

    @contextlib.contextmanager
    def costs(self) -> Iterator[None]:
        """A context whose time counts as cost of recording."""
        begun = time.monotonic_ns()
        try:
            yield
        finally:
            took = time.monotonic_ns() - begun
            self.cost_ns += took
            if begun >= self._mark_ns:
                self._aside_ns += took

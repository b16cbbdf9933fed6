"""Times of steps that another process enqueues: a runner keeps them, and they are fetched from it now and then."""

from __future__ import annotations

import dataclasses
import time
from collections import deque

from handheld.backends.base import AskedTimes, Session
from handheld.errors import TargetLost
from handheld.store.rows import StepRow
from handheld.store.writer import COMMIT_S, RunWriter
from handheld.units import count

ASK_NS = int(COMMIT_S * 1e9)  # As often as the file is written, so that a kill loses no more than it does elsewhere.


class LaterSteps:
    """Steps that are written once their times were fetched. While steps run, nobody waits for these."""

    def __init__(self, session: Session, writer: RunWriter, asked: AskedTimes) -> None:
        self.session, self.writer = session, writer
        self._rows: deque[tuple[int, StepRow]] = deque()  # number of the step in its session, and the row
        self._asked: AskedTimes | None = asked
        self._asked_ns = time.monotonic_ns()

    @classmethod
    def of(cls, session: Session, writer: RunWriter) -> LaterSteps | None:
        """None if this process enqueues the steps. Forgets the steps before."""
        asked = session.ask_step_times()
        return None if asked is None else cls(session, writer, asked)

    def add(self, row: StepRow) -> None:
        """The session has run a step. The times of the row are replaced."""
        self._rows.append((self.session.counters.steps - 1, row))
        if self._asked is not None:
            if self._asked.is_there:
                self._take()
        elif time.monotonic_ns() - self._asked_ns > ASK_NS:
            self._ask()

    def fetch(self) -> None:
        """Write the steps so far. If the connection is lost, a note says how many steps have no times."""
        if self._asked is not None:
            self._take()
        if self._rows:
            self._ask()
            self._take()

    def _ask(self) -> None:
        self._asked_ns = time.monotonic_ns()
        try:
            self._asked = self.session.ask_step_times()
        except TargetLost:
            self._lose()
            raise

    def _take(self) -> None:
        """Write the steps whose times were asked for. Steps after that stay."""
        assert self._asked is not None
        try:
            times = self._asked.read()
        except TargetLost:
            self._lose()
            raise
        self._asked = None
        known = dict(
            zip(range(times.first, times.first + len(times.begin_ns)), zip(*times[1:], strict=True), strict=True)
        )
        missing = 0
        while self._rows and self._rows[0][0] < times.first + len(known):
            number, row = self._rows.popleft()
            if number in known:
                begin, end = known[number]
                self.writer.add(dataclasses.replace(row, begin_ns=int(begin), end_ns=int(end)))
            else:
                missing += 1
        if missing:
            self._note(missing, "were run but are not in this file: the runner did not keep their times")

    def _lose(self) -> None:
        if self._rows:
            self._note(len(self._rows), "at the end are not in this file: their times were lost with the connection")
        self._rows.clear()

    def _note(self, steps: int, what: str) -> None:
        self.writer.note("steps without times", f"{count(steps, 'step')} {what}")

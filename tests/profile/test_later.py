"""Times of steps that a runner keeps: nobody waits for them while steps run, and a loss costs only the last ones."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest

from handheld.analyse.run import open_run
from handheld.backends.base import Counters, StepTimes
from handheld.errors import TargetLost
from handheld.profile import later
from handheld.profile.later import LaterSteps
from handheld.store.rows import NoteRow, StepRow
from handheld.store.writer import RunWriter


class Asked:
    """Times that come when the test says so."""

    def __init__(self, session: Session) -> None:
        self.session, self.is_there = session, False
        self.first, self.end = session.taken, session.counters.steps

    def read(self) -> StepTimes:
        if self.session.lost and not self.is_there:
            raise TargetLost("the phone was lost")
        first = max(self.first, self.session.forgot)
        numbers = np.arange(first, self.end, dtype=np.int64)
        return StepTimes(first, 1000 * numbers, 1000 * numbers + 7)


class Session:
    """Counts steps as a runner does."""

    def __init__(self) -> None:
        self.counters, self.taken, self.forgot, self.lost = Counters(), 0, 0, False
        self.asked: list[Asked] = []

    def ask_step_times(self) -> Asked:
        if self.lost:
            raise TargetLost("the phone was lost")
        self.asked.append(Asked(self))
        self.taken = self.counters.steps
        return self.asked[-1]


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    monkeypatch.setattr(later, "ASK_NS", 0)
    return Session()


def run(session: Session, steps: LaterSteps, count: int, first: int) -> None:
    for number in range(first, first + count):
        session.counters.steps += 1
        steps.add(StepRow(number, "train", 8, 1, 2))


def written(path: Path) -> tuple[list[tuple[int, int, int]], list[str]]:
    with open_run(path) as opened:
        notes = [note.text for note in opened.file.table(NoteRow)]
        return [(step.id, step.begin_ns, step.end_ns) for step in opened.steps()], notes


def test_steps_are_written_when_their_times_are_there(session: Session, tmp_path: Path):
    with contextlib.closing(RunWriter(tmp_path / "a.run")) as writer:
        session.counters.steps = 5  # They ran before, and nobody profiled them.
        steps = LaterSteps.of(session, writer)
        run(session, steps, 3, 0)
        assert len(session.asked) == 1, "one question is under way, so there is no second one"
        session.asked[0].is_there = True
        run(session, steps, 1, 3)
        run(session, steps, 1, 4)
        assert len(session.asked) == 2
        session.asked[1].is_there = True
        run(session, steps, 1, 5)
        writer.commit()
        assert [step[0] for step in written(tmp_path / "a.run")[0]] == [0, 1, 2, 3, 4]
        steps.fetch()
    rows, notes = written(tmp_path / "a.run")
    assert rows == [(n, 1000 * (n + 5), 1000 * (n + 5) + 7) for n in range(6)] and not notes


def test_a_loss_costs_only_the_steps_that_were_not_asked_for(session: Session, tmp_path: Path):
    with contextlib.closing(RunWriter(tmp_path / "a.run")) as writer:
        steps = LaterSteps.of(session, writer)
        session.asked[0].is_there = True
        run(session, steps, 3, 0)
        session.asked[1].is_there, session.lost = True, True  # The answer came before the loss.
        with pytest.raises(TargetLost):
            steps.fetch()
        with pytest.raises(TargetLost):
            run(session, steps, 1, 3)
    rows, notes = written(tmp_path / "a.run")
    assert [row[0] for row in rows] == [0, 1]
    assert notes[0].startswith("1 step at the end") and "lost with the connection" in notes[0]


def test_steps_that_the_runner_did_not_keep_are_noted(session: Session, tmp_path: Path):
    with contextlib.closing(RunWriter(tmp_path / "a.run")) as writer:
        steps = LaterSteps.of(session, writer)
        session.asked[0].is_there = True
        run(session, steps, 4, 0)
        session.forgot = 2
        steps.fetch()
    rows, notes = written(tmp_path / "a.run")
    assert [row[0] for row in rows] == [2, 3] and notes[0].startswith("2 steps were run but are not in this file")

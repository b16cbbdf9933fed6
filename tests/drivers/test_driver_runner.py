"""The problems of a driver check in another process: a hang, a crash and progress. `test_child.py` has the process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from handheld.child import Ending
from handheld.drivers import runner
from handheld.drivers.runner import Results, Runner
from handheld.drivers.sketches import sketches
from handheld.progress import report, reporting

PROBLEMS = [sketch for sketch in sketches(large=False) if sketch.name in ("linear", "max-pool", "avg-pool", "ctc")]


class Process:
    """Stands for the process of the check. `behaviour` says which problems hang, die or take long."""

    behaviour: ClassVar[dict[str, str]] = {}
    asked: ClassVar[list[list[str]]] = []

    def __init__(self, command: tuple[str, ...]) -> None:
        self.messages: Iterator[dict[str, Any] | None] = iter(())

    def send(self, request: dict[str, Any]) -> None:
        self.asked.append(request["names"])
        self.messages = self.answers(request["names"])

    def answers(self, names: list[str]) -> Iterator[dict[str, Any] | None]:
        for name in names:
            match self.behaviour.get(name):
                case "hangs":
                    raise TimeoutError
                case "dies":
                    yield None
                case "builds":
                    for n in range(4):
                        report("building", n, 4)
            yield {"name": name, "wrong": {}}
        yield {"done": ""}

    def receive(self, timeout: float) -> dict[str, Any] | None:
        return next(self.messages)

    def ending(self) -> Ending:
        return Ending(-6)

    def close(self) -> None: ...


def run(monkeypatch: pytest.MonkeyPatch, behaviour: dict[str, str]) -> tuple[Results, list[str]]:
    """The results, and the stages that were shown."""
    shown: list[str] = []
    monkeypatch.setattr(runner, "Child", Process)
    monkeypatch.setattr(Process, "behaviour", behaviour)
    monkeypatch.setattr(Process, "asked", [])
    tell = lambda stage, done, total: shown.append(f"{stage} {done} of {total}" if total else stage)  # noqa: E731
    with Runner("opencl", large=False) as started, reporting(tell):
        return started.run("", PROBLEMS), shown


def test_the_stages_of_the_process_are_shown_with_the_problems_that_are_done(monkeypatch):
    results, shown = run(monkeypatch, {"avg-pool": "builds"})
    assert results == {sketch.name: {} for sketch in PROBLEMS}
    assert Process.asked == [["linear"], ["max-pool", "avg-pool"], ["ctc"]]
    inside = [f"{runner.STAGE} 2 of 4, building {n} of 4" for n in range(4)]
    assert shown == [f"{runner.STAGE} {n} of 4" for n in range(3)] + inside + [
        f"{runner.STAGE} {n} of 4" for n in (3, 4)
    ]


def test_a_device_that_hangs_at_the_first_problem_does_not_get_the_others(monkeypatch):
    results, _ = run(monkeypatch, {"linear": "hangs"})
    assert results == {"linear": {"": "nothing was reported for 600 s"}} and Process.asked == [["linear"]]


def test_a_later_problem_that_hangs_or_dies_is_the_only_one_without_a_result(monkeypatch):
    results, _ = run(monkeypatch, {"max-pool": "hangs", "ctc": "dies"})
    assert results["linear"] == results["avg-pool"] == {}
    assert results["max-pool"] == {"": "nothing was reported for 600 s"}
    assert results["ctc"] == {"": "the driver's process crashed (signal 6, SIGABRT)"}
    assert Process.asked == [["linear"], ["max-pool", "avg-pool"], ["max-pool"], ["avg-pool"], ["ctc"]]

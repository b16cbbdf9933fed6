"""Runs the problems of a check in a child process, which is started again after a crash."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from handheld.child import SILENCE_S, Child, python_module
from handheld.drivers.halves import Asked
from handheld.drivers.sketch import Sketch
from handheld.errors import TargetLost
from handheld.plan.lowering import family
from handheld.progress import Progress, listener, reporting

STAGE = "checking the driver, only once:"
#: A driver that takes longer for the first problem has a slow compiler. Then problems run one by one, until BUDGET_S.
SLOW_S = 20.0
BUDGET_S = 150.0

FLOATS = Asked()

#: Problem -> op -> what is wrong. The op "" stands for all ops of the problem, which could not be run.
Results = dict[str, dict[str, str]]


class Runner:
    """Runs problems on a device. Those of a family are one plan, or one plan each if that fails."""

    def __init__(self, device: str, large: bool, patient: bool = False, asked: Asked = FLOATS) -> None:
        self._device, self._large, self._patient, self._asked = device, large, patient, asked
        self._slow = self._hung = False
        self._child: Child | None = None

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None

    def run(self, way: str, problems: Sequence[Sketch]) -> Results:
        """The results of problems that run in a way ("" is the usual one).

        With a slow compiler, the last problems have no result, unless the runner is patient. A device that hangs at the
        first problem does not get the others.
        """
        results: Results = {}
        begun = time.monotonic()
        stage = _Stage(len(problems), listener())
        with reporting(stage.inside):
            for n, group in enumerate(self._groups(problems)):
                spent = time.monotonic() - begun
                self._slow = self._slow or (n == 1 and spent > SLOW_S)
                if self._slow and spent > BUDGET_S and not self._patient:
                    break
                results |= self._run_group(way, group, stage)
                if n == 0 and self._hung:
                    break
        return results

    def _groups(self, problems: Sequence[Sketch]) -> Iterator[list[Sketch]]:
        """The problems that are one plan: the first alone, then those of each family, or each alone if it is slow."""
        left = list(problems)
        while left:
            name = family(left[0].ops[0])
            size = next((n for n, s in enumerate(left) if family(s.ops[0]) != name), len(left))
            size = 1 if self._slow or len(left) == len(problems) else size
            yield left[:size]
            left = left[size:]

    def _run_group(self, way: str, group: Sequence[Sketch], stage: _Stage) -> Results:
        """The results of problems as one plan and, for those that have none then, as one plan each."""
        results, problem = self._ask(way, group, stage)
        if len(group) == 1:
            return results or {group[0].name: {"": problem}}
        for sketch in group:
            if sketch.name not in results:
                results |= self._run_group(way, [sketch], stage)
        return results

    def _ask(self, way: str, problems: Sequence[Sketch], stage: _Stage) -> tuple[Results, str]:
        """The results, and what went wrong before all were there; "" if nothing did. Raises TargetLost if the device
        is gone."""
        results: Results = {}
        if self._child is None:
            self._child = Child(python_module("handheld.drivers.worker"))
        names = [sketch.name for sketch in problems]
        self._hung = False
        try:
            request = {"device": self._device, "way": way, "names": names, "large": self._large}
            self._child.send({**request, "precision": self._asked.precision, "avoid": self._asked.avoid})
            while (message := self._child.receive(SILENCE_S)) is not None:
                if message.get("gone"):
                    raise TargetLost(str(message["done"]).removeprefix("TargetLost: "))
                if "done" in message:
                    return results, str(message["done"])
                results[message["name"]] = message["wrong"]
                stage.add()
            ended = self._child.ending().describe("the driver's process")
        except TimeoutError:
            self._hung, ended = True, f"nothing was reported for {SILENCE_S:.0f} s"
        except OSError as error:
            ended = f"the driver's process ended: {error}"
        self._close()
        return results, ended


class _Stage:
    """Reports how many problems are done, and what the child does for the next one, such as building programs."""

    def __init__(self, total: int, to: Progress | None) -> None:
        self._done, self._total, self._to = 0, total, to or (lambda stage, done, total: None)
        self._to(STAGE, 0, total)

    def add(self) -> None:
        """One more problem is done."""
        self._done += 1
        self._to(STAGE, self._done, self._total)

    def inside(self, stage: str, done: int, total: int) -> None:
        """A stage of the child. If it is all one piece, its number is not shown."""
        self._to(f"{STAGE} {self._done} of {self._total}, {stage}", done, total if total > 1 else 0)

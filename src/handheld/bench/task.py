"""One task of the benchmark in a process that may fail, hang or take too much memory: there is always an answer.

The process (worker.py) sends {"stage": ...} for what it does now, {"facts": {...}} for what is known so far, and last
{"status": "done"}, or what stopped it, with {"reason": ...}.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import psutil

from handheld.bench.shapes import Facts
from handheld.child import Child, Ending, Message, python_module

COMMAND = python_module("handheld.bench.worker")
TICK_S = 0.05  # between two looks at its memory
FREE = 0.9  # of the memory that is free when it begins, which it may take in any case
SILENCE_TICK_S = 1.0  # over which it is seen whether it computes

Tell = Callable[[str], None]


@dataclass
class Answer:
    """How it went: `status` is "done", or what stopped it, with the reason."""

    status: str
    reason: str = ""
    facts: Facts = field(default_factory=Facts)


def call(task: Message, *, silence_s: float, tell: Tell, limit_bytes: int | None = None) -> Answer:
    """Runs a task in a process of its own. It is ended when it holds nearly all that was free, or
    more than `limit_bytes` (from when it is known what it plans to take: until then it may still
    say that this does not fit), or when it says nothing for `silence_s` (see Silence)."""
    with Child(COMMAND) as child:  # ended on Ctrl-C too
        child.send(task)
        child.end_of_messages()
        return _listen(child, limit_bytes, silence_s, tell)


def _listen(child: Child, limit_bytes: int | None, silence_s: float, tell: Tell) -> Answer:
    seen, facts, stage, most = psutil.Process(child.pid), Facts(), "starting", 0
    silence = Silence(seen)
    free = int(FREE * psutil.virtual_memory().available)
    while True:
        known = limit_bytes is not None and "planned_bytes" in facts
        limit = min(free, limit_bytes or free) if known else free
        try:
            said = child.receive(TICK_S)
        except TimeoutError:
            with contextlib.suppress(psutil.Error):
                most = max(most, seen.memory_info().rss)
            if most > limit:
                facts["held_bytes"] = most
                return Answer(
                    "out of memory",
                    f"held {most / 2**20:,.0f} MiB while {stage} and "
                    f"was ended at the limit of {limit / 2**20:,.0f} MiB",
                    facts,
                )
            if silence.seconds() > silence_s:
                return Answer("hung", f"said nothing for {silence_s:.0f} s while {stage}", facts)
            continue
        if said is None:
            return Answer(*_how_it_ended(child.ending()), facts)
        silence = Silence(seen)
        facts.update(said.get("facts", {}))
        if "stage" in said:
            stage = said["stage"]
            tell(stage)
        if "status" in said:
            return Answer(said["status"], said.get("reason", ""), facts)


def _how_it_ended(ending: Ending) -> tuple[str, str]:
    """The status and the reason of a task that ended without giving them."""
    if ending.code == -signal.SIGKILL:
        return "out of memory", "the system ended it (SIGKILL), as it does when memory runs out"
    return "crashed", ending.describe()


class Silence:
    """How long a process has been silent, in its own time: what it computed, or, where it did
    nothing, what the clock says. On a machine that is busy with other things building kernels
    takes long, and is no hanging; nor is a machine that was suspended."""

    def __init__(self, process: psutil.Process) -> None:
        self.process, self._sum = process, 0.0
        self._mark = (time.monotonic(), self._busy())

    def _busy(self) -> float:
        with contextlib.suppress(psutil.Error):
            used = self.process.cpu_times()
            return float(used.user + used.system)
        return 0.0

    def seconds(self) -> float:
        now = time.monotonic()
        passed = now - self._mark[0]
        if passed >= SILENCE_TICK_S:
            busy = self._busy()
            computed = busy - self._mark[1]
            self._sum += min(passed, computed if computed > 0 else 2 * SILENCE_TICK_S)
            self._mark = (now, busy)
        return self._sum

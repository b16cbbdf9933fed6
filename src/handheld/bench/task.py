"""Runs one task of the benchmark in a process that may fail, hang or need too much memory.

The caller always gets an answer. The process (worker.py) sends {"stage": ...} for what it does now,
{"facts": {...}} for what is known so far, and last {"status": "done"}, or another status with {"reason": ...}.
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
TICK_S = 0.05  # Seconds between two checks of its memory.
FREE = 0.9  # The share of the memory free at the start that a process may use.
SILENCE_TICK_S = 1.0  # Seconds over which the computing time is compared.

Tell = Callable[[str], None]


@dataclass
class Answer:
    """How the task ended: `status` is "done", or what stopped it, and then `reason` says why."""

    status: str
    reason: str = ""
    facts: Facts = field(default_factory=Facts)


def call(task: Message, *, silence_s: float, tell: Tell, limit_bytes: int | None = None) -> Answer:
    """Run a task in its own process. The process is ended in three cases:

    - it holds nearly all memory that was free;
    - it holds more than `limit_bytes`. This counts only after the process has reported what it plans to
      allocate, because until then it may still report that the plan does not fit;
    - it reports nothing for `silence_s` (see Silence).
    """
    with Child(COMMAND) as child:  # Also ends the process on Ctrl-C.
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
            message = child.receive(TICK_S)
        except TimeoutError:
            with contextlib.suppress(psutil.Error):
                most = max(most, seen.memory_info().rss)
            if most > limit:
                facts["held_bytes"] = most
                return Answer(
                    "out of memory",
                    f"held {most / 2**20:,.0f} MiB while {stage} and "
                    f"was stopped at the limit of {limit / 2**20:,.0f} MiB",
                    facts,
                )
            if silence.seconds() > silence_s:
                return Answer("hung", f"reported nothing for {silence_s:.0f} s while {stage}", facts)
            continue
        if message is None:
            return Answer(*_how_it_ended(child.ending()), facts)
        silence = Silence(seen)
        facts.update(message.get("facts", {}))
        if "stage" in message:
            stage = message["stage"]
            tell(stage)
        if "status" in message:
            return Answer(message["status"], message.get("reason", ""), facts)


def _how_it_ended(ending: Ending) -> tuple[str, str]:
    """The status and the reason of a process that ended without sending them."""
    if ending.code == -signal.SIGKILL:
        return "out of memory", "the system killed it (SIGKILL), as it does when memory runs out"
    return "crashed", ending.describe()


class Silence:
    """How long a process has reported nothing: in its own computing time, or by the clock if it computes nothing.

    A machine that is busy with other work, or was suspended, takes longer to build kernels; such a process does
    not hang.
    """

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

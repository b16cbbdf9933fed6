"""A process that may fail, hang or take too much memory: whatever it does, there is an answer.

What it says is a JSON object a line: {"stage": ...} what it does now, {"facts": {...}} what is
known so far, and last {"status": "done"}, or what stopped it, with {"reason": ...}.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO, Any

import psutil

COMMAND = (sys.executable, "-W", "ignore", "-m", "handheld.bench.worker")
TICK_S = 0.05  # between two looks at its memory
FREE = 0.9  # of the memory that is free when it begins, which it may take in any case
SILENCE_TICK_S = 1.0  # over which it is seen whether it computes
TAIL = 300  # characters of what it wrote last before it died

Tell = Callable[[str], None]


@dataclass
class Answer:
    """How it went: `status` is "done", or what stopped it, with the reason."""

    status: str
    reason: str = ""
    facts: dict[str, Any] = field(default_factory=dict)


def call(task: dict[str, Any], *, silence_s: float, tell: Tell, limit_bytes: int | None = None) -> Answer:
    """Runs a task in a process of its own. It is ended when it holds nearly all that was free, or
    more than `limit_bytes` (from when it is known what it plans to take: until then it may still
    say that this does not fit), or when it says nothing for `silence_s` (see Silence)."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, encoding="utf-8"
        )
        try:
            answer = _listen(process, {**task, "parent": os.getpid()}, limit_bytes, silence_s, tell)
        finally:  # Ctrl-C too
            process.kill()
            process.wait()
        if answer.status == "ended":
            answer.status, answer.reason = _ending(process.returncode, said, answer.facts)
        return answer


def _listen(
    process: subprocess.Popen[str], task: dict[str, Any], limit_bytes: int | None, silence_s: float, tell: Tell
) -> Answer:
    assert process.stdin is not None
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_pump, args=(process.stdout, lines), daemon=True).start()
    with contextlib.suppress(BrokenPipeError), process.stdin as stdin:
        stdin.write(json.dumps(task))
    seen, facts, stage, most = psutil.Process(process.pid), {}, "starting", 0
    silence = Silence(seen)
    free = int(FREE * psutil.virtual_memory().available)
    while True:
        known = limit_bytes is not None and "planned_bytes" in facts
        limit = min(free, limit_bytes or free) if known else free
        try:
            line = lines.get(timeout=TICK_S)
        except queue.Empty:
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
        if line is None:
            process.wait()
            return Answer("ended", stage, facts)
        try:
            said = json.loads(line)
        except ValueError:  # killed in the middle of a word
            continue
        silence = Silence(seen)
        facts.update(said.get("facts", {}))
        if "stage" in said:
            stage = said["stage"]
            tell(stage)
        if "status" in said:
            return Answer(said["status"], said.get("reason", ""), facts)


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


def _ending(code: int, said: IO[bytes], facts: dict[str, Any]) -> tuple[str, str]:
    """What became of a process that ended without a word."""
    said.seek(0)
    last = (said.read().decode(errors="replace").strip().splitlines() or [""])[-1][-TAIL:]
    if code == -signal.SIGKILL:
        return "out of memory", "the system ended it (SIGKILL), as it does when memory runs out"
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
        return "crashed", f"the process crashed ({name}): {last}".rstrip(": ")
    return "crashed", f"the process ended (code {code}): {last}".rstrip(": ")


def _pump(source: IO[str], lines: queue.Queue[str | None]) -> None:
    with source:
        for line in source:
            lines.put(line)
    lines.put(None)

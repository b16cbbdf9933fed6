"""Runs a command on many devices at the same time: a process per device, which may end in any way.

Each device has two threads here: one listens to its process, one reads its sensors. The main thread looks at all of
them, stops those that pass a limit, and tells the caller. A device that is too hot is stopped in order, rests, and is
started again; the command continues where it was.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from handheld.child import Child, Ending, python_module
from handheld.fleet.file import Device
from handheld.fleet.gauges import Watcher
from handheld.progress import reporting

WAITING, WORKING, COOLING, STOPPING = "waiting", "working", "cooling", "stopping"
DONE, FAILED, STOPPED = "done", "failed", "stopped"
ENDED = (DONE, FAILED, STOPPED)
TICK_S = 0.2
FIRST_S = 20.0  # The most time to wait for the first reading of the sensors.
STOP_S = 30.0  # A process that was told to stop is killed after this time.
RESTS = 10  # A device that was too hot so often does not continue by itself.
INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Job:
    """What a device has to do: the words of an ordinary command, and where its output goes."""

    device: Device
    words: tuple[str, ...]
    document: Path  # its standard output, which is one JSON document
    log: Path  # its standard error
    #: Says whether the command came to a good end: "" or why not. Gets the document, if there is one.
    judge: Callable[[dict[str, Any], int], str]
    #: Called before each attempt: makes room for it, and says whether there is anything left to do.
    begin: Callable[[], bool] = lambda: True


@dataclass
class Member:
    """A device while the fleet works."""

    job: Job
    watcher: Watcher
    state: str = WAITING
    reason: str = ""
    doing: str = ""
    done: int = 0
    total: int = 0
    seconds: float = 0.0  # how long it has worked, without the present process
    notes: list[str] = field(default_factory=list)
    begun: float | None = None  # when the present process began
    _child: Child | None = None
    _ready: bool = False  # whether the process can be told to stop
    _why: str = ""  # why the process was told to stop
    _rest: bool = False  # whether it continues after that
    _kill_at: float = 0.0

    @property
    def worked_s(self) -> float:
        return self.seconds + (0.0 if self.begun is None else time.monotonic() - self.begun)

    def tell(self, stage: str, done: int, total: int) -> None:
        """What the process does now."""
        self.doing = stage
        if total:
            self.done, self.total = done, total

    def stop(self, why: str, rest: bool = False) -> None:
        """Tell the process to stop in order. It keeps what it has measured."""
        if self.state in ENDED or self._why:
            return
        self._why, self._rest, self._kill_at = why, rest, time.monotonic() + STOP_S
        if self._child is not None:
            self.state = STOPPING
            if self._ready:
                _signal(self._child.pid, signal.SIGINT)

    def look(self) -> None:
        """Check the limits of a device that works, and kill a process that does not stop."""
        limits, now = self.job.device.limits, self.watcher.now
        if self.state == WORKING:
            if limits.timeout is not None and self.worked_s > limits.timeout:
                self.stop(f"its timeout of {limits.timeout:g} s is over. Try: the same command, which continues")
            elif why := now.too_low(limits):
                self.stop(why)
            elif why := now.too_hot(limits):
                self.stop(why, rest=True)
        if self._why and self._child is not None and time.monotonic() > self._kill_at:
            _signal(self._child.pid, signal.SIGKILL)

    def kill(self) -> None:
        if self._child is not None:
            _signal(self._child.pid, signal.SIGKILL)

    # ── in the thread of the device ───────────────────────────────────────────────────────────

    def work(self, slot: threading.Lock) -> None:
        try:
            while not slot.acquire(timeout=TICK_S):
                if self._why:
                    self._end(STOPPED, self._why)
                    return
            try:
                self._work()
            finally:
                slot.release()
        except Exception as error:  # A device whose process cannot be started does not stop the others.
            self._end(FAILED, f"{type(error).__name__}: {error}")

    def _work(self) -> None:
        if problem := self._unchecked():
            self._end(FAILED, problem)
            return
        for _ in range(RESTS):
            self._cool()
            if self._why:
                self._end(STOPPED, self._why)
                return
            if not self.job.begin():
                self._end(DONE, "")
                return
            ending = self._attempt()
            if not self._rest:
                self._conclude(ending)
                return
            self._why, self._rest = "", False
        self._end(STOPPED, f"it was too hot {RESTS} times. Try: let it cool or raise its thermal_limit, then again")

    def _unchecked(self) -> str:
        """Why the device must not begin: a limit of its own that cannot be checked. Others are only noted."""
        limits = self.job.device.limits
        if limits.battery_floor is None and limits.thermal_limit is None:
            return ""
        self.doing = "reading its sensors"
        self.watcher.first.wait(FIRST_S)
        missing = self.watcher.now.unchecked(limits)
        for name, why in missing.items():
            if name in limits.own:
                return f"its {name} cannot be checked: {why}. Try: remove it from the fleet file"
            self.notes.append(f"{name} is not checked: {why}")
        if why := self.watcher.now.too_low(limits):
            return why
        return ""

    def _cool(self) -> None:
        limits = self.job.device.limits
        hot = self.watcher.now.too_hot(limits)
        while hot and not self._why:
            self.state, self.doing = COOLING, hot
            time.sleep(TICK_S)
            hot = self.watcher.now.too_hot(limits, again=True)

    def _attempt(self) -> Ending:
        """Run the command once."""
        job = self.job
        self.begun, self.doing = time.monotonic(), "starting"
        with Child(python_module("handheld.cli.member")) as child, reporting(self.tell):
            self._child, self._ready, self.state = child, False, WORKING
            child.send({"words": job.words, "document": str(job.document), "log": str(job.log)})
            while True:
                with contextlib.suppress(TimeoutError):
                    message = child.receive(3600.0)
                    if message is None:
                        break
                    self._ready = self._ready or "ready" in message
                    if self._why:  # It was told to stop before it was ready.
                        _signal(child.pid, signal.SIGINT)
            ending = child.ending()
            self._child = None
        self.seconds, self.begun = self.worked_s, None
        return ending

    def _conclude(self, ending: Ending) -> None:
        document = read_document(self.job.document)
        if self._why and ending.code != 0:
            self._end(STOPPED, self._why)
            return
        if ending.code is None or ending.code < 0 or (ending.code and not document):
            last = last_line(self.job.log)
            how = Ending(ending.code).describe("its process")
            self._end(FAILED, f"{how}{f': {last}' if last else ''}. Try: the same command, which continues")
            return
        error = document.get("error")
        reason = str(error["message"]) if isinstance(error, dict) else self.job.judge(document, ending.code)
        self._end(FAILED if reason else DONE, reason)

    def _end(self, state: str, reason: str) -> None:
        self.reason, self.doing = reason, ""
        self.state = state  # Last: the main thread then knows that all is said.


def run(
    jobs: Sequence[Job], tell: Callable[[Sequence[Member]], None], changed: Callable[[Sequence[Member]], None]
) -> list[Member]:
    """Run all jobs to their end, and return the members with their last states.

    `tell` is called often; `changed` after the state of a device has changed. Both run in the caller's thread. After
    Ctrl-C the processes are stopped in order, and KeyboardInterrupt is raised again at the end.
    """
    members = [Member(job, Watcher(job.device)) for job in jobs]
    slots = {job.device.slot: threading.Lock() for job in jobs}
    threads = [
        threading.Thread(target=member.work, args=(slots[member.job.device.slot],), name=member.job.device.name)
        for member in members
    ]
    for member, thread in zip(members, threads, strict=True):
        member.watcher.start()
        thread.start()
    states: list[str] = []

    def look() -> None:
        nonlocal states
        for member in members:
            member.look()
        now = [member.state for member in members]
        if now != states:
            states = now
            changed(members)
        tell(members)

    try:
        while any(thread.is_alive() for thread in threads):
            look()
            time.sleep(TICK_S)
    except BaseException as error:
        _stop_all(members, threads, look, INTERRUPTED if isinstance(error, KeyboardInterrupt) else "the fleet stopped")
        raise
    finally:
        for member in members:
            member.watcher.end()
        look()
    return members


def _stop_all(
    members: Sequence[Member], threads: Sequence[threading.Thread], look: Callable[[], None], why: str
) -> None:
    for member in members:
        member.stop(why)
    try:
        while any(thread.is_alive() for thread in threads):
            look()
            time.sleep(TICK_S)
    except BaseException:  # A second Ctrl-C: nobody waits any longer.
        for member in members:
            member.kill()
        for thread in threads:
            thread.join()
        raise


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def read_document(path: Path) -> dict[str, Any]:
    """The JSON document that a command printed; empty if there is none."""
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def last_line(path: Path) -> str:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1][-300:] if lines else ""

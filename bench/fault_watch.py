"""Starts commands on a target, waits for their progress, kills one of their processes, and looks what is left over.

Progress is seen from outside: files that a command writes, and the processor time of its runners.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from helpers.ssh_server import SshServer

ROOT = Path(__file__).resolve().parent.parent
POLL_S = 0.003
MOST_S = 300.0  # A command that takes longer hangs.
GONE_S = 10.0  # The processes of a command must be gone this long after its end.
CONNECTION, RUNNER, HOST = "connection", "runner", "host"

#: What a command has done, in words, once the moment of the kill has come; "" before. Gets the command's process.
Moment = Callable[[int], str]


@dataclass
class Kill:
    """One kill: what was done before it, what the command said, what was kept and what continuing gave."""

    command: str
    victim: str
    when: str
    before: str = ""
    said: str = ""
    code: int | None = None
    ended_after_s: float = 0.0
    kept: str = ""
    continued: str = ""
    #: What is wrong: something lost, left over or not equal. Empty if nothing is.
    faults: list[str] = field(default_factory=list)
    killed_ns: int = 0

    def to_json(self) -> dict[str, object]:
        return {name: value for name, value in asdict(self).items() if name not in ("command", "killed_ns")}

    def expect(self, holds: bool, fault: str) -> None:
        if not holds:
            self.faults.append(fault)


@dataclass(frozen=True)
class Ended:
    """How a command ended that nobody disturbed."""

    code: int
    out: str
    error: str


class Bed:
    """A server, and commands that use it as their target."""

    def __init__(self, server: SshServer, folder: Path) -> None:
        self.server, self.folder = server, folder
        self.kills: list[Kill] = []
        self.environment = {
            **os.environ,
            "HANDHELD_SSH": server.client,
            "HANDHELD_CACHE": str(folder / "cache"),
            "PYTHONPATH": str(ROOT / "src"),
            "COLUMNS": "80",
        }

    # ── commands ──────────────────────────────────────────────────────────────────────────────

    def _start(self, words: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
        folder.mkdir(parents=True, exist_ok=True)
        # A check of the driver takes as long as all the rest of a command. One command does it.
        check = "" if words[0] == "doctor" else "off"
        with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as error:
            return subprocess.Popen(
                [sys.executable, "-m", "handheld", *words],
                cwd=folder,
                env={**self.environment, "HANDHELD_DRIVER_CHECK": check},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=error,
                start_new_session=True,
            )

    def run(self, *words: str, folder: Path) -> Ended:
        """Run a command undisturbed, also one without a target."""
        process = self._start(words, folder)
        try:
            process.wait(MOST_S)
        finally:
            _end(process)
        return Ended(process.returncode, (folder / "stdout").read_text(), (folder / "stderr").read_text())

    def finish(self, *words: str, folder: Path) -> Ended:
        """Run a command on the target undisturbed. It must succeed."""
        ended = self.run(*words, "--on", self.server.name, folder=folder)
        if ended.code:
            raise RuntimeError(f"{' '.join(words)} ended with {ended.code}: {ended.error}")
        return ended

    def package(self, *words: str, folder: Path) -> None:
        """Make a step file. It is opened sooner than a model."""
        ended = self.run("package", *words, folder=folder)
        if ended.code:
            raise RuntimeError(ended.error)

    def disturb(self, *words: str, folder: Path, victim: str, when: str, moment: Moment) -> Kill:
        """Run a command on the target, and kill the victim when the moment has come."""
        kill = Kill(" ".join(words[:2]) if words[0] == "study" else words[0], victim, when)
        self.kills.append(kill)
        process = self._start((*words, "--on", self.server.name), folder)
        try:
            family = self._wait_and_kill(process, kill, moment)
            begun = time.monotonic()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(MOST_S)
            kill.expect(process.returncode is not None, f"it hung for {MOST_S:.0f} s")
            kill.ended_after_s = round(time.monotonic() - begun, 2)
        finally:
            _end(process)
        kill.code = process.returncode
        said = (folder / "stderr").read_text(errors="replace")
        kill.said = self.words_of(said)[-600:]
        kill.expect("Traceback" not in said, "it showed a traceback")
        self._look_for_the_rest(kill, family)
        return kill

    def _wait_and_kill(self, process: subprocess.Popen[bytes], kill: Kill, moment: Moment) -> list[psutil.Process]:
        """The processes of the command at the time of the kill."""
        while process.poll() is None:
            if before := moment(process.pid):
                family = family_of(process.pid)
                victims = self._victims(process.pid, kill.victim, family)
                kill.before, kill.killed_ns = before, time.monotonic_ns()
                if _kill(victims):
                    return [*family, *self.runners()]
            time.sleep(POLL_S)
        kill.faults.append(f"the kill came too late: the command had ended with {process.returncode}")
        return []

    def _victims(self, host: int, victim: str, family: list[psutil.Process]) -> list[psutil.Process]:
        if victim == HOST:
            return [psutil.Process(host)]
        if victim == CONNECTION:  # A cable carries all connections of a command.
            return [process for process in family if _name(process) == "ssh"]
        return sorted(self.runners(), key=used_s)[-1:]  # The busiest computes; another one may read sensors.

    def words_of(self, text: str) -> str:
        """What a command printed, in one line, with another name of the target."""
        return " ".join(text.split()).replace(self.server.name, "ssh:me@box")

    # ── processes ─────────────────────────────────────────────────────────────────────────────

    def runners(self) -> list[psutil.Process]:
        """The runners on the target."""
        home = str(self.server.home / "handheld-runner" / "runner-")
        return [process for process in psutil.process_iter(["exe"]) if str(process.info["exe"] or "").startswith(home)]

    def _look_for_the_rest(self, kill: Kill, family: list[psutil.Process]) -> None:
        """A command, its connections, helpers and runners must be gone soon after its end."""
        end = time.monotonic() + GONE_S
        while time.monotonic() < end:
            left = [process for process in family if _alive(process)] + self.runners()
            if not left:
                return
            time.sleep(0.05)
        kill.faults.append(f"left over: {', '.join(sorted({_name(process) for process in left}))}")
        _kill(left)


def used_s(process: psutil.Process) -> float:
    """The processor time of a process; 0 if it has ended."""
    with contextlib.suppress(psutil.Error):
        times = process.cpu_times()
        return float(times.user + times.system)
    return 0.0


def family_of(host: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(host).children(recursive=True)
    return []


def _name(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return process.name()
    return ""


def _alive(process: psutil.Process) -> bool:
    """A zombie whose parent was killed is only waiting for its new parent."""
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _kill(processes: list[psutil.Process]) -> bool:
    """Whether there was something to kill."""
    killed = False
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()
            killed = True
    return killed


def _end(process: subprocess.Popen[bytes]) -> None:
    """Leave nothing of a command that hung, or that this script no longer waits for."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

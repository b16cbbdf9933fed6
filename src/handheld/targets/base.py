"""`Target`: a place where a runner runs, and `Running`: a runner there, with its input and output on this machine.

A target knows how to start its runner. What is said to the runner is none of its business (backends/runner).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from mmap import mmap
from typing import Any, BinaryIO

from handheld.child import SILENCE_S, Ending
from handheld.errors import DeviceError

TAIL = 4000  # the most characters of the messages of a process that are kept


class Running:
    """A started process. `stdin` and `stdout` are its unbuffered streams; its messages for people are kept.

    It has its own process group, so that Ctrl-C in a terminal does not end it. It ends when `stdin` is closed, also
    because this process was killed.
    """

    stdin: BinaryIO
    stdout: BinaryIO

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None, shared_file: int | None = None
    ) -> None:
        self.command = tuple(command)
        #: Memory that the process has mapped too, if it got a file for it.
        self.shared = None if shared_file is None else mmap(shared_file, 0)
        self._messages = tempfile.TemporaryFile()  # noqa: SIM115  `close` closes it
        try:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._messages,
                bufsize=0,
                start_new_session=True,
                pass_fds=() if shared_file is None else (shared_file,),
                env=None if environment is None else {**os.environ, **environment},
            )
        except BaseException:
            self._close_files()
            raise
        assert self._process.stdin is not None and self._process.stdout is not None
        self.stdin, self.stdout = self._process.stdin, self._process.stdout  # type: ignore[assignment]
        self._ending: Ending | None = None  # known once it is closed
        self._said = ""

    @property
    def pid(self) -> int:
        return self._process.pid

    def messages(self) -> str:
        """The end of what the process wrote to its standard error."""
        if self._ending is None:
            end = os.fstat(self._messages.fileno()).st_size
            self._said = os.pread(self._messages.fileno(), TAIL, max(0, end - TAIL)).decode(errors="replace").strip()
        return self._said

    def ending(self, patience: float = 5.0) -> Ending:
        """How the process ended. Waits up to `patience` seconds for it; the code is None if it still runs."""
        if self._ending is not None:
            return self._ending
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience)
        return Ending(self._process.returncode, (self.messages().splitlines() or [""])[-1].strip())

    def close(self, patience: float = 5.0) -> None:
        """Closes its input, waits up to `patience` seconds for its end, then kills it."""
        if self._ending is not None:
            return
        with contextlib.suppress(OSError):
            self.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience)
        with contextlib.suppress(ProcessLookupError, PermissionError):  # The group may be empty.
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._ending = self.ending()
        self.stdout.close()
        self._close_files()

    def _close_files(self) -> None:
        self._messages.close()
        if self.shared is not None:
            self.shared.close()

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class Contents:
    """What Handheld keeps on a target: its folder, and the files in it with their sizes."""

    folder: str
    files: dict[str, int] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return sum(self.files.values())


class Target(ABC):
    """A place where a runner runs. Every problem is a DeviceError: one sentence that says what to do."""

    #: The name, without an OpenCL device: `runner`, `ssh:me@box`, `adb:SERIAL`.
    name: str

    @abstractmethod
    def platform(self) -> str:
        """The platform for which its runner is built: `linux-x86_64`, `linux-arm64` or `android-arm64`."""

    @abstractmethod
    def start(self, *arguments: str) -> Running:
        """Starts the runner: `runner ARGUMENTS --folder DIR`. Puts it there first if it is not there yet."""

    @abstractmethod
    def contents(self) -> Contents:
        """What is in the folder of the target."""

    @abstractmethod
    def clean(self) -> Contents:
        """Removes the folder of the target, and returns what was in it."""

    def more_libraries(self) -> bool:
        """Makes the next start look for OpenCL in more folders; False if there are no more."""
        return False

    def ask(self, *arguments: str, timeout: float = SILENCE_S, codes: Sequence[int] = (0,)) -> bytes:
        """Runs the runner to its end and returns what it printed. Raises DeviceError unless it exits with one of
        `codes` in time."""
        with self.start(*arguments) as running:
            running.stdin.close()
            out = _until_end(running, timeout)
            if out is None:
                raise DeviceError(
                    f"{self.name}: `handheld-runner {arguments[0]}` did not end within {timeout:.0f} s. Its OpenCL "
                    "driver may hang. Try: restart the device, then again"
                )
            if running.ending().code not in codes:
                raise DeviceError(f"{self.name}: {self.why(running)}")
        return out

    def info(self) -> dict[str, Any]:
        """The runner's description of the target: its version, the system and the OpenCL devices (docs/runner.md)."""
        while True:
            text = self.ask("info", codes=(0, 1))  # It exits with 1 if there is no OpenCL device.
            try:
                described = json.loads(text)
            except ValueError:
                described = None
            if not isinstance(described, dict):
                raise DeviceError(f"{self.name}: the runner's description cannot be read: {text[:60]!r}")
            if described.get("devices") or not self.more_libraries():
                return described

    def why(self, running: Running) -> str:
        """Why a runner has ended or does not answer: a clause without a full stop, then what to try."""
        return ended(running.ending(), "the runner")

    def crashed(self, running: Running) -> bool:
        """Whether a runner that does not answer has ended by itself, and the connection to it did not."""
        return True


def ended(ending: Ending, who: str) -> str:
    """How a process ended, with what to try. A shell reports the signal of a program as 128 and its number."""
    code = ending.code
    if code is not None and 128 < code < 160:
        code = 128 - code
    if code == -signal.SIGKILL:
        return f"{who} was killed (SIGKILL), as a system does when memory runs out. Try: again, or a smaller batch"
    return Ending(code, ending.last).describe(who)


def _until_end(running: Running, timeout: float) -> bytes | None:
    """What a process prints until it ends; None if it had to be killed."""
    late = threading.Event()

    def kill() -> None:
        late.set()
        os.killpg(running.pid, signal.SIGKILL)

    # A timer that kills is simpler than reading without blocking, and the result is the same.
    timer = threading.Timer(timeout, kill)
    timer.daemon = True
    timer.start()
    try:
        out = running.stdout.read()
    finally:
        timer.cancel()
    return None if late.is_set() else out

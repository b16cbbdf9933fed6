"""Runs a Python module in a separate process, so that a crash or a hang affects only that process.

The two sides send each other JSON objects, one per line:

    with Child(python_module("handheld.measure.worker")) as child:
        child.send({"do": "open", "device": "opencl:0"})
        answer = child.receive(timeout=8.0)      # None: the child has ended, and child.ending() says how

    parent = Parent()                            # must come first in the main() of that module
    while (message := parent.receive()) is not None:
        with parent.reporting():                 # stages of this work, such as `building 3 of 12`, reach the parent
            answer = answer_to(message)
        parent.send(answer)

A time limit of `receive` is on silence: every stage that the child reports begins it anew, and is reported here.

The child has its own process group. Ctrl-C in the terminal reaches only the parent, and the child is killed together
with everything that it has started. The child ends when its parent ends, however that happens. Its standard output
carries only messages. Output of drivers goes to its standard error, whose last line becomes part of `Ending`.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from handheld.progress import report, reporting

#: How long a child may report nothing before it counts as hung. The slowest compiler seen took 50 s for one kernel, and
#: a program has several.
SILENCE_S = 600.0
TICK_S = 0.25  # time between two checks whether the child is alive
ENDING_S = 5.0  # how long to wait for the exit code after the last message
TAIL = 300  # the most characters of the child's last line of output
_PR_SET_PDEATHSIG = 1  # a constant of Linux
_PROGRESS = "progress"  # the key of a message with a stage
_REQUESTED = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # sent by someone, not caused by a fault

Message = dict[str, Any]


def python_module(name: str) -> tuple[str, ...]:
    """The command that runs a module with this interpreter. Warnings are silent unless PYTHONWARNINGS is set."""
    silent = () if os.environ.get("PYTHONWARNINGS") else ("-W", "ignore")
    return (sys.executable, *silent, "-m", name)


@dataclass(frozen=True)
class Ending:
    """How a child ended: its exit code and its last line of output. The code is negative for a signal, and None while
    the child runs."""

    code: int | None
    last: str = ""

    @property
    def crashed(self) -> bool:
        return self.code is not None and self.code < 0

    def describe(self, who: str = "the process") -> str:
        if self.code is None:
            how = "does not answer"
        elif self.code >= 0:
            how = f"ended (code {self.code})"
        else:
            number = -self.code
            name = f", {signal.Signals(number).name}" if number in set(signal.Signals) else ""
            how = f"{'was ended' if number in _REQUESTED else 'crashed'} (signal {number}{name})"
        return f"{who} {how}: {self.last}".rstrip(": ")


class Child:
    """The parent's side. The process starts at once and is killed by `close`; OSError if it cannot start.

    With `share_path`, the child finds every module that this process finds, such as a user's sensor class.
    """

    def __init__(self, command: Sequence[str], *, share_path: bool = False) -> None:
        path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))} if share_path else {}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  `close` closes it
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,
                env={**os.environ, **path},
            )
        except BaseException:
            self._errors.close()
            raise
        assert self._process.stdin is not None and self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self._messages = _Messages(self._stdout.fileno())
        self._ending: Ending | None = None  # known once it is closed
        self.send({"parent": os.getpid()})

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: Message) -> None:
        """Send a message. If the child has ended, nothing happens here, and `receive` returns None."""
        with contextlib.suppress(BrokenPipeError):
            self._stdin.write(_line(message))
            self._stdin.flush()

    def end_of_messages(self) -> None:
        """Close the child's standard input, so that the child knows that no more messages will come."""
        with contextlib.suppress(OSError):
            self._stdin.close()

    def receive(self, timeout: float) -> Message | None:
        """The next message, or None if the child has ended. Raises TimeoutError if the child is silent for so long.

        A stage that the child reports is passed to the listener of this process (progress.py), and the time begins
        anew. Time in which this process itself did not run is not counted, so that a child is not late after the
        machine was suspended."""
        waited = 0.0
        while waited < timeout and self._ending is None:
            begun = time.monotonic()
            dead = self._process.poll() is not None  # Checked first, because a last message may still be in the pipe.
            try:
                message = self._messages.next(0.0 if dead else min(TICK_S, timeout))
            except TimeoutError:
                if dead:  # A process that the child had started holds the pipe open.
                    return None
                waited += min(time.monotonic() - begun, 2 * TICK_S)
                continue
            if message is None or _PROGRESS not in message:
                return message
            report(*message[_PROGRESS])
            waited = 0.0
        if self._ending is not None:
            return None
        raise TimeoutError

    def ending(self, patience: float = ENDING_S) -> Ending:
        """How the child ended. Waits up to `patience` seconds for it."""
        if self._ending is not None:
            return self._ending
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience)
        return Ending(self._process.returncode, self._last_line())

    def _last_line(self) -> str:
        # A plain read would move the position at which the child writes.
        end = os.fstat(self._errors.fileno()).st_size
        text = os.pread(self._errors.fileno(), 4 * TAIL, max(0, end - 4 * TAIL)).decode(errors="replace")
        return (text.strip().splitlines() or [""])[-1][-TAIL:]

    def close(self, patience: float = 0.0) -> None:
        """Wait up to `patience` seconds for the child to end, then kill it and the rest of its process group."""
        if self._ending is not None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience)
        with contextlib.suppress(ProcessLookupError, PermissionError):  # The group may be empty.
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._ending = Ending(self._process.returncode, self._last_line())
        self.end_of_messages()
        self._stdout.close()
        self._errors.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Parent:
    """The child's side: the process that started this one.

    Without `on_death`, this process is killed when its parent ends, even if a driver hangs. With it, `on_death` is
    called instead, in the main thread. If the parent has already ended, the constructor exits this process."""

    def __init__(self, on_death: Callable[[], None] | None = None) -> None:
        self._out = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)  # Drivers also write to the standard output; send that to the standard error.
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent handles Ctrl-C.
        self._messages = _Messages(0)
        first = self._messages.next(None)
        self.pid: int = first["parent"] if first else 0
        self._end_with_it(on_death)
        if not self.alive:
            raise SystemExit(0)

    def _end_with_it(self, on_death: Callable[[], None] | None) -> None:
        number = signal.SIGKILL
        if on_death is not None:
            number = signal.SIGUSR1

            def heard(*_: object) -> None:
                # The signal is also sent when only the thread that started this process has ended.
                if not self.alive:
                    on_death()

            signal.signal(number, heard)
        with contextlib.suppress(OSError, AttributeError):  # Only Linux has this call.
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)

    @property
    def alive(self) -> bool:
        return os.getppid() == self.pid

    def receive(self, timeout: float | None = None) -> Message | None:
        """The next message, or None if no more will come. Raises TimeoutError if none comes in time."""
        return self._messages.next(timeout)

    def reporting(self) -> AbstractContextManager[None]:
        """Stages of the work inside are reported to the parent. Builds report them from several threads."""
        return reporting(lambda stage, done, total: self.send({_PROGRESS: (stage, done, total)}))

    def send(self, message: Message) -> None:
        """Send a message. Nothing happens if the parent has ended."""
        with contextlib.suppress(OSError):
            self._out.write(_line(message))
            self._out.flush()


class _Messages:
    """The messages that arrive at a file descriptor. A line that is not a JSON object is ignored: a driver printed it,
    or it was truncated when its writer was killed."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._rest = descriptor, b""
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    def next(self, timeout: float | None) -> Message | None:
        while True:
            line, end, rest = self._rest.partition(b"\n")
            if end:
                self._rest = rest
                with contextlib.suppress(ValueError):
                    message = json.loads(line)
                    if isinstance(message, dict):
                        return message
                continue
            if not self._poll.poll(None if timeout is None else 1000 * timeout):
                raise TimeoutError
            data = os.read(self._descriptor, 1 << 16)
            if not data:
                return None
            self._rest += data


def _line(message: Message) -> bytes:
    return json.dumps(message).encode() + b"\n"

"""The link to a runner: requests on its stdin, answers from its stdout.

    request   u32 op       u32 seq   u64 length   payload
    answer    u32 status   u32 seq   u64 length   payload     status 0: answer, 1: error, 2: progress

Answers come in the order of the requests. A thread reads them, so that the runner never waits for this process. Ops
without an answer (WRITE, RUN) report an error later: it is raised by the next request.
"""

from __future__ import annotations

import contextlib
import io
import os
import struct
import threading
from collections import deque
from enum import IntEnum
from mmap import mmap
from typing import TYPE_CHECKING, cast

from handheld.errors import BuildError, DeviceError, HandheldError, OutOfMemory, TargetLost
from handheld.progress import Progress
from handheld.units import count

try:
    import fcntl
except ImportError:  # Only Unix has it.
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from handheld.targets.base import Running, Target

PROTOCOL = 1
HEAD = struct.Struct("<IIQ")
#: A longer answer is damage, except for a read, whose length is known.
MOST_BYTES = 256 << 20
#: The bytes that a pipe may hold. A batch then passes in fewer pieces.
PIPE_BYTES = 1 << 20
#: A payload of at most this many bytes is joined to its head, because two writes cost more than a copy.
JOINED_BYTES = 1 << 16

Data = bytes | bytearray | memoryview


class Op(IntEnum):
    """The requests that a runner understands."""

    HELLO = 1
    OPEN = 2
    PLAN = 3
    CLOSE = 4
    END = 5
    WRITE = 10
    READ = 11
    RUN = 12
    RUN_NODE = 13
    RUN_REPEATED = 14
    FINISH = 15
    FILL = 16
    WRITE_SHARED = 17
    RECORD = 20
    RECORDED = 21
    MARK = 22
    CLOCK = 23
    STEPS = 24
    TIME = 25
    INPUTS = 26
    FILES = 30
    SAMPLE = 31
    SAMPLES = 32
    SAMPLE_STOP = 33
    SYSTEM = 34


class Status(IntEnum):
    ANSWER = 0
    ERROR = 1
    PROGRESS = 2


class Answer:
    """An answer that is under way. With `into`, the payload is read into this memory."""

    def __init__(self, link: Link, into: memoryview | None = None, progress: Progress | None = None) -> None:
        self.into, self.progress = into, progress
        self.seq = 0
        self.data: Data = b""
        self.problem: str | None = None
        self._lost = False
        self._link = link
        self._done = threading.Lock()
        self._done.acquire()

    def set(self) -> None:
        """Says that the answer is there. The reading thread calls it once."""
        self._done.release()

    def lose(self) -> None:
        """Says that no answer will come."""
        self._lost = True
        self._done.release()

    @property
    def is_there(self) -> bool:
        return not self._done.locked()

    def wait(self) -> Data:
        """Waits for the answer and returns its payload. Raises DeviceError, or TargetLost if none will come."""
        with self._done:
            pass
        if self.problem is not None:
            raise self._link.error(self.problem)
        if self._lost:
            raise self._link.loss()
        return self.data


class Link:
    """A started runner. All requests may come from several threads."""

    def __init__(self, target: Target) -> None:
        self.target = target
        #: The steps of the plan that are known to be done, for the message if the runner is lost.
        self.steps = 0
        #: Why the runner no longer answers, or None.
        self.lost: str | None = None
        self._crashed = False  # whether the runner itself has ended, not the connection
        self._ended = False  # whether it was this process that ended the runner
        self._problem: str | None = None  # of a request that has no answer
        self._seq = self._answered = 0
        self._waiting: deque[Answer] = deque()
        self._lock = threading.Lock()
        self._running: Running = target.start("serve")
        _widen_pipes(self._running)
        self._reader = threading.Thread(target=self._read_all, name=f"answers of {target.name}", daemon=True)
        self._reader.start()

    # ── requests ──────────────────────────────────────────────────────────────────────────────

    def send(self, op: Op, *payload: Data) -> int:
        """Sends a request that has no answer, and returns its number."""
        if self._problem is not None:
            raise self.error(self._problem)
        return self._write(op, payload, None)

    def ask(self, op: Op, *payload: Data, into: memoryview | None = None, progress: Progress | None = None) -> Answer:
        """Sends a request and returns its answer, which is under way."""
        answer = Answer(self, into, progress)
        self._write(op, payload, answer)
        return answer

    def get(self, op: Op, *payload: Data) -> Data:
        """Sends a request and waits for its answer."""
        return self.ask(op, *payload).wait()

    def forget(self) -> None:
        """Forgets the error of an earlier plan. The next plan begins anew."""
        self._problem = None

    def is_handled(self, seq: int) -> bool:
        """Whether the runner is known to be done with a request: a later one was answered."""
        return (self._answered - seq) & 0xFFFFFFFF < 1 << 31

    @property
    def shared(self) -> mmap | None:
        """The memory that this process and the runner have mapped, or None."""
        return self._running.shared

    def _write(self, op: Op, payload: tuple[Data, ...], answer: Answer | None) -> int:
        with self._lock:
            if self.lost is not None:
                raise self.loss()
            self._seq = (self._seq + 1) & 0xFFFFFFFF
            size = sum(len(part) for part in payload)
            head = HEAD.pack(op, self._seq, size)
            parts: list[Data] = [b"".join((head, *payload))] if size <= JOINED_BYTES else [head, *payload]
            if answer is not None:
                answer.seq = self._seq
                self._waiting.append(answer)
            try:
                for part in parts:
                    _write_all(self._running.stdin, part)
            except (OSError, ValueError):  # The runner has ended. The reading thread finds out why.
                pass
            except BaseException:
                # Nobody knows how much of the request was written, so nothing that follows could be understood.
                self._lose("interrupted inside a request. Try: again")
                raise
            else:
                if answer is None or self.lost is None:
                    return self._seq
        self._reader.join()
        raise self.loss()

    def loss(self) -> TargetLost:
        """Returns the error for a runner that no longer answers."""
        return TargetLost(self.lost or f"{self.target.name} was lost", self._crashed)

    def error(self, problem: str) -> DeviceError:
        """Returns the error for a sentence of the runner."""
        text = f"{self.target.name}: {problem}"
        if "could not build program" in problem or "cannot create a texture" in problem:
            return BuildError(text)
        return DeviceError(text)

    def out_of_memory(self, problem: DeviceError) -> HandheldError:
        """Returns OutOfMemory if the device refused the memory of a plan, else the same error."""
        return OutOfMemory(str(problem)) if " refused " in str(problem) and " pieces" in str(problem) else problem

    # ── answers ───────────────────────────────────────────────────────────────────────────────

    def _read_all(self) -> None:
        try:
            with cast(io.BufferedReader, io.BufferedReader(self._running.stdout, JOINED_BYTES)) as stream:
                while self._read_one(stream):
                    pass
            if self._ended:
                why = f"{self.target.name} was closed"
            else:
                why = self.target.why(self._running)
                self._crashed = self.target.crashed(self._running)
        except Exception as error:  # It is raised where the answer is awaited.
            why = f"its answers cannot be read ({error})"
        self._lose(why)

    def _read_one(self, stream: io.BufferedReader) -> bool:
        head = stream.read(HEAD.size)
        if len(head) < HEAD.size:
            return False
        status, seq, length = HEAD.unpack(head)
        first = self._waiting[0] if self._waiting else None
        mine = first is not None and first.seq == seq
        if mine and first is not None and first.into is not None and status == Status.ANSWER:
            return self._read_into(stream, first, length)
        if length > MOST_BYTES or (status == Status.ANSWER and not mine):
            raise ValueError(f"answer {seq} of {length} bytes is not one that was asked for")
        data = stream.read(length)
        if len(data) < length:
            return False
        if status == Status.PROGRESS:
            if mine and first is not None:
                _report(first.progress, data)
        elif mine:
            self._finish(data, status)
        else:
            self._problem = self._problem or data.decode(errors="replace")
        return True

    def _read_into(self, stream: io.BufferedReader, answer: Answer, length: int) -> bool:
        view = answer.into
        if view is None or length != len(view):
            raise ValueError(f"answer {answer.seq} has {length} bytes instead of {0 if view is None else len(view)}")
        done = 0
        while done < length:
            got = stream.readinto(view[done:])
            if not got:
                return False
            done += got
        self._finish(view, Status.ANSWER)
        return True

    def _finish(self, data: Data, status: int) -> None:
        answer = self._waiting.popleft()
        if status == Status.ERROR:
            answer.problem = bytes(data).decode(errors="replace")
        else:
            answer.data = data
        self._answered = answer.seq
        answer.set()

    def _lose(self, why: str) -> None:
        """Nothing more will be answered."""
        if self.lost is None:
            after = f" after {count(self.steps, 'step')}" if self.steps else ""
            self.lost = f"{self.target.name} was lost{after}: {why}"
        while self._waiting:
            answer = self._waiting.popleft()
            answer.lose()

    # ── ending ────────────────────────────────────────────────────────────────────────────────

    @property
    def pid(self) -> int:
        """The process on this machine: the runner, or the program that reaches it."""
        return self._running.pid

    def close(self) -> None:
        """Ends the runner."""
        self._ended = True
        with contextlib.suppress(DeviceError):
            if self.lost is None:
                self.get(Op.END)
        self._running.close()


def _write_all(stream: object, data: Data) -> None:
    view, number = memoryview(data).cast("B"), stream.fileno()  # type: ignore[attr-defined]
    while view:
        view = view[os.write(number, view) :]


def _widen_pipes(running: Running) -> None:
    set_size = getattr(fcntl, "F_SETPIPE_SZ", 1031)
    for stream in (running.stdin, running.stdout):
        with contextlib.suppress(OSError, AttributeError):  # A limit of the system, or another system.
            fcntl.fcntl(stream.fileno(), set_size, PIPE_BYTES)


def _report(to: Progress | None, data: bytes) -> None:
    """Passes `building 3 12` on."""
    words = data.decode(errors="replace").split()
    if to is not None and len(words) == 3 and words[1].isdigit() and words[2].isdigit():
        to(words[0], int(words[1]), int(words[2]))

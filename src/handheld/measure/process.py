"""The tuner's worker process (worker.py): asked with a time limit, and restarted after it has died."""

from __future__ import annotations

from collections.abc import Sequence

from handheld.child import Child, Message, python_module

COMMAND = python_module("handheld.measure.worker")


class WorkerFailed(Exception):
    """The process died; the message says how."""


class WorkerProcess:
    """Starts the process at the first request, and again after it has died."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self.command = tuple(command)
        self.starts = 0
        self._child: Child | None = None

    @property
    def running(self) -> int:
        """A number of the process that is running now; 0 if there is none."""
        return self.starts if self._child is not None else 0

    def ask(self, message: Message, timeout: float) -> Message:
        """The answer of the process. Raises WorkerFailed if it crashes, or if it is silent too long and is killed."""
        if self._child is None:
            self.starts += 1
            self._child = Child(self.command)
        self._child.send(message)
        try:
            answer = self._child.receive(timeout)
        except TimeoutError:
            self.close()
            raise WorkerFailed(f"no answer within {timeout:.0f} s") from None
        if answer is None:
            ending = self._child.ending()
            self.close()
            raise WorkerFailed(ending.describe())
        return answer

    def close(self) -> None:
        """End the process, even if it is busy."""
        if self._child is not None:
            self._child.close()
            self._child = None

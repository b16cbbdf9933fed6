"""The tuner's worker process (worker.py): asked with a time limit, and started again after it has died."""

from __future__ import annotations

from collections.abc import Sequence

from handheld.child import Child, Message, python_module

COMMAND = python_module("handheld.measure.worker")


class WorkerFailed(Exception):
    """The process is gone; the text says how."""


class WorkerProcess:
    """Started when it is first asked, and again after it has died."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self.command = tuple(command)
        self.starts = 0
        self._child: Child | None = None

    @property
    def running(self) -> int:
        """The number of the process that answers now; 0 if none does."""
        return self.starts if self._child is not None else 0

    def ask(self, message: Message, timeout: float) -> Message:
        """Its answer. One that crashes, or is silent for too long, is ended: WorkerFailed."""
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
        """Ends the process, whatever it is doing."""
        if self._child is not None:
            self._child.close()
            self._child = None

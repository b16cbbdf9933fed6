"""Turns Ctrl-C and SIGTERM into a request: the current step is finished, then training stops."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from handheld.run.history import History


class Interrupted(KeyboardInterrupt):
    """Training was stopped by Ctrl-C or SIGTERM.

    The message says where. `history` is what was done so far, and `signal` says which signal it was.
    """

    def __init__(self, message: str, history: History, signal: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.history, self.signal = history, int(signal)


class Interrupt:
    """While it is open, the first Ctrl-C or SIGTERM only sets a flag. The second one interrupts at once.

    A third signal is ignored, so that the clean-up can finish. A step is not interrupted half-way,
    because that would leave only some of the weights updated.
    """

    def __init__(self) -> None:
        #: The signal that arrived, or 0.
        self.signal = 0
        self._now = False
        self._before: dict[int, Any] = {}

    def __call__(self) -> bool:
        self.hold()
        return self.signal != 0

    def hold(self) -> None:
        """Install the handlers again. A compiler inside a driver (LLVM in PoCL) replaces them with its own when it
        first builds a kernel, and those end the process at once."""
        for number in self._before:
            signal.signal(number, self._handle)

    @property
    def word(self) -> str:
        return "terminated" if self.signal == signal.SIGTERM else "interrupted"

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._now:
            return
        self._now = self.signal != 0
        self.signal = self.signal or number
        if self._now:
            raise KeyboardInterrupt

    def __enter__(self) -> Interrupt:
        # Only the main thread receives signals, so another thread has nothing to catch.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        own: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
        for number, before in self._before.items():
            signal.signal(number, before or own[number])


def ignore_interrupts() -> None:
    """Ignore Ctrl-C from now on: the command is ending, and a further one would only interrupt its clean-up."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)

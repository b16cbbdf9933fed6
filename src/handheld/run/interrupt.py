"""Ctrl-C and SIGTERM as a request: the step under way is finished, then whoever asks is told to
stop."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from handheld.run.history import History


class Interrupted(KeyboardInterrupt):
    """Training was stopped by Ctrl-C or SIGTERM; the text says where, `history` what was done, and
    `signal` which of the two it was."""

    def __init__(self, message: str, history: History, signal: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.history, self.signal = history, int(signal)


class Interrupt:
    """While it is open the first Ctrl-C or SIGTERM only sets a flag; the second one means now, and
    a third does not disturb the end.

    A step half enqueued would leave half of the weights updated, so none is cut short.
    """

    def __init__(self) -> None:
        #: the signal that asked, 0 until one did
        self.signal = 0
        self._now = False
        self._before: dict[int, Any] = {}

    def __call__(self) -> bool:
        return self.signal != 0

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
        # signals reach the main thread only; elsewhere there is nothing to catch
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

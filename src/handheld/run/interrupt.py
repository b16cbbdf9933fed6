"""Ctrl-C as a request: the step under way is finished, then whoever asks is told to stop."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from handheld.run.history import History


class Interrupted(KeyboardInterrupt):
    """Training was stopped by Ctrl-C; the text says where, and `history` what was done."""

    def __init__(self, message: str, history: History) -> None:
        super().__init__(message)
        self.history = history


class Interrupt:
    """While it is open the first Ctrl-C only sets a flag; the second one means now.

    A step half enqueued would leave half of the weights updated, so none is cut short.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: Any = None
        self._installed = False

    def __call__(self) -> bool:
        return self.asked

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def __enter__(self) -> Interrupt:
        # signals reach the main thread only; elsewhere there is nothing to catch
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._handle)
            self._installed = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, self._before or signal.default_int_handler)

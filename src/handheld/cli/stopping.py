"""Ctrl-C and SIGTERM: an answer while a driver call cannot be interrupted, and one end for both."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator

from handheld.cli import output

PATIENCE_S = 1.0


def answer() -> None:
    """Start to watch for Ctrl-C: if the process still runs a moment later, print a note to stderr.

    A thread prints it, because the main thread runs no signal handler while it is inside a driver
    (for example during a build, or while the device finishes its queue).
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(reading,), name="stopping", daemon=True).start()


def _watch(reading: int) -> None:
    while os.read(reading, 1)[0] not in (signal.SIGINT, signal.SIGTERM):
        pass
    time.sleep(PATIENCE_S)
    output.warn("stopping after the work in progress")


@contextlib.contextmanager
def terminated() -> Iterator[None]:
    """SIGTERM ends the work inside as Ctrl-C does, so that no process is left behind and results are kept."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

"""An answer to Ctrl-C while a driver cannot be interrupted: it builds, or the device finishes what
it was given."""

from __future__ import annotations

import os
import signal
import threading
import time

from handheld.cli import output

PATIENCE_S = 1.0


def answer() -> None:
    """From now on the first Ctrl-C that has not ended the process after a moment is answered on
    stderr, also while the main thread is inside of a driver and runs no handler."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(reading,), name="stopping", daemon=True).start()


def _watch(reading: int) -> None:
    while os.read(reading, 1)[0] not in (signal.SIGINT, signal.SIGTERM):
        pass
    time.sleep(PATIENCE_S)
    output.warn("stopping; what has begun is finished first")

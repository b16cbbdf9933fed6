"""Kills processes from a thread while a test waits for a command."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import psutil


def killing(when: Callable[[], bool], whom: Callable[[psutil.Process], bool]) -> threading.Thread:
    """Kills every process that `whom` chooses, as soon as `when` is true."""

    def wait() -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end and not when():
            time.sleep(0.002)
        for process in psutil.process_iter(["name", "exe", "cmdline"]):
            if whom(process):
                process.kill()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread

"""The parent's side of worker.py: asks, waits no longer than allowed, and starts again."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import IO, Any

COMMAND = (sys.executable, "-W", "ignore", "-m", "handheld.measure.worker")
TICK, TIMEOUT_AT_END = 0.25, 5.0  # seconds


class ChildFailed(Exception):
    """The child is gone; the text says how."""


class Child:
    """A worker process, started when it is first asked, and again after it has died."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self.command = tuple(command)
        self.starts = 0
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._said: IO[bytes] | None = None  # what it wrote to its standard error

    @property
    def running(self) -> int:
        """The number of the process that answers now; 0 if none does."""
        return self.starts if self._process is not None else 0

    def ask(self, message: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Its answer. One that crashes, or is silent for too long, is ended: ChildFailed."""
        process = self._process or self._start()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(message) + "\n")
            process.stdin.flush()
            line = self._wait(timeout)
        except BrokenPipeError:
            line = None
        except TimeoutError:
            self.close()
            raise ChildFailed(f"no answer within {timeout:.0f} s") from None
        if line is None:
            raise ChildFailed(self._how_it_ended(process))
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _wait(self, timeout: float) -> str | None:
        """A line, or None at the end. Time in which this process slept as well does not count: a
        suspended machine is no hanging driver."""
        waited = 0.0
        while waited < timeout:
            begun = time.monotonic()
            try:
                return self._lines.get(timeout=TICK)
            except queue.Empty:
                waited += min(time.monotonic() - begun, 2 * TICK)
        raise TimeoutError

    def _start(self) -> subprocess.Popen[str]:
        self.starts += 1
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the process
        process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, encoding="utf-8"
        )
        self._process, self._lines = process, queue.Queue()
        threading.Thread(target=_pump, args=(process.stdout, self._lines), daemon=True).start()
        return process

    def _how_it_ended(self, process: subprocess.Popen[str]) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(TIMEOUT_AT_END)
        self.close()
        assert self._said is not None
        self._said.seek(0)
        last = (self._said.read().decode(errors="replace").strip().splitlines() or [""])[-1]
        how = (
            f"the driver crashed (signal {-process.returncode})"
            if process.returncode < 0
            else f"the process ended (code {process.returncode})"
        )
        return f"{how}: {last}".rstrip(": ")

    def close(self) -> None:
        """Ends the process, whatever it is doing."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            if process.stdin is not None:
                with contextlib.suppress(OSError):  # what could not be written any more
                    process.stdin.close()


def _pump(source: IO[str], lines: queue.Queue[str | None]) -> None:
    with source:
        for line in source:
            lines.put(line)
    lines.put(None)

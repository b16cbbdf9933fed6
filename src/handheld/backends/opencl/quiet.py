"""Compilers that count their errors on the standard error output of the whole process.

PoCL's compiler writes "1 error generated." there, beside the log that it gives to the caller. When a merged
program does not build, the programs are built apart and the user has nothing to do about that line.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import threading
from collections.abc import Iterator
from typing import BinaryIO

_COUNT = re.compile(rb"^\d+ (?:warnings? and \d+ )?(?:errors?|warnings?) generated\.\r?\n", re.MULTILINE)
_lock = threading.Lock()
_depth = 0
_held: tuple[int, BinaryIO] | None = None  # the true output, and what was written meanwhile


@contextlib.contextmanager
def without_counts() -> Iterator[None]:
    """What is written to the standard error output appears afterwards, without such lines. Any number of threads
    may be inside; the first one begins it and the last one ends it."""
    global _depth  # noqa: PLW0603 - the process has one standard error output
    with _lock:
        if not _depth:
            _begin()
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if not _depth:
                _end()


def _begin() -> None:
    global _held  # noqa: PLW0603
    with contextlib.suppress(OSError):  # a process without this output, or without a folder for the file
        file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by _end
        try:
            _held = os.dup(2), file
        except OSError:
            file.close()
            raise
        os.dup2(file.fileno(), 2)


def _end() -> None:
    global _held
    if _held is None:
        return
    (output, file), _held = _held, None
    os.dup2(output, 2)
    with file, contextlib.suppress(OSError), os.fdopen(output, "wb", 0) as true:
        file.seek(0)
        true.write(_COUNT.sub(b"", file.read()))

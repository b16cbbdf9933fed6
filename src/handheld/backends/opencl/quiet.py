"""Hides the error counts that compilers write to the standard error output of the process.

PoCL's compiler writes "1 error generated." there, in addition to the log that it returns. If a merged program does
not build, the programs are built separately, and that line would only alarm the user.
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
#: The real standard error output, and the file that collects what is written meanwhile.
_held: tuple[int, BinaryIO] | None = None


@contextlib.contextmanager
def without_counts() -> Iterator[None]:
    """Holds back the standard error output and writes it afterwards without such lines.

    Several threads may be inside at the same time. The first one starts the redirection and the last one ends it.
    """
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
    with contextlib.suppress(OSError):  # The process may have no such output, or no folder for the file.
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

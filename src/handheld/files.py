"""Writes files atomically: a path always holds the old content or the new one, and nothing is left of a killed writer.

A writer fills a temporary file beside the target and renames it at the end. It holds a lock on the temporary file,
which the system releases when the process ends, also by `kill -9`. So a temporary file without a lock is stale, and
the next writer of the same target removes it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # Only Unix has it. Without locks, nothing is removed.
    fcntl = None  # type: ignore[assignment]


def replace_file(target: Path, fill: Callable[[BinaryIO], None]) -> None:
    """Write a file under a temporary name, then rename it."""
    remove_stale(target)
    temporary, file = _temporary(target)
    try:
        with file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
            if fcntl is None:
                file.close()  # Windows cannot rename an open file.
            os.replace(temporary, target)
    except BaseException:  # Also after Ctrl-C, no temporary file is left.
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    with contextlib.suppress(OSError):  # So that the new name survives a power cut, on systems that can sync folders.
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def remove_stale(target: Path) -> None:
    """Remove the temporary files that killed writers of this file left behind."""
    target = Path(os.path.realpath(target))
    with contextlib.suppress(OSError):
        for path in target.parent.glob(f"{_prefix(target)}*.tmp"):
            with contextlib.suppress(OSError), open(path, "rb") as file:
                if _lock(file) is True:
                    path.unlink()


def _temporary(target: Path) -> tuple[Path, BinaryIO]:
    """A new file beside the target, locked while it is open."""
    while True:
        path = target.with_name(f"{_prefix(target)}{secrets.token_hex(4)}.tmp")
        file = open(path, "xb")  # noqa: SIM115 (the caller closes it)
        if _lock(file) is not False and path.exists():
            return path, file
        file.close()  # Another process took it for a stale one before it was locked.


def _lock(file: BinaryIO) -> bool | None:
    """Lock an open file. Returns False if another process holds the lock, None if the system has no locks."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _prefix(target: Path) -> str:
    """How the names of a file's temporary files begin. A checksum stands for its name, which may be long."""
    return f".handheld-{zlib.crc32(os.fsencode(target.name)):08x}-"

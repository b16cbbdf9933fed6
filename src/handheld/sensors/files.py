"""Files of /sys and /proc that are read repeatedly.

A file is opened once and read from its start each time; the kernel then produces its content again. This costs a
quarter to a half of opening it each time. Numbers are parsed strictly: other text raises a ValueError that quotes it.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

from handheld.sensors.base import SensorLost, Unavailable, Value, Where

if TYPE_CHECKING:
    from handheld.sensors.mirror import Contents

_SIZE = 1 << 16


class File:
    """One file. `keep=False` opens it anew for each reading; use it for sensors with hundreds of files.

    What follows the text `until` is not needed. A file of a target has its `contents`.
    """

    def __init__(self, path: Path, keep: bool = True, until: str = "", contents: Contents | None = None) -> None:
        self.path, self.keep, self.until = path, keep, until
        self._fd = -1
        self._contents = contents
        if contents is not None:
            contents.hold(self)

    def text(self) -> str:
        """The whole content, stripped. Raises OSError if the file cannot be read or was removed."""
        text = self._bytes().decode("utf-8", "replace")
        return (text.partition(self.until)[0] if self.until else text).strip()

    def _bytes(self) -> bytes:
        if self._contents is not None:
            return self._contents.read(self.path)
        if not self.keep:
            return self.path.read_bytes()
        if self._fd < 0:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        elif not os.fstat(self._fd).st_nlink:  # The file was removed; the open descriptor would never change.
            self.close()
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.path))
        parts = [os.pread(self._fd, _SIZE, 0)]
        while len(parts[-1]) == _SIZE:
            parts.append(os.pread(self._fd, _SIZE, sum(map(len, parts))))
        return b"".join(parts)

    def number(self, scale: float = 1.0) -> float:
        """The number in the file, times `scale`. Raises OSError or ValueError."""
        text = self.text()
        try:
            return int(text) * scale
        except ValueError:
            raise ValueError(f"{self.path} holds {quoted(text)}, not a number") from None

    def value(self, scale: float = 1.0) -> Value:
        """The number times `scale`, or the reason why there is none. For sensors that have other files too."""
        try:
            return self.number(scale)
        except OSError as error:
            return f"{self.path}: {error.strerror}"
        except ValueError as error:
            return str(error)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()


def quoted(text: str) -> str:
    """The content of a file, shortened for a message."""
    return repr(text if len(text) <= 40 else text[:37] + "…") if text else "nothing"


def leading(text: str) -> float:
    """The first number of a text such as `37 %`, `37%` or `12 0 88`."""
    words = text.replace("%", " ").split()
    if not words:
        raise ValueError("it is empty")
    return float(words[0])


def opened(where: Where, path: Path | str, hint: str, until: str = "") -> File:
    """The file, after a test read. If it cannot be read, raises Unavailable with the path, the reason and the hint."""
    full = where.path(path) if isinstance(path, str) else path
    file = File(full, until=until, contents=where.contents)
    try:
        file.text()
    except PermissionError:
        raise Unavailable(f"no permission to read {where.shown(full)}. {hint}") from None
    except FileNotFoundError:
        raise Unavailable(f"there is no {where.shown(full)}") from None
    except OSError as error:
        raise Unavailable(f"{where.shown(full)}: {error.strerror}") from None
    return file


def absent(where: Where, folder: str, text: str, hint: str = "Try: sudo") -> Unavailable:
    """The error for a folder in which nothing was found: `text`, or that there is no permission to list the folder."""
    path = where.path(folder)
    if where.contents is not None and where.contents.denied(path):
        return Unavailable(f"no permission to list {folder}. {hint}")
    effective = os.access in os.supports_effective_ids
    if path.is_dir() and not os.access(path, os.R_OK | os.X_OK, effective_ids=effective):
        return Unavailable(f"no permission to list {folder}. {hint}")
    return Unavailable(text)


def optional(where: Where, path: Path | str) -> File | None:
    """The file if it can be read, else None. For files that not every device has."""
    try:
        return opened(where, path, "")
    except Unavailable:
        return None


def label(path: Path, default: str = "") -> str:
    """The text of a small file such as a name or label, or the default if it is empty or cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or default
    except OSError:
        return default


def unless_all_missing(values: list[Value]) -> list[Value]:
    """The values. Raises SensorLost if none of them could be read."""
    if values and all(isinstance(value, str) for value in values):
        raise SensorLost(str(values[0]))
    return values

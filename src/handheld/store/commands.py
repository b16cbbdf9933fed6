"""Device commands and their times: one record per command.

Recordings of a session and steps in a run file use the same records. `Commands` is a NumPy array of them, in the
order in which they were enqueued; `commands["started"]` is a column.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt


class CommandKind(IntEnum):
    """What a command does. Run files store these numbers."""

    LAUNCH = 0
    UPLOAD = 1
    DOWNLOAD = 2
    COPY = 3


LAUNCH, UPLOAD, DOWNLOAD, COPY = CommandKind

#: All times are in ns. Host times are by CLOCK_MONOTONIC, the others by the device's clock.
COMMAND = np.dtype(
    [
        ("kind", "<i8"),
        ("op", "<i8"),  # the node of a launch; in a run file the id of its op; -1 for transfers
        ("bytes", "<i8"),  # the size of a transfer
        ("host_begin", "<i8"),  # when the host began to enqueue it
        ("host_end", "<i8"),
        ("queued", "<i8"),
        ("submitted", "<i8"),
        ("started", "<i8"),
        ("ended", "<i8"),
    ]
)

Commands: TypeAlias = npt.NDArray[np.void]


def commands(rows: Sequence[tuple[int, ...]]) -> Commands:
    """An array from rows that have one value per column of COMMAND."""
    return np.array(rows, COMMAND)


def to_bytes(array: Commands) -> bytes:
    """The format of a run file: one column after the other."""
    return b"".join(np.ascontiguousarray(array[name]).tobytes() for name in array.dtype.names or ())


def from_bytes(count: int, data: bytes) -> Commands | None:
    """The inverse of `to_bytes`. None if the data does not have the length of `count` commands."""
    columns = COMMAND.names or ()
    if len(data) != COMMAND.itemsize * count:
        return None
    array: Commands = np.empty(count, COMMAND)
    for name, column in zip(columns, np.frombuffer(data, "<i8").reshape(len(columns), count), strict=True):
        array[name] = column
    return array


def flaw_of(array: Commands) -> str:
    """What is impossible about these commands, or "". Times must be below 2**62, so that their differences fit into
    64 bits."""
    kinds = array["kind"]
    if len(array) and not (min(CommandKind) <= kinds.min() and kinds.max() <= max(CommandKind)):
        return f"there is no kind {int(kinds.max()) if kinds.max() > max(CommandKind) else int(kinds.min())}"
    times = [name for name in array.dtype.names or () if name not in ("kind", "op")]
    if any(len(array) and (array[name].min() < 0 or array[name].max() >= 2**62) for name in times):
        return "a time or a size is negative or too large"
    return ""

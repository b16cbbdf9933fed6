"""What a device was told and when it did it: one record per command.

A recording of a session and a step in a run file have the same records. `Commands` is a NumPy array of them, in the
order in which they were enqueued; `commands["started"]` is a column.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt


class CommandKind(IntEnum):
    """The numbers are those of the run file."""

    LAUNCH = 0
    UPLOAD = 1
    DOWNLOAD = 2
    COPY = 3


LAUNCH, UPLOAD, DOWNLOAD, COPY = CommandKind

#: Times are ns: the host's by CLOCK_MONOTONIC, the others by the device's clock.
COMMAND = np.dtype(
    [
        ("kind", "<i8"),
        ("op", "<i8"),  # the launch's node; in a run file the id of its op; -1 for transfers
        ("bytes", "<i8"),  # of transfers
        ("host_begin", "<i8"),  # the host began to enqueue it
        ("host_end", "<i8"),
        ("queued", "<i8"),
        ("submitted", "<i8"),
        ("started", "<i8"),
        ("ended", "<i8"),
    ]
)

Commands: TypeAlias = npt.NDArray[np.void]


def commands(rows: Sequence[tuple[int, ...]]) -> Commands:
    """An array of rows that have a value per column."""
    return np.array(rows, COMMAND)


def to_bytes(some: Commands) -> bytes:
    """As a run file has them: one column after the other."""
    return b"".join(np.ascontiguousarray(some[name]).tobytes() for name in some.dtype.names or ())


def from_bytes(count: int, data: bytes) -> Commands | None:
    """None if that is not the length of so many commands."""
    columns = COMMAND.names or ()
    if len(data) != COMMAND.itemsize * count:
        return None
    found: Commands = np.empty(count, COMMAND)
    for name, column in zip(columns, np.frombuffer(data, "<i8").reshape(len(columns), count), strict=True):
        found[name] = column
    return found

"""Gives launches to a device. This is the only place that enqueues the kernels of a session.

A session binds its kernels once and passes `Work` to a submitter: a whole step, one node, or a step in which some
nodes are repeated. `Enqueuer` enqueues the launches one by one. To run them in another way (a command buffer that the
device replays, another machine), write another `Submitter` and pass it as `plan.start(submitter=...)`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from handheld.backends.opencl.devices import opencl
from handheld.store.commands import LAUNCH, CommandKind, Commands, commands

if TYPE_CHECKING:
    import pyopencl as cl

#: After this many launches the queue is flushed, so that the device can begin.
FLUSH_EVERY = 48


class Bound(NamedTuple):
    """A launch whose kernel has its arguments. `node` is the number of the node in its graph."""

    node: int
    kernel: cl.Kernel
    global_size: tuple[int, ...]
    local_size: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Work:
    """Launches in order.

    Works with the same `key` have the same launches, so a submitter may cache what it makes of them. Work without
    a key is submitted only once.
    """

    key: str | None
    launches: tuple[Bound, ...]


class Note(NamedTuple):
    """A command of a recording. Host times are in ns; the event has the times of the device."""

    kind: CommandKind
    node: int  # -1 for transfers
    nbytes: int
    host_begin: int
    host_end: int
    event: cl.Event


@dataclass
class Notes:
    """A recording: commands with their events. `read` gets the times from the events."""

    entries: list[Note] = field(default_factory=list)

    def add(self, kind: CommandKind, nbytes: int, begin: int, event: cl.Event) -> None:
        """Adds a transfer that the host began to enqueue at `begin` (ns)."""
        self.entries.append(Note(kind, -1, nbytes, begin, time.monotonic_ns(), event))

    def read(self) -> Commands:
        rows = []
        for *known, event in self.entries:
            times = event.profile
            rows.append((*known, times.queued, times.submit, times.start, times.end))
        self.clear()
        return commands(rows)

    def clear(self) -> None:
        self.entries.clear()

    def __len__(self) -> int:
        return len(self.entries)


class Submitter(ABC):
    """Gives a device the launches of a session."""

    @abstractmethod
    def submit(self, queue: cl.CommandQueue, work: Work, notes: Notes | None) -> cl.Event | None:
        """Starts the launches in order, after everything in the queue, and returns without waiting.

        Returns the event of the last launch, or None if there is nothing to wait for. If `notes` is given, the
        queue keeps times, and the submitter must add a note per launch.
        """

    def clear(self) -> None:  # noqa: B027 - most keep nothing
        """Drops everything that was cached. The session calls it before it frees its memory."""


class Enqueuer(Submitter):
    """Enqueues launches one by one."""

    def __init__(self) -> None:
        self._enqueue = opencl().enqueue_nd_range_kernel

    def submit(self, queue: cl.CommandQueue, work: Work, notes: Notes | None) -> cl.Event | None:
        enqueue, launches, event = self._enqueue, work.launches, None
        for start in range(0, len(launches), FLUSH_EVERY):
            if start:
                queue.flush()
            chunk = launches[start : start + FLUSH_EVERY]
            if notes is None:
                for _, kernel, global_size, local_size in chunk:
                    event = enqueue(queue, kernel, global_size, local_size)
            else:
                add, now = notes.entries.append, time.monotonic_ns
                for node, kernel, global_size, local_size in chunk:
                    begin = now()
                    event = enqueue(queue, kernel, global_size, local_size)
                    add(Note(LAUNCH, node, 0, begin, now(), event))
        return event

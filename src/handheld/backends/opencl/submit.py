"""The one place that gives launches to a device.

A session binds its kernels once and hands `Work` to a submitter: a whole step, one node, or a step in which some
nodes are repeated. `Enqueuer` enqueues them one by one. Another way to run them (a recording that the device
replays, another machine) is another `Submitter`, given to the session by `plan.start(submitter=...)`.
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

FLUSH_EVERY = 48  # launches after which the device may begin


class Bound(NamedTuple):
    """A launch whose kernel has its arguments."""

    node: int  # of the graph
    kernel: cl.Kernel
    global_size: tuple[int, ...]
    local_size: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Work:
    """Launches in their order. Works with the same `key` have the same launches, so that a submitter may keep what it
    made of them; without a key they are for this once."""

    key: str | None
    launches: tuple[Bound, ...]


class Note(NamedTuple):
    """A command of a recording; the event has the device's times."""

    kind: CommandKind
    node: int  # -1 for transfers
    nbytes: int
    host_begin: int  # ns
    host_end: int
    event: cl.Event


@dataclass
class Notes:
    """A recording: commands with their events, which are read when someone asks."""

    entries: list[Note] = field(default_factory=list)

    def add(self, kind: CommandKind, nbytes: int, begin: int, event: cl.Event) -> None:
        """A transfer that the host began to enqueue at `begin`."""
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
        """Starts the launches, in order and after everything that the queue has, without waiting for them. The event
        is that of the last one; None: there is nothing to wait for. With `notes`, the queue keeps times, and each
        launch is noted."""

    def clear(self) -> None:  # noqa: B027 - most keep nothing
        """Lets go of everything that was made of a work: the session's memory is about to be freed."""


class Enqueuer(Submitter):
    """One enqueue per launch."""

    def __init__(self) -> None:
        self._enqueue = opencl().enqueue_nd_range_kernel

    def submit(self, queue: cl.CommandQueue, work: Work, notes: Notes | None) -> cl.Event | None:
        enqueue, launches, event = self._enqueue, work.launches, None
        for start in range(0, len(launches), FLUSH_EVERY):
            if start:
                queue.flush()
            some = launches[start : start + FLUSH_EVERY]
            if notes is None:
                for _, kernel, global_size, local_size in some:
                    event = enqueue(queue, kernel, global_size, local_size)
            else:
                add, now = notes.entries.append, time.monotonic_ns
                for node, kernel, global_size, local_size in some:
                    begin = now()
                    event = enqueue(queue, kernel, global_size, local_size)
                    add(Note(LAUNCH, node, 0, begin, now(), event))
        return event

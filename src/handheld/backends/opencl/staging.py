"""Staging memory for uploads: host memory that a batch is copied into before the device reads it.

Each batch is copied once, into memory that the session keeps. The caller may therefore change its array at once,
and the device reads the copy while the host goes on with the launches of the step.

For large batches and devices with separate memory, the staging memory is pinned by the driver. The system may
move other pages, so a driver copies from those piece by piece: the transfer reaches only a fraction of the
speed of the bus, and the host waits in the call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import numpy as np

from handheld.callers import warn_user

if TYPE_CHECKING:
    import pyopencl as cl

#: For smaller batches pinned memory is not faster.
LEAST_BYTES = 256 << 10
#: How many steps the host may be ahead of the device.
IN_FLIGHT = 2
#: The pieces of memory per input. If all are in use, the host waits for the oldest.
PIECES = IN_FLIGHT


class Staging:
    """Host memory for the inputs of one queue, allocated when an input is first uploaded."""

    def __init__(self, api: Any, context: cl.Context, queue: cl.CommandQueue, pinned: bool) -> None:
        self._api, self._context, self._queue, self._pinned = api, context, queue, pinned
        self._pieces: dict[Hashable, list[Piece]] = {}
        self._mapped_buffers: list[cl.Buffer] = []

    def hold(self, key: Hashable, array: np.ndarray) -> Piece:
        """Copies the array into a free piece of memory and returns it. Waits if no piece is free."""
        pieces = self._pieces.setdefault(key, [])
        if len(pieces) < PIECES:
            piece = Piece(self._memory(array))
        else:
            piece = pieces.pop(0)
            if piece.event is not None:
                piece.event.wait()
        pieces.append(piece)
        np.copyto(piece.host, array)
        return piece

    def _memory(self, like: np.ndarray) -> np.ndarray:
        if self._pinned and like.nbytes >= LEAST_BYTES:
            try:
                return self._mapped(like)
            except (self._api.Error, MemoryError) as error:
                self._pinned = False  # Other memory is slower but works too.
                warn_user(
                    f"no pinned memory of {like.nbytes:,} bytes for batches ({error}): uploads to the device are slower"
                )
        return np.empty(like.shape, like.dtype)

    def _mapped(self, like: np.ndarray) -> np.ndarray:
        api = self._api
        flags = api.mem_flags.READ_ONLY | api.mem_flags.ALLOC_HOST_PTR
        buffer = api.Buffer(self._context, flags, like.nbytes)
        self._mapped_buffers.append(buffer)
        host: np.ndarray = api.enqueue_map_buffer(
            self._queue, buffer, api.map_flags.WRITE, 0, like.shape, like.dtype, is_blocking=True
        )[0]
        return host

    def release(self) -> None:
        """Frees the memory. The queue must have finished."""
        for piece in (piece for pieces in self._pieces.values() for piece in pieces):
            if isinstance(piece.host.base, self._api.MemoryMap):
                piece.host.base.release(self._queue)
        self._pieces.clear()
        self._mapped_buffers.clear()


class Piece:
    """Memory for one batch of one input, and the event of the copy that reads it."""

    def __init__(self, host: np.ndarray) -> None:
        self.host = host
        self.event: cl.Event | None = None


class Flight:
    """Work that the device may not have finished: copies with the host memory that they use, and ends of steps."""

    def __init__(self) -> None:
        self._events: deque[tuple[cl.Event | None, np.ndarray | None]] = deque()
        self._steps = 0  # the number of steps in `_events`

    def hold(self, event: cl.Event, host: np.ndarray) -> None:
        """Keeps the host memory of a copy alive until the step of the copy is over."""
        self._events.append((event, host))

    def step(self, end: cl.Event | None) -> None:
        """Adds the end of a step. If the host is more than IN_FLIGHT steps ahead, waits for the oldest step.

        The queue does not run empty meanwhile.
        """
        self._events.append((end, None))
        self._steps += 1
        while self._steps > IN_FLIGHT:
            event, host = self._events.popleft()
            if host is None:
                self._steps -= 1
                if event is not None:
                    event.wait()

    def clear(self) -> None:
        """Forgets everything. The queue must have finished."""
        self._events.clear()
        self._steps = 0

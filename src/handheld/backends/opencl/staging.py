"""Batches on their way to a device.

A batch is copied once, into memory that is kept: the caller may change its own at once, and the
device reads while the host goes on with the step's launches. A device with memory of its own reads
large batches from memory that its driver has pinned: from other pages, which the system may move, a
driver copies piece by piece, at a fraction of what the bus can do, and the host waits in the call.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyopencl as cl

#: below this pinned memory gains nothing
LEAST_BYTES = 256 << 10
IN_FLIGHT = 2  # steps the host may be ahead of the device
PIECES = IN_FLIGHT  # of an input; the host waits for the oldest


class Staging:
    """Host memory for the inputs of one queue, made when an input is first there."""

    def __init__(self, api: Any, context: cl.Context, queue: cl.CommandQueue, pinned: bool) -> None:
        self._api, self._context, self._queue, self._pinned = api, context, queue, pinned
        self._pieces: dict[Hashable, list[Piece]] = {}
        self._mapped_buffers: list[cl.Buffer] = []

    def hold(self, key: Hashable, array: np.ndarray) -> Piece:
        """The array's values in a piece of memory that what it held before has left."""
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
                self._pinned = False  # the other way is slower, and no less right
                warnings.warn(
                    f"no pinned memory of {like.nbytes:,} bytes for batches ({error}): "
                    "they go to the device by the slower way",
                    stacklevel=2,
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
        """When the queue has finished."""
        for piece in (piece for pieces in self._pieces.values() for piece in pieces):
            if isinstance(piece.host.base, self._api.MemoryMap):
                piece.host.base.release(self._queue)
        self._pieces.clear()
        self._mapped_buffers.clear()


class Piece:
    """Memory for one batch of one input, and the copy that reads it."""

    def __init__(self, host: np.ndarray) -> None:
        self.host = host
        self.event: cl.Event | None = None


class Flight:
    """What the device may still be at: copies with the host memory that they use, and the ends of steps."""

    def __init__(self) -> None:
        self._events: deque[tuple[cl.Event | None, np.ndarray | None]] = deque()
        self._steps = 0  # of them

    def hold(self, event: cl.Event, host: np.ndarray) -> None:
        """A copy that uses this memory."""
        self._events.append((event, host))

    def step(self, end: cl.Event | None) -> None:
        """The host may be IN_FLIGHT steps ahead: beyond it waits for the oldest, without emptying the queue."""
        self._events.append((end, None))
        self._steps += 1
        while self._steps > IN_FLIGHT:
            event, host = self._events.popleft()
            if host is None:
                self._steps -= 1
                if event is not None:
                    event.wait()

    def clear(self) -> None:
        """When the queue has finished."""
        self._events.clear()
        self._steps = 0

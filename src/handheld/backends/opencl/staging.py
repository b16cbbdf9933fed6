"""Batches on their way to a device.

A batch is copied once, into memory that is kept: the caller may change its own at once, and the
device reads while the host goes on with the step's launches. A device with memory of its own reads
large batches from memory that its driver has pinned: from other pages, which the system may move, a
driver copies piece by piece, at a fraction of what the bus can do, and the host waits in the call.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

#: below this pinned memory gains nothing
LEAST_BYTES = 256 << 10
PIECES = 2  # of an input: as many steps as the host is ahead; it waits for the oldest


class Staging:
    """Host memory for the inputs of one queue, made when an input is first there."""

    def __init__(self, cl: Any, context: Any, queue: Any, pinned: bool) -> None:
        self._cl, self._context, self._queue, self._pinned = cl, context, queue, pinned
        self._pieces: dict[Any, list[Piece]] = {}
        self._mapped_buffers: list[Any] = []

    def hold(self, key: Any, array: np.ndarray) -> Piece:
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
            except (self._cl.Error, MemoryError) as error:
                self._pinned = False  # the other way is slower, and no less right
                warnings.warn(
                    f"no pinned memory of {like.nbytes:,} bytes for batches ({error}): "
                    "they go to the device by the slower way",
                    stacklevel=2,
                )
        return np.empty(like.shape, like.dtype)

    def _mapped(self, like: np.ndarray) -> np.ndarray:
        cl = self._cl
        flags = cl.mem_flags.READ_ONLY | cl.mem_flags.ALLOC_HOST_PTR
        buffer = cl.Buffer(self._context, flags, like.nbytes)
        self._mapped_buffers.append(buffer)
        host: np.ndarray = cl.enqueue_map_buffer(
            self._queue, buffer, cl.map_flags.WRITE, 0, like.shape, like.dtype, is_blocking=True
        )[0]
        return host

    def release(self) -> None:
        """When the queue has finished."""
        for piece in (piece for pieces in self._pieces.values() for piece in pieces):
            if isinstance(piece.host.base, self._cl.MemoryMap):
                piece.host.base.release(self._queue)
        self._pieces.clear()
        self._mapped_buffers.clear()


class Piece:
    """Memory for one batch of one input, and the copy that reads it."""

    def __init__(self, host: np.ndarray) -> None:
        self.host = host
        self.event: Any = None

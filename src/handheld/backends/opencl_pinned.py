"""Batches on their way to a device with memory of its own.

From pages that the system may move, a driver copies piece by piece, at a fraction of what the bus
can do, and the host waits in the call. So a large batch is first copied into memory that the driver
has pinned, two pieces of it for each input in turn, and goes from there by itself, while the host
goes on with the step's launches.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

#: below this the call costs more than the way
LEAST_BYTES = 256 << 10
PIECES = 2  # the host is that many steps ahead, and waits for the oldest


class Pinned:
    """Host memory for the inputs of one queue's device, made when it is first wanted."""

    def __init__(self, cl: Any, context: Any) -> None:
        self._cl, self._context = cl, context
        self._pieces: dict[Any, list[_Piece]] = {}
        self._given = True  # that there is such memory

    def hold(self, key: Any, array: np.ndarray, queue: Any) -> _Piece | None:
        """The array's bytes in pinned memory; what the piece held before has left it. None if the
        system gives no such memory: the caller's way is slower, and no less right."""
        pieces = self._pieces.setdefault(key, [])
        if not self._given:
            return None
        if len(pieces) < PIECES:
            try:
                piece = _Piece(self._cl, self._context, queue, array)
            except (self._cl.Error, MemoryError) as error:
                self._given = False
                warnings.warn(f"no pinned memory of {array.nbytes:,} bytes for batches ({error}): "
                              "they go to the device by the slower way", stacklevel=2)
                return None
        else:
            piece = pieces.pop(0)
            if piece.event is not None:
                piece.event.wait()
        pieces.append(piece)
        np.copyto(piece.host, array)
        return piece

    def release(self, queue: Any) -> None:
        for pieces in self._pieces.values():
            for piece in pieces:
                piece.host.base.release(queue)
        self._pieces.clear()


class _Piece:
    """A mapped buffer, as an array like the one that is to be held."""

    def __init__(self, cl: Any, context: Any, queue: Any, like: np.ndarray) -> None:
        flags = cl.mem_flags
        self.buffer = cl.Buffer(context, flags.READ_ONLY | flags.ALLOC_HOST_PTR, like.nbytes)
        self.host, _ = cl.enqueue_map_buffer(queue, self.buffer, cl.map_flags.WRITE, 0, like.shape,
                                             like.dtype, is_blocking=True)
        self.event: Any = None  # of the copy that reads it

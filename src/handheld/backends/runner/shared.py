"""Batches for a runner on this machine: through memory that both processes have mapped, instead of a pipe.

A pipe moves a batch in pieces, and this process waits until the runner has read almost all of it. Here it copies the
batch and goes on. An input has three areas that take turns, because the host is at most two steps ahead.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from handheld.backends.runner.link import JOINED_BYTES, Link, Op
from handheld.backends.runner.wire import flat

AREAS = 3
PAGE = 4096


@dataclass
class _Areas:
    """Equal areas of the shared memory from `start` on, and the requests that were sent for them last."""

    start: int
    nbytes: int
    requests: list[int | None]
    turn: int = 0


class SharedInputs:
    """The inputs of one plan in the memory that is shared with its runner."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._inputs: dict[tuple[int, int], _Areas | None] = {}
        self._used = 0

    def write(self, segment: int, offset: int, array: np.ndarray) -> bool:
        """Writes an input. Returns False if it must go through the pipe: it is small, or there is no room for it."""
        memory, data = self._link.shared, flat(array)
        if memory is None or len(data) <= JOINED_BYTES:
            return False
        key = segment, offset
        if key not in self._inputs:
            self._inputs[key] = self._reserve(len(data), len(memory))
        areas = self._inputs[key]
        if areas is None or areas.nbytes < len(data):
            return False
        turn = areas.turn % AREAS
        before = areas.requests[turn]
        if before is not None and not self._link.is_handled(before):
            self._link.get(Op.CLOCK)  # The runner has read the area when this is answered.
        start = areas.start + turn * areas.nbytes
        memory[start : start + len(data)] = data
        request = struct.pack("<IIQQQ", segment, 0, offset, start, len(data))
        areas.requests[turn] = self._link.send(Op.WRITE_SHARED, request)
        areas.turn += 1
        return True

    def _reserve(self, nbytes: int, available: int) -> _Areas | None:
        nbytes = -(-nbytes // PAGE) * PAGE
        if self._used + AREAS * nbytes > available:
            return None
        start, self._used = self._used, self._used + AREAS * nbytes
        return _Areas(start, nbytes, [None] * AREAS)

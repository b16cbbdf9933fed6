"""Times of PyTorch ops: from the host's clock on a CPU, from events on a GPU."""

from __future__ import annotations

import time
from typing import NamedTuple

import torch

from handheld.store.commands import CommandKind, Commands, commands


def cuda_event() -> torch.cuda.Event:
    """Records and returns an event."""
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


class CudaMark(NamedTuple):
    """An event on an idle GPU, its host time and the possible error of that time."""

    event: torch.cuda.Event
    host_ns: int
    error_ns: int


def cuda_mark() -> CudaMark:
    torch.cuda.synchronize()
    begin = time.monotonic_ns()
    event = cuda_event()
    event.synchronize()
    error = (time.monotonic_ns() - begin) // 2
    return CudaMark(event, begin + error, error)


class Begun(NamedTuple):
    """A moment: the beginning or end of an op or a transfer. On a GPU it has an event."""

    host_ns: int
    event: torch.cuda.Event | None


class _Note(NamedTuple):
    kind: CommandKind
    node: int
    nbytes: int
    begun: Begun
    ended: Begun


class TorchRecording:
    """A recording of ops and transfers."""

    def __init__(self, where: str) -> None:
        self._notes: list[_Note] = []
        self._mark = cuda_mark() if where == "cuda" else None

    def begin(self) -> Begun:
        return Begun(time.monotonic_ns(), cuda_event() if self._mark else None)

    def end(self, begun: Begun, kind: CommandKind, node: int, nbytes: int) -> None:
        event = cuda_event() if self._mark else None
        self._notes.append(_Note(kind, node, nbytes, begun, Begun(time.monotonic_ns(), event)))

    def read(self) -> Commands:
        rows = []
        if self._mark:
            torch.cuda.synchronize()
        for kind, node, nbytes, begun, ended in self._notes:
            begin, end = begun.host_ns, ended.host_ns
            rows.append((kind, node, nbytes, begin, end, begin, begin, self._device_ns(begun), self._device_ns(ended)))
        self._notes.clear()
        return commands(rows)

    def _device_ns(self, at: Begun) -> int:
        """Returns the time of a moment. A GPU gives times relative to the mark, whose host time is known."""
        if self._mark is None or at.event is None:
            return at.host_ns
        elapsed_ms: float = self._mark.event.elapsed_time(at.event)
        return self._mark.host_ns + round(elapsed_ms * 1e6)

    def clear(self) -> None:
        self._notes.clear()

    def __len__(self) -> int:
        """Returns the number of ops and transfers so far."""
        return len(self._notes)

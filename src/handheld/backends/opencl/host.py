"""What a plan keeps outside the device: host memory, or a file; and the copies between it and the device.

On a device with memory of its own, host memory is used, pinned if the driver can. A device that shares the memory of
the host would save nothing so, and gets a file. Its space is reserved when the session opens: a full disk is an error
then, and not in the middle of a training. The file has no name, so it is gone when the process ends.

Copies run through a queue of their own, beside the launches of the step (plan/transfers.py has the order).
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from handheld import cache
from handheld.backends.base import available_memory
from handheld.errors import OutOfMemory
from handheld.plan.transfers import Transfer, schedule, transfers
from handheld.units import size as size_text

if TYPE_CHECKING:
    import pyopencl as cl

    from handheld.backends.opencl.memory import Memory
    from handheld.plan.memory import Place
    from handheld.plan.plan import Plan


class HostStore:
    """The bytes of a plan in the memory of the host or in a file."""

    def __init__(self, plan: Plan, api: Any, context: cl.Context, queue: cl.CommandQueue) -> None:
        self._plan, self._api = plan, api
        self._buffer: cl.Buffer | None = None
        chosen = plan.options.get("spill_to")
        if chosen or plan.caps.unified_memory:
            self._bytes = _file_bytes(Path(chosen) if chosen else cache.folder(), plan.host_bytes)
        else:
            self._bytes = self._host_bytes(context, queue, plan.host_bytes)

    def _host_bytes(self, context: cl.Context, queue: cl.CommandQueue, nbytes: int) -> np.ndarray:
        api = self._api
        left = available_memory()
        if nbytes > left:
            raise OutOfMemory(
                f"the plan keeps {size_text(nbytes)} in the memory of the host, which has {size_text(left)} left. "
                "Try: --spill-to FOLDER (spill_to=), to keep them in a file, or a smaller batch",
                nbytes,
                left,
            )
        try:
            self._buffer = api.Buffer(context, api.mem_flags.READ_WRITE | api.mem_flags.ALLOC_HOST_PTR, nbytes)
            flags = api.map_flags.READ | api.map_flags.WRITE
            host: np.ndarray = api.enqueue_map_buffer(queue, self._buffer, flags, 0, (nbytes,), np.uint8)[0]
            return host
        except (api.Error, MemoryError):  # Other memory is slower but works too.
            self._buffer = None
            return np.zeros(nbytes, np.uint8)

    def at(self, place: Place) -> np.ndarray:
        """The bytes of a place."""
        return self._bytes[place.offset : place.offset + place.nbytes]

    def read(self, place: Place, dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
        """A copy of the value at a place."""
        return np.array(self.at(place).view(dtype).reshape(shape))

    def write(self, place: Place, value: np.ndarray) -> None:
        self.at(place)[:] = np.ascontiguousarray(value).reshape(-1).view(np.uint8)

    def release(self, queue: cl.CommandQueue) -> None:
        """Frees the memory. The queues must have finished."""
        if self._buffer is not None and isinstance(self._bytes.base, self._api.MemoryMap):
            self._bytes.base.release(queue)
            queue.finish()
        self._bytes = np.empty(0, np.uint8)
        self._buffer = None


def _file_bytes(folder: Path, nbytes: int) -> np.ndarray:
    """The bytes of a new file without a name, all reserved on the disk."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(prefix="handheld-", dir=folder) as file:
            _reserve(file.fileno(), nbytes)
            return np.frombuffer(mmap.mmap(file.fileno(), nbytes), np.uint8)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutOfMemory(
            f"the plan keeps {size_text(nbytes)} in a file in {folder}, and they cannot be reserved there: {reason}. "
            "Nothing was trained, and checkpoints are as they were. Try: --spill-to FOLDER (spill_to=) with a folder "
            "on another disk, or free some space",
            nbytes,
        ) from None


def _reserve(file: int, nbytes: int) -> None:
    """Makes the file this long, with space on the disk for all of it."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file, 0, nbytes)
            return
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
    zeros = bytes(1 << 20)
    for start in range(0, nbytes, len(zeros)):
        written = memoryview(zeros)[: nbytes - start]
        while written:
            written = written[os.write(file, written) :]


class Copies:
    """The copies of a session between the device and the host, on a queue of their own."""

    def __init__(self, plan: Plan, api: Any, context: cl.Context, queue: cl.CommandQueue, memory: Memory) -> None:
        self._api, self._memory, self._graphs = api, memory, plan.graphs
        self.queue: cl.CommandQueue = api.CommandQueue(context)
        self.store = HostStore(plan, api, context, queue)
        self.actions = {name: schedule(entry.graph) for name, entry in plan.graphs.items() if entry.graph.host}
        self.known = {name: transfers(plan.graphs[name].graph) for name in self.actions}
        self._running: dict[int, cl.Event] = {}

    def begin(self, main: cl.CommandQueue, graph: str, node: int) -> tuple[cl.Event, np.ndarray]:
        """Begins a copy after everything that is in the main queue. The caller keeps what is returned until the copy is
        over."""
        before = self._api.enqueue_marker(main)
        main.flush()
        event, host = self.copy(self.queue, self.known[graph][node], graph, [before])
        self.queue.flush()
        self._running[node] = event
        return event, host

    def end(self, main: cl.CommandQueue, node: int) -> None:
        """Makes the main queue wait for a copy."""
        event = self._running.pop(node, None)
        if event is not None:
            self._api.enqueue_barrier(main, wait_for=[event])

    def copy(
        self, queue: cl.CommandQueue, one: Transfer, graph: str, after: list[cl.Event] | None = None
    ) -> tuple[cl.Event, np.ndarray]:
        """Starts a copy in a queue."""
        plan = self._graphs[graph]
        region, host = self._memory.region(plan.places[one.tensor]), self.store.at(plan.host[one.host])
        ends = (region, host) if one.way == "in" else (host, region)
        return self._api.enqueue_copy(queue, *ends, is_blocking=False, wait_for=after), host

    def release(self, main: cl.CommandQueue) -> None:
        """Frees the host's memory. The main queue must have finished."""
        self.queue.finish()
        self._running.clear()
        self.store.release(main)

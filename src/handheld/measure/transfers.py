"""Measures what transfers to and from a device cost, by size, and what launches cost.

Each size is copied many times. Every copy is waited for, as by a caller who needs the result, so the
latency of a transfer is included. The two directions alternate, so that other work on the machine affects
both equally.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypedDict

import numpy as np

from handheld.backends.opencl import devices as opencl_devices
from handheld.measure import ceilings
from handheld.measure.target_device import TargetDevice
from handheld.measure.timing import Measured
from handheld.store.commands import DOWNLOAD, UPLOAD
from handheld.targets.names import is_target

#: Bytes: from 4 B (the size of a loss) to 64 MiB in powers of four.
SIZES = tuple(4**n for n in range(1, 14))
SECONDS = 0.25  # The approximate limit for one size and direction.
LEAST, MOST = 9, 400  # Copies per size.
#: On a target, data also crosses the connection: copies per size, and the bytes of one size that may flow.
FEW, MANY, FLOWING = 3, 50, 32 << 20

TO_DEVICE, TO_HOST = "to_device", "to_host"


class Copies(TypedDict):
    """All copies of one size."""

    bytes: int
    seconds: list[float]


def transfer_times(
    device: str,
    sizes: Sequence[int] = SIZES,
    seconds: float = SECONDS,
    progress: Callable[[str, float], None] = lambda what, part: None,
) -> dict[str, list[Copies]]:
    """For each direction, a list with the bytes of each size and the seconds of every copy."""
    if is_target(device):
        return _of_target(device, sizes, progress)
    api = opencl_devices.opencl()
    opened = opencl_devices.find(device)
    queue = api.CommandQueue(api.Context([opened.device]))
    sizes = [size for size in sizes if size <= opened.caps.max_alloc_bytes // 4]
    largest = max(sizes)
    host = np.zeros(largest, np.uint8)
    buffer = api.Buffer(queue.context, api.mem_flags.READ_WRITE, largest)
    api.enqueue_fill_buffer(queue, buffer, np.uint8(0), 0, largest)
    queue.finish()
    times: dict[str, list[Copies]] = {TO_DEVICE: [], TO_HOST: []}
    try:
        for place, size in enumerate(sizes):
            progress(f"transfers of {size:,} B", place / len(sizes))
            ends = {TO_DEVICE: (buffer, host[:size]), TO_HOST: (host[:size], buffer)}
            taken: dict[str, list[float]] = {name: [] for name in ends}
            for ways in ends.values():
                api.enqueue_copy(queue, *ways, is_blocking=True)  # Drivers do extra work at the first copy.
            began = time.perf_counter()
            while _more(taken[TO_HOST], time.perf_counter() - began, 2 * seconds):
                for name, ways in ends.items():
                    start = time.perf_counter()
                    api.enqueue_copy(queue, *ways, is_blocking=True)
                    taken[name].append(time.perf_counter() - start)
            for name, values in taken.items():
                times[name].append({"bytes": size, "seconds": values})
    finally:
        queue.finish()
        buffer.release()
    return times


def _of_target(device: str, sizes: Sequence[int], progress: Callable[[str, float], None]) -> dict[str, list[Copies]]:
    """The same on a target, by the device's clock: what a program on that machine would see."""
    opened = TargetDevice(device)
    times: dict[str, list[Copies]] = {TO_DEVICE: [], TO_HOST: []}
    try:
        sizes = [size for size in sizes if size <= opened.caps.max_alloc_bytes // 4]
        opened.open_bytes(max(sizes))
        for place, size in enumerate(sizes):
            progress(f"transfers of {size:,} B", place / len(sizes))
            rows = opened.copy(size, max(FEW, min(MANY, FLOWING // size)))
            for name, kind in ((TO_DEVICE, UPLOAD), (TO_HOST, DOWNLOAD)):
                times[name].append({"bytes": size, "seconds": [whole for _, _, whole in rows[kind]]})
    finally:
        opened.close()
    return times


def _more(taken: list[float], spent: float, seconds: float) -> bool:
    return len(taken) < LEAST or (len(taken) < MOST and spent < seconds)


def launch_times(device: str) -> dict[str, Measured]:
    """Seconds of an empty kernel: for the host to enqueue it, for the device to run it after another, and to enqueue
    it and wait for it."""
    enqueue, after, round_trip = ceilings.launch_latencies(device)
    return {"enqueue": enqueue, "device": after, "round_trip": round_trip}

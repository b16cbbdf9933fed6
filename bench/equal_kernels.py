"""Two kernels that take the same time: one only computes, one only moves bytes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyopencl as cl

from handheld.backends.opencl.devices import find
from handheld.measure.open_device import OpenDevice

PLANTED_S = 0.004  # seconds per run of each kernel


@dataclass(frozen=True)
class Kernels:
    """Kernels by name, on one queue."""

    run: dict[str, Callable[[], None]]
    finish: Callable[[], None]


def equal_kernels(device: str) -> Kernels:
    """Both kernels, each with as many rounds as take PLANTED_S."""
    bench = OpenDevice(find(device))
    queue = bench.queue
    local = min(64, bench.caps.max_work_group)
    items = local * bench.caps.compute_units * (4 if bench.caps.kind == "cpu" else 64)
    sums = bench.buffer(4 * items * 4)
    compute = cl.Kernel(bench.program(FLOPS=1, T="float4", SCALAR="float", WIDE=8), "flops")
    nbytes = min(1 << 28, bench.caps.global_mem_bytes // 8, bench.caps.max_alloc_bytes)
    count = nbytes // 2 // (4 * bench.vector)
    source, target = bench.buffer(nbytes), bench.buffer(nbytes // 2)
    move = cl.Kernel(bench.program(T=f"float{bench.vector}"), "copy")
    if bench.local == 1:
        movers = min(bench.items, count // 16)
        part = 1 << (count // movers).bit_length() - 1
        walk = (part, 0, 1, part - 1)
    else:
        movers = min(bench.items, max(count // bench.local, 1) * bench.local)
        walk = (0, 1, movers, count - 1)

    def arithmetic(n: int) -> None:
        compute.set_args(sums, np.float32(0.5), np.float32(0.5), np.int32(n))
        cl.enqueue_nd_range_kernel(queue, compute, (items,), (local,))

    def memory(n: int) -> None:
        move.set_args(source, target, *(np.uint32(v) for v in (*walk, n)))
        cl.enqueue_nd_range_kernel(queue, move, (movers,), (bench.local,))

    runs = {}
    for name, run in (("arithmetic", arithmetic), ("memory", memory)):
        n = rounds_for(run, queue, PLANTED_S)
        runs[name] = lambda run=run, n=n: run(n)
    return Kernels(runs, queue.finish)


def rounds_for(run: Callable[[int], None], queue: Any, seconds: float) -> int:
    """The number of rounds of a kernel's loop that take `seconds`, found by trial."""

    def clock(n: int) -> float:
        run(n)
        queue.finish()
        times = []
        for _ in range(5):
            begun = time.perf_counter()
            for _ in range(4):
                run(n)
            queue.finish()
            times.append((time.perf_counter() - begun) / 4)
        return float(np.median(times))

    n = 1
    while clock(n) < seconds / 2 and n < 2**28:
        n *= 2
    for _ in range(6):  # Each pass comes closer.
        n = max(1, round(n * seconds / clock(n)))
    return n


def rounds(kernels: Kernels, counts: dict[str, int], seconds: float) -> tuple[int, int, int]:
    """One energy window of these kernels, as `profile.energy.window` does for a plan: (runs, begin, end in ns)."""

    def one() -> None:
        for name, count in counts.items():
            for _ in range(count):
                kernels.run[name]()

    one()
    kernels.finish()
    runs, begin = 0, time.monotonic_ns()
    while time.monotonic_ns() - begin < seconds * 1e9:
        for _ in range(4):
            one()
        kernels.finish()
        runs += 4
    return runs, begin, time.monotonic_ns()

"""Measures an OpenCL device of this process. Times are taken by the host's clock around kernels that run for
milliseconds, so no driver's event timer has to be trusted."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from handheld.backends.opencl import devices as opencl_devices
from handheld.backends.opencl.programs import build
from handheld.kernels.base import Launch
from handheld.measure.measurable import (
    ARGS,
    LAUNCHES,
    RUN_SECONDS,
    RUNS,
    TRANSFER,
    Launches,
    Measurable,
    Transfers,
    Walk,
    fastest,
)
from handheld.measure.timing import Measured
from handheld.plan.widen import texts_of

if TYPE_CHECKING:
    import pyopencl as cl


class OpenDevice(Measurable):
    """An OpenCL device of this process."""

    def __init__(self, device: opencl_devices.OpenCLDevice) -> None:
        super().__init__(device.caps)
        self.api = opencl_devices.opencl()
        self.queue: cl.CommandQueue = self.api.CommandQueue(self.api.Context([device.device]))

    def program(self, **defines: object) -> cl.Program:
        text = self.source(**defines)
        launches = [
            Launch(name, text, args, (1,), (1,))
            for name, args in ARGS.items()
            if (name == "flops") == ("FLOPS" in defines)
        ]
        (text,) = texts_of(launches, self.caps).values()
        return build(self.queue.context, text)

    def buffer(self, nbytes: int) -> cl.Buffer:
        buffer: cl.Buffer = self.api.Buffer(self.queue.context, self.api.mem_flags.READ_WRITE, nbytes)
        zero = np.array(0, np.uint32)
        self.api.enqueue_fill_buffer(self.queue, buffer, zero, 0, nbytes)  # Forces the allocation.
        return buffer

    def _rates(self, run: Callable[[int], None], per_round: float, rounds: int = 1) -> Measured:
        """Units per second, where a round has `per_round` units. Adds rounds until a run is long enough to time."""
        run(rounds)  # Drivers compile at the first launch.
        while min(_clock(run, rounds), _clock(run, rounds)) < RUN_SECONDS and rounds < 2**28:
            rounds *= 2
        return fastest([per_round * rounds / _clock(run, rounds) for _ in range(RUNS)])

    def flops_rate(self, options: dict[str, object], items: int, local: int, width: int, per_round: float) -> Measured:
        y = self.buffer(4 * items * width)
        kernel = self.api.Kernel(self.program(**options), "flops")

        def run(rounds: int) -> None:
            kernel.set_args(y, np.float32(0.5), np.float32(0.5), np.int32(rounds))
            self._launch(kernel, items, local)

        rate = self._rates(run, per_round)
        y.release()
        return rate

    def _launch(self, kernel: cl.Kernel, items: int, local: int) -> None:
        self.api.enqueue_nd_range_kernel(self.queue, kernel, (items,), (local,))
        self.queue.finish()

    def walk_rate(self, walk: Walk) -> Measured:
        x, y = self.buffer(walk.of_x), self.buffer(walk.of_y)
        kernel = self.api.Kernel(self.program(T=f"float{self.vector}"), walk.kernel)

        def run(rounds: int) -> None:
            times, each = (rounds // walk.least, walk.least) if walk.apart else (1, rounds)
            kernel.set_args(x, y, *(np.uint32(n) for n in (*walk.numbers, each)))
            for _ in range(times):
                self.api.enqueue_nd_range_kernel(self.queue, kernel, (walk.items,), (self.local,))
            self.queue.finish()

        rate = self._rates(run, walk.per_round, walk.least)
        for buffer in (x, y):
            buffer.release()
        return rate

    def transfers(self) -> Transfers:
        nbytes = min(TRANSFER, self.caps.max_alloc_bytes // 4)
        device, host = self.buffer(nbytes), np.zeros(nbytes, np.uint8)
        small, few = self.buffer(4), np.zeros(4, np.uint8)
        copy, results = self.api.enqueue_copy, []
        for ends, tiny in (((device, host), (small, few)), ((host, device), (few, small))):
            copy(self.queue, *ends, is_blocking=True)
            seconds = [_clock(copy, self.queue, *ends) for _ in range(RUNS)]
            results.append(Measured.of([nbytes / s for s in seconds]))
            results.append(Measured.of([_clock(copy, self.queue, *tiny) for _ in range(LAUNCHES)]))
        return results[0], results[1], results[2], results[3]

    def launches(self) -> Launches:
        kernel = self.api.Kernel(self.program(T="float"), "nothing")
        target = self.buffer(4)
        kernel.set_args(target)

        def enqueue() -> None:
            self.api.enqueue_nd_range_kernel(self.queue, kernel, (1,), (1,))

        def many() -> None:
            for _ in range(LAUNCHES):
                enqueue()

        def wait_for_one() -> None:
            enqueue()
            self.queue.finish()

        wait_for_one()
        host, device = [], []
        for _ in range(RUNS):
            started = time.perf_counter()
            host.append(_clock(many) / LAUNCHES)
            self.queue.finish()
            device.append((time.perf_counter() - started) / LAUNCHES)
        return (Measured.of(host), Measured.of(device), Measured.of([_clock(wait_for_one) for _ in range(LAUNCHES)]))


def _clock(run: Callable[..., object], *args: object) -> float:
    started = time.perf_counter()
    run(*args)
    return time.perf_counter() - started

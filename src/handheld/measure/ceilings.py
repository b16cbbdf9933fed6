"""Measures what a device can do at most: arithmetic, memory, transfers, launches.

Rates of arithmetic and memory are medians of the faster half of several timings, with the range between
the quartiles of that half, because other work on the machine only makes a run slower. All times are
taken by the host's clock around kernels that run for milliseconds, so no driver's event timer has to be
trusted. Results are stored in the user's cache folder, per device and driver.
"""

from __future__ import annotations

import datetime
import hashlib
import itertools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from handheld import cache
from handheld.analyse.busy import disturbed
from handheld.backends.base import describe
from handheld.backends.opencl import devices as opencl_devices
from handheld.backends.opencl.programs import build
from handheld.backends.opencl.widen import texts_of
from handheld.device import DeviceCaps
from handheld.errors import DeviceError
from handheld.kernels.base import Arg, Buffer, Float, Int, Launch, with_defines
from handheld.measure.timing import Measured

if TYPE_CHECKING:
    import pyopencl as cl

VERSION = 1
RUN_SECONDS = 0.012  # Shortest timed run of a kernel.
RUNS = 9
SMALLEST, LARGEST = 16 << 10, 1 << 30  # Bytes of the working set.
APART = 2 << 20  # Reading this many bytes takes much longer than a launch.
TRANSFER = 64 << 20  # Bytes per transfer.
LAUNCHES = 200
#: Vector widths and sums per work-item that are tried for arithmetic. The best result counts.
WIDTHS, SUMS = ("", "4", "16"), (4, 8, 12)
#: The arguments of the kernels in ceilings.cl.
_MEMORY_ARGS: tuple[Arg, ...] = (Buffer(0), Buffer(1), *(Int(0) for _ in range(5)))
_ARGS: dict[str, tuple[Arg, ...]] = {
    "flops": (Buffer(0), Float(0), Float(0), Int(0)),
    "read": _MEMORY_ARGS,
    "copy": _MEMORY_ARGS,
    "nothing": (Buffer(0),),
}


@dataclass(frozen=True)
class Memory:
    """Bytes per second at a working set. A copy counts the bytes read and the bytes written."""

    working_set_bytes: int
    read: Measured
    copy: Measured


@dataclass(frozen=True)
class Ceilings:
    """Rates in FLOP/s (a multiply-add counts as two) and B/s, latencies in seconds."""

    device: str
    driver: str
    date: str
    measuring_s: float
    fp32: Measured
    fp32_type: str
    fp16: Measured | None
    memory: tuple[Memory, ...]
    to_device: Measured
    to_device_latency_s: Measured
    to_host: Measured
    to_host_latency_s: Measured
    #: Seconds of the host to enqueue a kernel; of the device for one empty kernel after another; and to
    #: enqueue one empty kernel and wait for it.
    launch_enqueue_s: Measured
    launch_device_s: Measured
    launch_round_trip_s: Measured
    #: Share of all processors that other processes used during the measurement; None if not known.
    others: float | None = None

    @property
    def disturbed(self) -> str:
        """Why the ceilings are probably too low, or ""."""
        return disturbed(self.others)

    @property
    def bandwidth(self) -> float:
        """Bytes per second from and to memory, beyond all caches."""
        return self.memory[-1].copy.median

    def to_json(self) -> dict[str, Any]:
        return {"handheld": "ceilings", "version": VERSION, **asdict(self)}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Ceilings:
        """Read the JSON form. Raises KeyError, TypeError or ValueError if the data is something else."""
        fields = dict(data)
        if fields.pop("handheld") != "ceilings" or fields.pop("version") != VERSION:
            raise ValueError("these are not the ceilings of a device, or they are of another version")
        memory = tuple(
            Memory(int(m["working_set_bytes"]), Measured(**m["read"]), Measured(**m["copy"]))
            for m in fields.pop("memory")
        )
        rest: dict[str, Any] = {k: Measured(**v) if isinstance(v, dict) else v for k, v in fields.items()}
        return Ceilings(memory=memory, **rest)


def ceilings(device: str = "opencl", fresh: bool = False) -> Ceilings:
    """The stored ceilings of a device. If there are none, or with `fresh`, they are measured now in some seconds."""
    known = None if fresh else stored(describe(device))
    return known or measure(device)


def path_of(caps: DeviceCaps) -> Path:
    known = f"{caps.name}\n{caps.driver}\n{caps.features}".rstrip("\n")
    key = hashlib.sha256(known.encode()).hexdigest()[:12]
    return cache.folder() / "ceilings" / f"{cache.slug(caps.name)}-{key}.json"


def stored(caps: DeviceCaps) -> Ceilings | None:
    """The stored ceilings, or None, also if the file cannot be read; the next measurement replaces it."""
    try:
        known = Ceilings.from_json(json.loads(path_of(caps).read_text(encoding="utf-8")))
    except (OSError, KeyError, TypeError, ValueError, AttributeError):
        return None
    return known if (known.device, known.driver) == (caps.name, caps.driver) else None


def measure(device: str, progress: Callable[[str, float], None] = lambda what, part: None) -> Ceilings:
    """Measure the ceilings and store them. `progress` gets the name of the next part and the share that is done."""
    if device.partition(":")[0] != "opencl":
        raise DeviceError(f"{device} has no ceilings. Try: --on opencl")
    started, before = time.perf_counter(), _processor_s()
    opened = OpenDevice(opencl_devices.find(device))
    caps = opened.caps
    progress("arithmetic", 0.0)
    fp32, kind = opened.flops("float")
    fp16 = opened.flops("half")[0] if caps.fp16 else None
    memory = []
    sizes = list(working_sets(caps))
    for i, size in enumerate(sizes):
        progress(f"memory, {size >> 10} KiB", 0.4 + 0.4 * i / len(sizes))
        memory.append(opened.memory(size))
    progress("transfers", 0.8)
    to_device, to_device_latency, to_host, to_host_latency = opened.transfers()
    progress("launches", 0.95)
    launches = opened.launches()
    result = Ceilings(
        caps.name,
        caps.driver,
        datetime.date.today().isoformat(),
        time.perf_counter() - started,
        fp32,
        kind,
        fp16,
        tuple(memory),
        to_device,
        to_device_latency,
        to_host,
        to_host_latency,
        *launches,
        _others(before),
    )
    cache.write_json(path_of(caps), result.to_json())
    return result


def _processor_s() -> tuple[float, float]:
    """Seconds of all processors so far, and the part of them that other processes used."""
    times = psutil.cpu_times()
    rest = times.idle + getattr(times, "iowait", 0.0)
    return sum(times[:8]), sum(times[:8]) - rest - time.process_time()  # User time includes guest time.


def _others(before: tuple[float, float]) -> float | None:
    total, others = (now - then for now, then in zip(_processor_s(), before, strict=True))
    return min(max(others / total, 0.0), 1.0) if total > 0 else None


def launch_latencies(device: str) -> tuple[Measured, Measured, Measured]:
    """Measure only the launches: seconds to enqueue one, to run one after another, and to enqueue and wait for one."""
    return OpenDevice(opencl_devices.find(device)).launches()


def working_sets(caps: DeviceCaps) -> Iterator[int]:
    """Working sets in powers of four, up to a quarter of the memory and to the largest buffer."""
    size = SMALLEST
    most = min(LARGEST, caps.global_mem_bytes // 4, caps.max_alloc_bytes)
    while size <= most:
        yield size
        size *= 4


class OpenDevice:
    """A device that is being measured. It gets few long work-items on a CPU, many on a GPU."""

    def __init__(self, device: opencl_devices.OpenCLDevice) -> None:
        self.api, self.caps = opencl_devices.opencl(), device.caps
        self.queue: cl.CommandQueue = self.api.CommandQueue(self.api.Context([device.device]))
        self.text = (Path(__file__).parent / "ceilings.cl").read_text(encoding="utf-8")
        on_cpu = self.caps.kind == "cpu"
        self.local = 1 if on_cpu else min(128, self.caps.max_work_group)
        self.items = self.caps.compute_units * (4 if on_cpu else 16 * self.local)
        self.vector = 16 if on_cpu else 4  # Floats that a work-item moves at once.

    def program(self, **defines: object) -> cl.Program:
        text = with_defines(dict(defines), self.text)
        launches = [
            Launch(name, text, args, (1,), (1,))
            for name, args in _ARGS.items()
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
        rates = sorted(per_round * rounds / _clock(run, rounds) for _ in range(RUNS))
        return Measured.of(rates[RUNS // 2 :])

    # ── arithmetic ────────────────────────────────────────────────────────────────────────────

    def flops(self, scalar: str) -> tuple[Measured, str]:
        """The best of several vector types and numbers of sums, and its type."""
        local = min(64, self.caps.max_work_group)
        items = local * self.caps.compute_units * (4 if self.caps.kind == "cpu" else 64)
        best, kind = Measured(0.0, 0.0), ""
        for width in WIDTHS:
            y = self.buffer(4 * items * int(width or 1))
            # The compiler of PoCL 3.0 crashes on an fma of 16 floats.
            ways = (False,) if width == "16" else (True, False)
            for sums, fused in itertools.product(SUMS, ways):
                options = {"FLOPS": 1, "T": scalar + width, "SCALAR": scalar, "WIDE": sums}
                options |= {"FUSED": 1} if fused else {}
                program = self.program(**options, **({"HALF": 1} if scalar == "half" else {}))
                kernel = self.api.Kernel(program, "flops")

                def run(rounds: int, kernel: cl.Kernel = kernel, y: cl.Buffer = y) -> None:
                    kernel.set_args(y, np.float32(0.5), np.float32(0.5), np.int32(rounds))
                    self._launch(kernel, items, local)

                rate = self._rates(run, 2.0 * 16 * sums * int(width or 1) * items)
                if rate.median > best.median:
                    best, kind = rate, scalar + width
            y.release()
        return best, kind

    def _launch(self, kernel: cl.Kernel, items: int, local: int) -> None:
        self.api.enqueue_nd_range_kernel(self.queue, kernel, (items,), (local,))
        self.queue.finish()

    # ── memory ────────────────────────────────────────────────────────────────────────────────

    def memory(self, nbytes: int) -> Memory:
        """A read covers the whole working set; a copy goes from one half of it to the other."""
        program = self.program(T=f"float{self.vector}")
        out = self.buffer(4 * self.vector * self.items)
        x, y = self.buffer(nbytes), self.buffer(nbytes // 2)
        read = self._walk(self.api.Kernel(program, "read"), x, out, nbytes)
        copy = self._walk(self.api.Kernel(program, "copy"), x, y, nbytes // 2)
        for buffer in (out, x, y):
            buffer.release()
        return Memory(nbytes, read, copy)

    def _walk(self, kernel: cl.Kernel, x: cl.Buffer, y: cl.Buffer, nbytes: int) -> Measured:
        count = nbytes // (4 * self.vector)  # Elements.
        copies = kernel.function_name == "copy"
        if self.local == 1:
            items = min(self.items, count // 16)
            part = 1 << (count // items).bit_length() - 1
            walk = (part, 0, 1, part - 1)
        else:  # No two items may write the same element.
            items = min(self.items, max(count // self.local, 1) * self.local if copies else 2**31)
            walk = (0, 1, items, count - 1)

        at_once = 4 * items  # Elements per round.
        # A run that covers less than the working set would measure a smaller working set.
        least = max(count // at_once, 1)
        # A CPU finishes one item before the next. If each item repeated its own part, the cache would hold it.
        apart = self.local == 1 and nbytes >= APART

        def run(rounds: int) -> None:
            times, each = (rounds // least, least) if apart else (1, rounds)
            kernel.set_args(x, y, *(np.uint32(n) for n in (*walk, each)))
            for _ in range(times):
                self.api.enqueue_nd_range_kernel(self.queue, kernel, (items,), (self.local,))
            self.queue.finish()

        return self._rates(run, 4.0 * self.vector * at_once * (1 + copies), least)

    # ── transfers and launches ────────────────────────────────────────────────────────────────

    def transfers(self) -> tuple[Measured, Measured, Measured, Measured]:
        """To the device and back: bytes per second, and the seconds of a transfer of four bytes."""
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

    def launches(self) -> tuple[Measured, Measured, Measured]:
        """Seconds per launch: to enqueue it, to run it after another, and to enqueue it and wait for it."""
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

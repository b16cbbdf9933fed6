"""What is measured of a device for its ceilings, whoever runs the kernels.

open_device.py     an OpenCL device of this process, timed by the host's clock
target_device.py   a device that a runner serves, timed by the clock of its own machine
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from handheld.device import DeviceCaps
from handheld.kernels.base import Arg, Buffer, Float, Int, with_defines
from handheld.measure.timing import Measured

RUN_SECONDS = 0.012  # Shortest timed run of a kernel.
RUNS = 9
APART = 2 << 20  # Reading this many bytes takes much longer than a launch.
TRANSFER = 64 << 20  # Bytes per transfer.
LAUNCHES = 200
#: Vector widths and sums per work-item that are tried for arithmetic. The best result counts.
WIDTHS, SUMS = ("", "4", "16"), (4, 8, 12)
#: The arguments of the kernels in ceilings.cl.
_MEMORY_ARGS: tuple[Arg, ...] = (Buffer(0), Buffer(1), *(Int(0) for _ in range(5)))
ARGS: dict[str, tuple[Arg, ...]] = {
    "flops": (Buffer(0), Float(0), Float(0), Int(0)),
    "read": _MEMORY_ARGS,
    "copy": _MEMORY_ARGS,
    "nothing": (Buffer(0),),
}

#: Bandwidth and latency to the device, then to the host.
Transfers = tuple[Measured, Measured, Measured, Measured]
#: Seconds to enqueue a launch, to run one after another, and to enqueue one and wait for it.
Launches = tuple[Measured, Measured, Measured]


@dataclass(frozen=True)
class Memory:
    """Bytes per second at a working set. A copy counts the bytes read and the bytes written."""

    working_set_bytes: int
    read: Measured
    copy: Measured


@dataclass(frozen=True)
class Walk:
    """How work-items go through memory: the kernel, the bytes of x and y, the items, and their numbers own, shift, step
    and mask (ceilings.cl). A run has at least `least` rounds, each of `per_round` bytes. With `apart`, more rounds are
    more launches."""

    kernel: str
    of_x: int
    of_y: int
    items: int
    numbers: tuple[int, int, int, int]
    least: int
    apart: bool
    per_round: float


class Measurable(ABC):
    """A device that is being measured. It gets few long work-items on a CPU, many on a GPU."""

    def __init__(self, caps: DeviceCaps) -> None:
        self.caps = caps
        self.text = (Path(__file__).parent / "ceilings.cl").read_text(encoding="utf-8")
        on_cpu = self.caps.kind == "cpu"
        self.local = 1 if on_cpu else min(128, self.caps.max_work_group)
        self.items = self.caps.compute_units * (4 if on_cpu else 16 * self.local)
        self.vector = 16 if on_cpu else 4  # Floats that a work-item moves at once.

    def source(self, **defines: object) -> str:
        """The text of ceilings.cl with these defines."""
        return with_defines(dict(defines), self.text)

    @abstractmethod
    def flops_rate(self, options: dict[str, object], items: int, local: int, width: int, per_round: float) -> Measured:
        """The rate of the kernel `flops` built with these options."""

    @abstractmethod
    def walk_rate(self, walk: Walk) -> Measured:
        """The rate of one walk through memory."""

    @abstractmethod
    def transfers(self) -> Transfers:
        """To the device and back: bytes per second, and the seconds of a transfer of four bytes."""

    @abstractmethod
    def launches(self) -> Launches:
        """Seconds per launch: to enqueue it, to run it after another, and to enqueue it and wait for it."""

    def close(self) -> None:  # noqa: B027 - not every device has something to give back
        """Ends the measurement."""

    def flops(self, scalar: str) -> tuple[Measured, str]:
        """The best of several vector types and numbers of sums, and its type."""
        local = min(64, self.caps.max_work_group)
        items = local * self.caps.compute_units * (4 if self.caps.kind == "cpu" else 64)
        best, kind = Measured(0.0, 0.0), ""
        for width in WIDTHS:
            # The compiler of PoCL 3.0 crashes on an fma of 16 floats.
            ways = (False,) if width == "16" else (True, False)
            for sums, fused in itertools.product(SUMS, ways):
                options: dict[str, object] = {"FLOPS": 1, "T": scalar + width, "SCALAR": scalar, "WIDE": sums}
                options |= {"FUSED": 1} if fused else {}
                options |= {"HALF": 1} if scalar == "half" else {}
                rate = self.flops_rate(
                    options, items, local, int(width or 1), 2.0 * 16 * sums * int(width or 1) * items
                )
                if rate.median > best.median:
                    best, kind = rate, scalar + width
        return best, kind

    def memory(self, nbytes: int) -> Memory:
        """A read covers the whole working set; a copy goes from one half of it to the other."""
        read = self.walk_rate(self._walk("read", nbytes, 4 * self.vector * self.items, nbytes))
        copy = self.walk_rate(self._walk("copy", nbytes, nbytes // 2, nbytes // 2))
        return Memory(nbytes, read, copy)

    def _walk(self, kernel: str, of_x: int, of_y: int, nbytes: int) -> Walk:
        count = nbytes // (4 * self.vector)  # Elements.
        copies = kernel == "copy"
        if self.local == 1:
            items = min(self.items, count // 16)
            part = 1 << (count // items).bit_length() - 1
            numbers = (part, 0, 1, part - 1)
        else:  # No two items may write the same element.
            items = min(self.items, max(count // self.local, 1) * self.local if copies else 2**31)
            numbers = (0, 1, items, count - 1)
        at_once = 4 * items  # Elements per round.
        # A run that covers less than the working set would measure a smaller working set.
        least = max(count // at_once, 1)
        # A CPU finishes one item before the next. If each item repeated its own part, the cache would hold it.
        apart = self.local == 1 and nbytes >= APART
        return Walk(kernel, of_x, of_y, items, numbers, least, apart, 4.0 * self.vector * at_once * (1 + copies))


def fastest(rates: list[float]) -> Measured:
    """The faster half of several timings, because other work on the machine only makes a run slower."""
    return Measured.of(sorted(rates)[len(rates) // 2 :])

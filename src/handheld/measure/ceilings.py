"""Measures what a device can do at most: arithmetic, memory, transfers, launches.

Rates of arithmetic and memory are medians of the faster half of several timings, with the range between
the quartiles of that half, because other work on the machine only makes a run slower (measurable.py).
Results are stored in the user's cache folder, per device and driver.
"""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from handheld import cache
from handheld.analyse.busy import disturbed
from handheld.backends.base import describe
from handheld.backends.opencl import devices as opencl_devices
from handheld.device import DeviceCaps, takes_launches
from handheld.errors import DeviceError
from handheld.measure.measurable import Launches, Measurable, Memory
from handheld.measure.open_device import OpenDevice
from handheld.measure.target_device import TargetDevice
from handheld.measure.timing import Measured
from handheld.targets.names import is_target

VERSION = 1
SMALLEST, LARGEST = 16 << 10, 1 << 30  # Bytes of the working set.


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
    return cache.folder() / "ceilings" / f"{cache.slug(caps.name)}-{caps.fingerprint}.json"


def stored(caps: DeviceCaps) -> Ceilings | None:
    """The stored ceilings, or None, also if the file cannot be read; the next measurement replaces it."""
    try:
        known = Ceilings.from_json(json.loads(path_of(caps).read_text(encoding="utf-8")))
    except (OSError, KeyError, TypeError, ValueError, AttributeError):
        return None
    return known if (known.device, known.driver) == (caps.name, caps.driver) else None


def measure(device: str, progress: Callable[[str, float], None] = lambda what, part: None) -> Ceilings:
    """Measure the ceilings and store them. `progress` gets the name of the next part and the share that is done."""
    if not takes_launches(device):
        raise DeviceError(f"{device} has no ceilings. Try: --on opencl")
    opened = _open(device)
    try:
        return _measured(device, opened, progress)
    finally:
        opened.close()


def _open(device: str) -> Measurable:
    return TargetDevice(device) if is_target(device) else OpenDevice(opencl_devices.find(device))


def _measured(device: str, opened: Measurable, progress: Callable[[str, float], None]) -> Ceilings:
    started, before, caps = time.perf_counter(), _processor_s(), opened.caps
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
        None if is_target(device) else _others(before),  # The load of this machine says nothing about another.
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


def launch_latencies(device: str) -> Launches:
    """Measure only the launches: seconds to enqueue one, to run one after another, and to enqueue and wait for one."""
    opened = _open(device)
    try:
        return opened.launches()
    finally:
        opened.close()


def working_sets(caps: DeviceCaps) -> Iterator[int]:
    """Working sets in powers of four, up to a quarter of the memory and to the largest buffer."""
    size = SMALLEST
    most = min(LARGEST, caps.global_mem_bytes // 4, caps.max_alloc_bytes)
    while size <= most:
        yield size
        size *= 4

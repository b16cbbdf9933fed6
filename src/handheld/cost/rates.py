"""What a device can do at most, as predictions need it: arithmetic, memory by working set, launches, transfers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from handheld.cost.work import Work
from handheld.store.record import Record

#: Used if launches and transfers were not measured. They are typical of OpenCL on a small device.
LAUNCH_S, ENQUEUE_S, LATENCY_S = 5e-6, 5e-6, 2e-5


@dataclass(frozen=True)
class Rates(Record):
    """Rates in FLOP/s and B/s, latencies in seconds. `memory` has (working set in bytes, B/s), the smallest first."""

    flops: float
    memory: tuple[tuple[int, float], ...]
    launch_s: float = LAUNCH_S
    enqueue_s: float = ENQUEUE_S
    transfer_bytes_s: float = 0.0
    latency_s: float = LATENCY_S
    #: `measured`, or where the figures of a description come from.
    source: str = "measured"

    @property
    def bandwidth(self) -> float:
        """Bytes per second beyond all caches."""
        return self.memory[-1][1]

    def bytes_s(self, working_set: float) -> float:
        """Bytes per second at a working set, on a straight line between the known ones (both as logarithms)."""
        before = self.memory[0]
        for size, rate in self.memory:
            if working_set <= size:
                if size == before[0]:
                    return rate
                part = math.log(working_set / before[0]) / math.log(size / before[0])
                return before[1] * math.pow(rate / before[1], part)
            before = (size, rate)
        return before[1]

    def least_s(self, work: Work) -> float:
        """The least time of an op: its arithmetic or its bytes, whichever takes longer, and its launches."""
        return self.arithmetic_s(work) + work.launches * self.launch_s

    def arithmetic_s(self, work: Work) -> float:
        return max(work.flops / self.flops, work.bytes / self.bytes_s(max(work.bytes, 1)))

    def bound(self, work: Work) -> str:
        """What limits an op at the least: `compute`, `memory` or `launches`."""
        compute, memory = work.flops / self.flops, work.bytes / self.bytes_s(max(work.bytes, 1))
        if work.launches * self.launch_s > max(compute, memory):
            return "launches"
        return "compute" if compute > memory else "memory"

    @staticmethod
    def from_ceilings(data: Mapping[str, Any], source: str = "measured") -> Rates:
        """From the JSON form of measured ceilings (measure/ceilings.py). Raises KeyError, TypeError or ValueError."""
        memory = tuple((int(level["working_set_bytes"]), float(level["copy"]["median"])) for level in data["memory"])
        return Rates(
            flops=_positive(data["fp32"]["median"]),
            memory=tuple((size, _positive(rate)) for size, rate in memory),
            launch_s=float(data["launch_device_s"]["median"]),
            enqueue_s=float(data["launch_enqueue_s"]["median"]),
            transfer_bytes_s=float(data["to_device"]["median"]),
            latency_s=float(data["to_device_latency_s"]["median"]),
            source=source,
        )

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Rates:
        """The inverse of `to_json`. Raises KeyError, TypeError or ValueError."""
        fields = dict(data)
        fields["memory"] = tuple((int(size), _positive(rate)) for size, rate in fields["memory"])
        if not fields["memory"]:
            raise ValueError("there is no bandwidth of memory")
        _positive(fields["flops"])
        return Rates(**fields)


def _positive(value: Any) -> float:
    if not math.isfinite(value) or value <= 0:
        raise ValueError(f"{value!r} is not a rate")
    return float(value)

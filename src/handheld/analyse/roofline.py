"""What a device could do at most, and what limits an op: arithmetic, memory, or its launches.

The least time of an op is the longest of three: its floating-point operations at the peak rate, its bytes at the
bandwidth that the device has for a working set of that size, and its launches at the time of an empty one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from handheld.analyse.ops import OpTime
from handheld.store.record import Record
from handheld.store.rows import Op

#: An op is limited by its launches if it takes at most this many times as long as empty launches, and its work less.
NEAR_EMPTY = 2.0


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The measured peak rates of a device: FLOP/s, B/s and seconds."""

    flops: float
    bytes_s: float  # beyond all caches
    levels: tuple[tuple[float, float], ...] = ()  # (working set in bytes, B/s), rising
    launch_s: float | None = None  # one empty launch after another

    @staticmethod
    def of(stored: Mapping[str, Any] | None) -> Ceiling | None:
        """The ceilings as a run file stores them. None if there are none. Older files have fewer values."""
        if not stored or not stored.get("flops") or not stored.get("bytes_s"):
            return None
        levels = sorted((float(size), float(rate)) for size, rate in stored.get("memory") or ())
        launch = stored.get("launch_device_s")
        return Ceiling(float(stored["flops"]), float(stored["bytes_s"]), tuple(levels), launch and float(launch))

    def bandwidth(self, nbytes: float) -> float:
        """Bytes per second for a working set of this size."""
        if not self.levels:
            return self.bytes_s
        sizes, rates = zip(*self.levels, strict=True)
        return float(np.interp(np.log2(max(nbytes, 1.0)), np.log2(sizes), rates))

    def least_ms(self, op: Op, scale: float = 1.0) -> Least:
        """The least time of an op, or of one with `scale` times its work and as many launches."""
        return Least(
            compute=scale * op.flops / self.flops * 1e3,
            memory=scale * op.bytes / self.bandwidth(scale * op.bytes) * 1e3,
            launches=op.launches * (self.launch_s or 0.0) * 1e3,
        )


@dataclass(frozen=True, slots=True)
class Least:
    """The least time of an op in ms, by each limit."""

    compute: float
    memory: float
    launches: float

    @property
    def work(self) -> float:
        return max(self.compute, self.memory)

    @property
    def ms(self) -> float:
        return max(self.work, self.launches)


@dataclass(frozen=True, slots=True)
class OpBound(Record):
    """What limits one op, and the share of its time that its arithmetic or its bytes would need at the ceilings."""

    id: int
    limit: str  # compute, memory or launches
    ms: float
    least_ms: float
    reached: float


def op_bounds(ops: Sequence[OpTime], ceiling: Ceiling) -> list[OpBound]:
    """One row per timed op."""
    rows = []
    for op in ops:
        if op.mean_ms is None:
            continue
        least = ceiling.least_ms(op)
        limit = "compute" if least.compute > least.memory else "memory"
        if least.launches > least.work and op.mean_ms <= NEAR_EMPTY * least.launches:
            limit = "launches"
        rows.append(OpBound(op.id, limit, op.mean_ms, least.work, least.work / op.mean_ms if op.mean_ms else 0.0))
    return rows

"""The time and memory of a step at a larger batch, from one run.

On a GPU an op starts, and then its work-groups run on the compute units. With G groups per unit, the time after the
start is as that of G + 1 groups one after another: a few groups take as long as one, many take their number. So an op
that does not fill the device is nearly free to grow, one that fills it grows with the batch, whatever share of the
ceilings its kernel reaches. What no longer fits into a cache takes longer. The start is the time of an empty launch, or
that of the shortest op if it took less. The host works meanwhile, so the slower of device and host decides.

On a CPU the work of an op grows at the rate of the best ops of its kind in this run, or in proportion; the promise lies
between.

Updates do not depend on the batch. Uploads of inputs grow with it.

On the H200, for 75 pairs of runs of eight models at 2 to 16 times the batch, the predicted step was off by 5% in the
median, and by 7% too short and 54% too long in the worst cases; 68 of them were within the range, 7 gained more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from handheld.analyse.ops import OpTime
from handheld.analyse.roofline import NEAR_EMPTY, Ceiling
from handheld.analyse.rules.base import batch_of

if TYPE_CHECKING:
    from handheld.analyse.run import Run

#: The range of a real step on a GPU, as factors of the predicted one: 90% of the pairs.
SHORTER, LONGER = 0.8, 1.1
TOWARDS_LINEAR = 2 / 3  # on a CPU, where the promise lies between the two models of growth, as logarithms
SMALL = 8.0  # On a CPU, ops of at most this many empty launches do not grow in the best case.
ERROR = 1.3  # The error of the rule itself on a CPU, beyond that of the rates.
BEST = 90  # percentile, by time, of the ops of a kind
MOST_BATCH = 1024
MOST_TIMES = {"gpu": 16, "cpu": 4}  # Small ops that only launch may grow by 16 on a CPU too.
WORTH = 0.08  # A doubling must save this share of the time per sample.
ROOM = 0.8  # share of the device's memory that a plan may take
FIXED_MEMORY = ("parameter", "optimizer state", "buffer", "other")


@dataclass(frozen=True, slots=True)
class Grown:
    """A step at `times` the batch: ms, the best and the worst case, and its memory."""

    times: int
    batch: int
    ms: float
    low_ms: float
    high_ms: float
    bytes: int


@dataclass(frozen=True, slots=True)
class Growth:
    """How the step of a run grows with its batch."""

    batch: int
    step_ms: float
    idle_ms: float
    upload_ms: float  # the part of idle_ms that grows with the batch
    gpu: bool
    units: int  # compute units
    groups: Mapping[int, int]  # the work-groups of ops; those of older runs are not known
    ops: tuple[OpTime, ...]
    ceiling: Ceiling
    fixed_bytes: int
    batch_bytes: int

    @staticmethod
    def of(run: Run) -> Growth | None:
        """None if the run does not say enough: it needs ceilings, recorded steps and a batch."""
        ceiling, step_ms = Ceiling.of(run.meta.get("ceilings")), run.step_ms()[0]
        ops = tuple(row for row in run.ops() if row.graph == run.graph and row.ms)
        if ceiling is None or not ops or not step_ms or not batch_of(run):
            return None
        summary = run.memory_summary()
        alive = next((row.live for row in run.op_rows if row.id == summary.peak_op), {})
        fixed = sum(alive.get(name, 0) for name in FIXED_MEMORY)
        peak = summary.peak_bytes or 0
        caps = run.meta.get("caps") or {}
        gpu, units = caps.get("kind") == "gpu", int(caps.get("compute_units") or 1)
        groups = {int(op): int(count) for op, (_, count, _) in (run.meta.get("launch_sizes") or {}).items()}
        # Recorded steps may have been longer than the others.
        idle, upload = (min(part, step_ms) for part in _idle(run, step_ms))
        moving = max(peak - fixed, 0)
        return Growth(batch_of(run), step_ms, idle, upload, gpu, units, groups, ops, ceiling, fixed, moving)

    def at(self, times: int) -> Grown:
        ms, low, high = self._on_gpu(times) if self.gpu else self._on_cpu(times)
        ms, low = max(ms, self.step_ms), max(low, self.step_ms)
        return Grown(times, times * self.batch, ms, low, max(high, ms), self.fixed_bytes + times * self.batch_bytes)

    @property
    def _scale(self) -> float:
        """Recorded ops may take longer than others."""
        return (self.step_ms - self.idle_ms) / sum(row.ms or 0.0 for row in self.ops)

    def _on_gpu(self, times: int) -> tuple[float, float, float]:
        shortest = min((row.ms or 0.0) / max(row.launches, 1) for row in self.ops)
        start = min(shortest, (self.ceiling.launch_s or 0.0) * 1e3)
        busy = self._scale * sum(self._filled(row, times, start) for row in self.ops)
        # In the worst case the device goes on waiting as long as now.
        waiting = busy + self.idle_ms + (times - 1) * self.upload_ms
        ms = max(busy + times * self.upload_ms, self.step_ms)
        return ms, SHORTER * ms, max(LONGER * ms, waiting)

    def _filled(self, row: OpTime, times: int, start: float) -> float:
        """The time of an op on a GPU. One whose groups are not known counts as one that fills the device."""
        ms = row.ms or 0.0
        if row.phase == "update":
            return ms
        fixed = min(ms, start * row.launches)
        groups = self.groups.get(row.id)
        more = (times * groups + self.units) / (groups + self.units) if groups else float(times)
        return fixed + more * self._colder(row, times) * (ms - fixed)

    def _on_cpu(self, times: int) -> tuple[float, float, float]:
        # Kernels on a CPU are hardly faster with more work; only what they start with is spread.
        idle, scale = self.idle_ms + (times - 1) * self.upload_ms, self._scale
        best = {kind: _best([row for row in self.ops if row.op == kind], self.ceiling) for kind in self._kinds()}
        low = scale * sum(self._at_best(row, times, best[row.op]) for row in self.ops) + idle
        high = self._linear(times, scale) + idle
        low, high = min(low, high), max(low, high)
        ms = low ** (1 - TOWARDS_LINEAR) * high**TOWARDS_LINEAR
        return ms, min(low, ms / ERROR), max(high, ms * ERROR)

    def _kinds(self) -> set[str]:
        return {row.op for row in self.ops}

    def _at_best(self, row: OpTime, times: int, best: float) -> float:
        ms = row.ms or 0.0
        if row.phase == "update":
            return ms
        now, then = self.ceiling.least_ms(row), self.ceiling.least_ms(row, times)
        if self._empty(row, SMALL):
            return ms + then.work - now.work
        needs = [least.work / max(best, 1e-9) for least in (now, then)]
        return min(times * ms, ms - min(ms, needs[0]) + needs[1])

    def _colder(self, row: OpTime, times: int) -> float:
        """How much longer the bytes of an op that memory limits take, because they no longer fit into a cache."""
        now, then = self.ceiling.least_ms(row), self.ceiling.least_ms(row, times)
        return max(then.memory / (times * now.memory), 1.0) if now.memory > now.compute else 1.0

    def _linear(self, times: int, scale: float) -> float:
        """All work grows with the batch, except updates and empty launches. What no longer fits into a cache takes
        longer."""
        total = 0.0
        for row in self.ops:
            ms = row.ms or 0.0
            fixed = ms if row.phase == "update" or self._empty(row) else min(ms, self.ceiling.least_ms(row).launches)
            total += fixed + times * self._colder(row, times) * (ms - fixed)
        return scale * total

    def _empty(self, row: OpTime, near: float = NEAR_EMPTY) -> bool:
        """Whether an op takes hardly longer than its empty launches."""
        return (row.ms or 0.0) <= near * self.ceiling.least_ms(row).launches

    def larger(self, memory_bytes: int | None) -> Grown | None:
        """The largest batch that fits into the memory and for which each doubling is worth it, or None."""
        chosen, before, times = None, self.step_ms, 2
        empty = sum(row.ms or 0.0 for row in self.ops if self._empty(row)) + self.idle_ms
        most = MOST_TIMES["gpu" if self.gpu or empty > 0.5 * self.step_ms else "cpu"]
        while times <= most and times * self.batch <= MOST_BATCH:
            grown = self.at(times)
            each = grown.ms / times
            if each > (1 - WORTH) * before or (memory_bytes and grown.bytes > ROOM * memory_bytes):
                break
            chosen, before, times = grown, each, 2 * times
        return chosen


def _idle(run: Run, step_ms: float) -> tuple[float, float]:
    """The time of a step in which no kernel runs, and the part of it in which inputs are uploaded. Recording makes the
    device wait longer, so the difference to other steps is waiting; if other processes make all steps longer, all parts
    are longer alike."""
    parts = run.parts()
    if parts is None:
        return 0.0, 0.0
    kernels = parts.forward + parts.backward + parts.update
    idle = max(parts.ms - kernels - max(parts.ms - step_ms, 0.0), 0.0)
    scale = step_ms / (kernels + idle)
    return idle * scale, min(parts.upload, idle) * scale


def _best(rows: Sequence[OpTime], ceiling: Ceiling) -> float:
    """The share of the ceiling that the best ops of a kind reach, weighted by their time."""
    reached = sorted((ceiling.least_ms(row).work / row.ms, row.ms) for row in rows if row.ms)
    ends = np.cumsum([ms for _, ms in reached])
    return float(reached[int(np.searchsorted(ends, BEST / 100 * ends[-1]))][0])


def memory_of(run: Run) -> int | None:
    """The memory in bytes that the step may take: that of the device, or the run's own limit if that is less. None if
    the run says neither."""
    known = (run.meta.get("caps") or {}).get("global_mem_bytes")
    limit = (run.meta.get("plan_options") or {}).get("memory_limit_bytes")
    return min((int(nbytes) for nbytes in (known, limit) if nbytes), default=None)

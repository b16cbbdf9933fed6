"""The time and memory of a step at a larger batch, from one run.

An op takes the time that its work needs at the rate that the device reaches when it is full, and the rest is fixed:
launching, starting, filling the device. Full means the rate of the best ops of the same kind in this run. A GPU that
is not full does better: at least FULL of its ceilings. Updates do not depend on the batch. Uploads of inputs grow with
it. The time in which the device otherwise waits is fixed; in the best case it disappears behind the work.

On the H200, for 75 pairs of runs of eight models at 2 to 16 times the batch, the predicted step was off by 5% in the
median, and by 13% too short and 40% too long in the worst cases; 71 of them were within the range. The constants were
chosen on these runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from handheld.analyse.ops import OpTime
from handheld.analyse.roofline import NEAR_EMPTY, Ceiling
from handheld.analyse.rules.base import batch_of

if TYPE_CHECKING:
    from handheld.analyse.run import Run

#: The shares of the ceilings of arithmetic and memory that kernels reach on a full GPU: usual, and for a range.
FULL, FULL_LOW, FULL_HIGH = (0.3, 0.4), (0.2, 0.3), (0.4, 0.6)
TOWARDS_LINEAR = 2 / 3  # on a CPU, where the promise lies between the two models of growth, as logarithms
SMALL = 8.0  # On a CPU, ops of at most this many empty launches do not grow in the best case.
ERROR = {"gpu": 1.25, "cpu": 1.3}  # The error of the rule itself, beyond that of the rates.
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
        gpu = (run.meta.get("caps") or {}).get("kind") == "gpu"
        # Recorded steps may have been longer than the others.
        idle, upload = (min(part, step_ms) for part in _idle(run, step_ms))
        return Growth(batch_of(run), step_ms, idle, upload, gpu, ops, ceiling, fixed, max(peak - fixed, 0))

    def at(self, times: int) -> Grown:
        busy = sum(row.ms or 0.0 for row in self.ops)
        scale = (self.step_ms - self.idle_ms) / busy
        best = {kind: _best([row for row in self.ops if row.op == kind], self.ceiling) for kind in self._kinds()}

        def total(full: tuple[float, float], near: float = NEAR_EMPTY) -> float:
            return scale * sum(self._op(row, times, best[row.op], full, near) for row in self.ops)

        idle = self.idle_ms + (times - 1) * self.upload_ms
        if self.gpu:
            ms, low, high = total(FULL) + idle, total(FULL_HIGH), total(FULL_LOW) + idle
        else:
            # Kernels on a CPU are hardly faster with more work; only what they start with is spread.
            low, high = total((0.0, 0.0), SMALL) + idle, self._linear(times, scale) + idle
            low, high = min(low, high), max(low, high)
            ms = low ** (1 - TOWARDS_LINEAR) * high**TOWARDS_LINEAR
        error = ERROR["gpu" if self.gpu else "cpu"]
        low, high = min(low, ms / error), max(high, ms * error)
        ms, low = max(ms, self.step_ms), max(low, self.step_ms)
        return Grown(times, times * self.batch, ms, low, max(high, ms), self.fixed_bytes + times * self.batch_bytes)

    def _kinds(self) -> set[str]:
        return {row.op for row in self.ops}

    def _op(self, row: OpTime, times: int, best: float, full: tuple[float, float], near: float) -> float:
        ms = row.ms or 0.0
        if row.phase == "update":
            return ms
        now, then = self.ceiling.least_ms(row), self.ceiling.least_ms(row, times)
        # On a GPU even an op that is near an empty launch now needs its time once its work is larger.
        if not self.gpu and self._empty(row, near):
            return ms + then.work - now.work
        needs = [
            max(least.compute / max(best, full[0], 1e-9), least.memory / max(best, full[1], 1e-9))
            for least in (now, then)
        ]
        return min(times * ms, ms - min(ms, needs[0]) + needs[1])

    def _linear(self, times: int, scale: float) -> float:
        """All work grows with the batch, except updates and empty launches. What no longer fits into a cache takes
        longer."""
        total = 0.0
        for row in self.ops:
            ms, now, then = row.ms or 0.0, self.ceiling.least_ms(row), self.ceiling.least_ms(row, times)
            fixed = ms if row.phase == "update" or self._empty(row) else min(ms, now.launches)
            colder = max(then.memory / (times * now.memory), 1.0) if now.memory > now.compute else 1.0
            total += fixed + times * colder * (ms - fixed)
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
    """The memory of the device in bytes, if the run says so."""
    known = (run.meta.get("caps") or {}).get("global_mem_bytes")
    return int(known) if known else None

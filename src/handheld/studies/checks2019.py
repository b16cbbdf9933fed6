"""What the findings of the 2019 study share: all thresholds, a check, and the words for figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

MOST = 0.75  # of the workloads
LOW, HIGH = 4, 64  # the paper's batches; else the smallest and the largest, at least LEAST_SPAN×
LEAST_SPAN = 4
NEAR_FULL = 0.9  # a device that is busy "near 100%"
CORE_MOST = 0.6  # of a core's time
AGAINST = -0.2  # a correlation below it is a movement against each other
FORETOLD = 0.1  # error of a prediction, as a share, that makes it one
GROWS = 0.01  # of a share, at least, for growth
CPU_CHANGE = 0.05  # of a share: more is a change
CORES_DIFFER = 0.1  # of a share between kinds of cores
RECURRENT_SHARE = 0.5  # of the vision models' load, at most
GPU_OF_CPU, GPU_OF_MEMORY = 2.0, 1.2  # the paper has 4× and 2×; what is above these is "far more"
RISES = 1.1  # throughput
BY_EYE = "shown by eye, no figure"
IS_CPU = "the OpenCL device is the CPU"

Row = dict[str, Any]


@dataclass(frozen=True)
class Check:
    """One thing that a finding says. `holds` is None where it could not be measured: `why`."""

    what: str
    paper: str
    here: str
    holds: bool | None
    why: str = ""


def by_workload(rows: Iterable[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda one: one["batch"]):
        found.setdefault(row["workload"], []).append(row)
    return found


def ends(rows: Sequence[Row], has: Callable[[Row], Any]) -> dict[str, tuple[Row, Row]]:
    """Of each workload the runs at the paper's two batches, or at the smallest and the largest
    that are at least LEAST_SPAN times apart."""
    found = {}
    for name, mine in by_workload(row for row in rows if has(row) is not None).items():
        by = {row["batch"]: row for row in mine}
        low, high = (LOW, HIGH) if {LOW, HIGH} <= by.keys() else (min(by), max(by))
        if high >= LEAST_SPAN * low:
            found[name] = (by[low], by[high])
    return found


def largest_batches(rows: Sequence[Row]) -> list[Row]:
    """Of each workload the run at the largest batch."""
    return [mine[-1] for mine in by_workload(rows).values()]


def most(hits: dict[str, bool]) -> bool | None:
    return sum(hits.values()) >= MOST * len(hits) if hits else None


def not_for(hits: dict[str, bool]) -> str:
    """Those for which it does not hold."""
    wrong = [name for name, hit in hits.items() if not hit]
    if not wrong:
        return ""
    return f" (not: {', '.join(wrong[:6])}{', …' if len(wrong) > 6 else ''})"


def span(values: Sequence[float], form: str = "{:.3g}", unit: str = "") -> str:
    low, high = form.format(min(values)), form.format(max(values))
    return f"{low}{unit}" if low == high else f"{low}–{high}{unit}"


def percent(values: Sequence[float]) -> str:
    return span([100 * v for v in values], "{:.0f}", "%")


def batches_of(pairs: dict[str, tuple[Row, Row]]) -> str:
    spans = sorted({(low["batch"], high["batch"]) for low, high in pairs.values()})
    return ", ".join(f"{low}→{high}" for low, high in spans)


def no_pair(rows: Sequence[Row], what: str) -> str:
    return f"{what} at two batches {LEAST_SPAN}× apart, of at least one workload, is not there"


def is_gpu(rows: Sequence[Row]) -> bool:
    return any(row["gpu"] for row in rows)


def no_gpu(what: str, paper: str, rows: Sequence[Row], here: str = "") -> Check:
    return Check(what, paper, here, None, IS_CPU if rows else "nothing was measured")


def mean_cpu(row: Row) -> float | None:
    busy = [core["busy"] for core in row["cores"] if core["busy"] is not None]
    return float(np.mean(busy)) if busy else None


def foretold(one: Row) -> bool:
    """Within reach; and where a pattern is claimed no worse than without looking for one."""
    better = "steps_each" in one or one["error"] <= one["naive"] + GROWS
    return bool(one["error"] <= FORETOLD and better)


def hits_of(found: Sequence[Row]) -> str:
    return f"foretold in {sum(map(foretold, found))} of {len(found)} runs"

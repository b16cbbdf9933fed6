"""What the findings of the 2019 study share: all thresholds, the class of a check, and texts for figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from handheld.units import count

MOST = 0.75  # A claim about many workloads holds if it holds for this share of them.
LOW, HIGH = 4, 64  # The paper's batches; else the smallest and the largest, at least LEAST_SPAN× apart.
LEAST_SPAN = 4
NEAR_FULL = 0.9  # From this share on, a device is busy "near 100%".
CORE_MOST = 0.6  # Largest busy share of a core.
AGAINST = -0.2  # Below this correlation, two loads move against each other.
FORETOLD = 0.1  # Largest relative error of a prediction that counts as right.
GROWS = 0.01  # Smallest increase of a share that counts as growth.
CPU_CHANGE = 0.05  # A larger difference of shares counts as a change.
CORES_DIFFER = 0.1  # Smallest difference of shares between kinds of cores.
RECURRENT_SHARE = 0.5  # Largest load of recurrent models relative to vision models.
GPU_OF_CPU, GPU_OF_MEMORY = 2.0, 1.2  # The paper has 4× and 2×; above these limits it is "far more".
RISES = 1.1  # Smallest factor by which throughput rises.
BY_EYE = "shown by eye, without a figure"
IS_CPU = "the OpenCL device is the CPU"

Row = dict[str, Any]


@dataclass(frozen=True)
class Check:
    """One claim of a finding. `holds` is None if it could not be measured, and then `why` says why."""

    what: str
    paper: str
    here: str
    holds: bool | None
    why: str = ""


def by_workload(rows: Iterable[Row]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row["batch"]):
        groups.setdefault(row["workload"], []).append(row)
    return groups


def ends(rows: Sequence[Row], has: Callable[[Row], Any]) -> dict[str, tuple[Row, Row]]:
    """For each workload, its runs at the paper's two batches, or at the smallest and largest batches if these are at
    least LEAST_SPAN times apart."""
    pairs = {}
    for name, runs in by_workload(row for row in rows if has(row) is not None).items():
        by = {row["batch"]: row for row in runs}
        low, high = (LOW, HIGH) if {LOW, HIGH} <= by.keys() else (min(by), max(by))
        if high >= LEAST_SPAN * low:
            pairs[name] = (by[low], by[high])
    return pairs


def largest_batches(rows: Sequence[Row]) -> list[Row]:
    """The run of each workload at its largest batch."""
    return [runs[-1] for runs in by_workload(rows).values()]


def most(hits: dict[str, bool]) -> bool | None:
    return sum(hits.values()) >= MOST * len(hits) if hits else None


def not_for(hits: dict[str, bool]) -> str:
    """The workloads for which it does not hold."""
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
    return f"no workload has {what} at two batches {LEAST_SPAN}× apart"


def is_gpu(rows: Sequence[Row]) -> bool:
    return any(row["gpu"] for row in rows)


def no_gpu(what: str, paper: str, rows: Sequence[Row], here: str = "") -> Check:
    return Check(what, paper, here, None, IS_CPU if rows else "nothing was measured")


def mean_cpu(row: Row) -> float | None:
    busy = [core["busy"] for core in row["cores"] if core["busy"] is not None]
    return float(np.mean(busy)) if busy else None


def foretold(prediction: Row) -> bool:
    """Whether a prediction is right. If it claims a pattern, it must also be no worse than the naive guess."""
    better = "steps_each" in prediction or prediction["error"] <= prediction["naive"] + GROWS
    return bool(prediction["error"] <= FORETOLD and better)


def hits_of(predictions: Sequence[Row]) -> str:
    return f"predicted in {sum(map(foretold, predictions))} of {count(len(predictions), 'run')}"

"""The values of one run that a comparison judges: per window of recorded steps, or per block of other steps."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from handheld.analyse import stats, timeline

if TYPE_CHECKING:
    from handheld.analyse.run import Run

STEP_BLOCKS = 48  # The steps that were not recorded are divided into at most this many blocks.


def op_windows(run: Run) -> dict[int, dict[int, float]]:
    """The median time of each op in each window, in ms: op -> window -> ms. The first step of a window, which starts on
    an idle device, does not count."""
    times: dict[tuple[int, int], list[int]] = {}
    for before, step in itertools.pairwise(run.timed):
        if before.window != step.window:
            continue
        for op, ns in timeline.by_op(step).items():
            times.setdefault((op, step.window), []).append(ns)
    windows: dict[int, dict[int, float]] = {}
    for (op, window), values in sorted(times.items()):
        windows.setdefault(op, {})[window] = float(np.median(values)) * 1e-6
    return windows


def batch_of(run: Run) -> int | None:
    """The samples of a step, which are those of all its micro-batches. None if not known."""
    if whole := _parts(run).get("batch"):
        return int(whole)
    return next((step.batch for step in run.steps() if step.graph == run.graph), None)


def per_sample(windows: Mapping[int, Mapping[int, float]], samples: int) -> dict[int, dict[int, float]]:
    """The times of ops divided by the samples of a step."""
    return {op: {window: ms / samples for window, ms in times.items()} for op, times in windows.items()}


def count(windows: Mapping[int, Mapping[int, float]]) -> int:
    """The number of windows in which an op was timed."""
    return len({window for times in windows.values() for window in times})


def total(windows: Mapping[int, Mapping[int, float]], ops: Iterable[int]) -> np.ndarray:
    """The time of some ops together in each window that has all of them."""
    chosen = [windows[op] for op in ops if windows.get(op)]
    if not chosen:
        return np.zeros(0)
    shared = sorted(set(chosen[0]).intersection(*chosen[1:]))
    return np.array([sum(times[window] for times in chosen) for window in shared])


def step_blocks(run: Run) -> np.ndarray:
    """The time of a step in ms, in blocks of steps that were not recorded. If there are too few of them, the recorded
    steps. Several graphs that train in turns are one step. Evaluation is not
    part of it."""
    blocks = {graph: _blocks(run, graph) for graph in run.training_graphs}
    if not blocks or not all(map(len, blocks.values())):
        return np.zeros(0)
    count, times = min(map(len, blocks.values())), _times_per_step(run)
    return np.asarray(np.sum([times[graph] * block[:count] for graph, block in blocks.items()], axis=0))


def step_ms(run: Run) -> float | None:
    """The time of a step in ms as Run.step_ms reports it. Several graphs that train in turns are one step. Evaluation
    is not part of it."""
    times = {graph: run.step_ms(graph)[0] for graph in run.training_graphs}
    per_step = _times_per_step(run)
    known = [per_step[graph] * time for graph, time in times.items() if time is not None]
    return sum(known) if known and len(known) == len(times) else None


def _parts(run: Run) -> Mapping[str, Any]:
    """What the plan says about micro-batches; empty if a batch stays whole."""
    return (run.meta.get("plan_options") or {}).get("parts") or {}


def _times_per_step(run: Run) -> dict[str, int]:
    """How often a step runs each graph that trains: once, but in micro-batches that of all parts except the last one
    more often."""
    counts = collections.Counter(step.graph for step in run.steps())
    last = min((counts[graph] for graph in run.training_graphs), default=1)
    return {graph: max(counts[graph] // max(last, 1), 1) if _parts(run) else 1 for graph in run.training_graphs}


def _blocks(run: Run, graph: str) -> np.ndarray:
    _, times, stretches = stats.step_times(run.steps(), graph)
    warm = stats.warm_up_end(times) if len(times) else 0
    late = stats.steady(times[warm:], stretches[warm:]) * 1e-6 if len(times) > warm else np.zeros(0)
    if len(late) < STEP_BLOCKS // 4:
        return np.array([period.length for period in run.periods if period.graph == graph]) * 1e-6
    return np.array([float(np.median(part)) for part in np.array_split(late, min(STEP_BLOCKS, len(late)))])


def start_ms(*runs: Run) -> float:
    """The gap between two launches on a busy device, in ms: the mean over the runs that know it, else 0."""
    known = [cost.between_us for run in runs if (cost := run.launches()) is not None and cost.between_us is not None]
    return max(float(np.mean(known)), 0.0) * 1e-3 if known else 0.0

"""How well earlier steps predict later ones: errors on steps that were held out.

A prediction from the first half of the measurements is compared with the second half. `error` is the mean
difference divided by the mean; `naive` is the same for a guess that needs no pattern. Both are shares:

    ops      an op takes its earlier median; naive: all ops take the same time
    within   the device is as busy at each moment of a step as before; naive: always the mean
    blocks   the next window of steps is like all windows before; naive: like the last window alone
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from handheld.analyse.rails import Series
from handheld.analyse.run import Run
from handheld.analyse.timeline import Timed
from handheld.store.commands import LAUNCH

BINS = 20  # Parts of a step, for the load within it.
LEAST_BLOCKS = 6
TICKS = 5  # Sensor readings per block; the error of its mean is then a fifth of one reading's change.
TICKS_STEP = 4  # Sensor readings per step, for the power within it.

Row = dict[str, Any]


def ops(steps: Sequence[Timed], graph: str) -> Row | None:
    """The prediction error of op times, or None if fewer than two recorded steps follow directly on another step."""
    times = [
        _op_ns(step)
        for before, step in itertools.pairwise(steps)
        if before.window == step.window and step.graph == graph
    ]
    names = sorted(set.intersection(*map(set, times))) if times else []
    if len(times) < 2 or not names:
        return None
    table = np.array([[row[name] for name in names] for row in times], np.float64)
    before, after = halves(table)
    guess = np.median(before, axis=0)
    return _row(after, guess, np.full_like(guess, guess.mean()), len(before), ops=len(names))


def within(run: Run, graph: str) -> Row | None:
    """The prediction error of the device's busy share at each moment of a step, as a difference of shares."""
    table = profile(run, graph)
    if table is None or len(table) < 2:
        return None
    before, after = halves(table)
    guess = before.mean(axis=0)
    row = _row(after, guess, np.full_like(guess, guess.mean()), len(before), bins=table.shape[1])
    return {
        **row,
        "points": _miss(after, guess),
        "naive_points": _miss(after, guess.mean()),
        "spread_points": float(guess.std()),
    }


def profile(run: Run, graph: str) -> np.ndarray | None:
    """Busy shares[step, bin] of recorded steps, each from its first command on."""
    periods = [p for p in run.periods if p.graph == graph]
    if not periods:
        return None
    length = float(np.median([p.length for p in periods]))
    by_step = {timed.step: timed for timed in run.timed}
    rows = []
    for period in periods:
        edges = period.begin + np.linspace(0, length, BINS + 1)
        rows.append(busy([by_step[period.step], by_step[period.step + 1]], edges))
    return np.array(rows)


def busy(steps: Sequence[Timed], edges: np.ndarray) -> np.ndarray:
    """The share of each bin in which the device ran a command of these steps."""
    started, ended = (np.concatenate([step.commands[when] for step in steps]) for when in ("started", "ended"))
    return share(started, ended, edges)


def share(started: np.ndarray, ended: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The share of each bin that the intervals cover. The intervals must not overlap."""
    base = edges[0]
    begin, end = (started - base).astype(np.float64), (ended - base).astype(np.float64)
    at = (edges - base).astype(np.float64)
    until = np.zeros(len(at))
    for n, edge in enumerate(at):  # The covered time up to each edge.
        until[n] = np.clip(np.minimum(end, edge) - np.minimum(begin, edge), 0, None).sum()
    covered: np.ndarray = np.clip(np.diff(until) / np.diff(at), 0.0, 1.0)
    return covered


def blocks(run: Run, channel: Series, least_s: float = 0.0) -> Row | None:
    """The prediction error of a sensor's mean over windows of whole steps, each long enough for TICKS readings.

    Returns None if the run is too short for LEAST_BLOCKS windows, or if the sensor does not cover all of it.
    """
    begin, _ = run.warm()
    ends = [begin, *(s.end_ns for s in run.steps() if s.begin_ns >= begin)]
    step = float(np.median(np.diff(ends))) if len(ends) > 2 else 0.0
    if not step:
        return None
    each = max(int(np.ceil(max(TICKS * tick_s(channel), least_s) * 1e9 / step)), 1)
    edges = ends[::each]
    values = [means(channel, a, b) for a, b in itertools.pairwise(edges)]
    if len(values) < LEAST_BLOCKS or any(v is None for v in values):
        return None
    table = np.array(values, np.float64)[:, None]
    before, after = halves(table)
    guess = np.median(before, axis=0)
    previous = table[len(before) - 1 : -1]
    mean = float(after.mean())
    return {
        "error": _miss(after, guess) / mean if mean else None,
        "naive": _miss(after, previous) / mean if mean else None,
        "naive_is": "like the stretch before",
        "learned_from": len(before),
        "held_out": len(after),
        "steps_each": each,
        "tick_ms": tick_s(channel) * 1e3,
    }


def over_step(run: Run, channel: Series) -> Row | None:
    """The prediction error of a sensor's values within a step, from earlier steps at the same moment.

    Returns None if the sensor gives fewer than TICKS_STEP readings per step, which cannot show what happens inside.
    """
    begin, _ = run.warm()
    steps = [s for s in run.steps() if s.begin_ns >= begin and s.graph == run.graph]
    lengths = np.diff([s.end_ns for s in steps])
    if len(steps) < LEAST_BLOCKS + 1 or np.median(lengths) < TICKS_STEP * tick_s(channel) * 1e9:
        return None
    count = min(int(np.median(lengths) / (tick_s(channel) * 1e9)), BINS)
    rows = []
    for a, b in itertools.pairwise(s.end_ns for s in steps):
        edges = np.linspace(a, b, count + 1).astype(np.int64)
        rows.append([means(channel, x, y) for x, y in itertools.pairwise(edges.tolist())])
    if any(v is None for row in rows for v in row):
        return None
    before, after = halves(np.array(rows, np.float64))
    guess = before.mean(axis=0)
    return _row(after, guess, np.full_like(guess, guess.mean()), len(before), bins=count)


def means(channel: Series, begin: int, end: int) -> float | None:
    """The mean of a channel over a time window: the rate of a counter, else the mean of its values."""
    if channel.counter or channel.quantity in ("power", "energy"):
        total = channel.joules(begin, end)
        return None if total is None else total / ((end - begin) * 1e-9)
    if len(channel.t_ns) < 2 or channel.t_ns[0] > begin or channel.t_ns[-1] < end:
        return None
    inside = channel.within(begin, end)
    return float(inside.mean() if len(inside) else np.interp((begin + end) / 2, channel.t_ns, channel.values))


def tick_s(channel: Series) -> float:
    """The usual time between two changes of a channel's value."""
    at = channel.t_ns[1:][np.diff(channel.values) != 0]
    if len(at) < 4:
        at = channel.t_ns
    return float(np.median(np.diff(at))) * 1e-9 if len(at) > 1 else 0.1


def halves(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Earlier rows to learn from, and later rows that are held out."""
    middle = max(len(table) // 2, 1)
    return table[:middle], table[middle:]


def _op_ns(step: Timed) -> dict[int, int]:
    sums: dict[int, int] = {}
    launches = step.commands["kind"] == LAUNCH
    spent = step.commands["ended"] - step.commands["started"]
    for op, ns in zip(step.commands["op"][launches].tolist(), spent[launches].tolist(), strict=True):
        sums[op] = sums.get(op, 0) + ns
    return sums


def _miss(measured: np.ndarray, guess: np.ndarray | float) -> float:
    return float(np.abs(measured - guess).mean())


def _row(after: np.ndarray, guess: np.ndarray, naive: np.ndarray, learned: int, **more: Any) -> Row:
    mean = float(after.mean())
    return {
        "error": _miss(after, guess) / mean if mean else None,
        "naive": _miss(after, naive) / mean if mean else None,
        "naive_is": "the mean of all",
        "learned_from": learned,
        "held_out": len(after),
        **more,
    }

"""How well earlier steps tell what later ones do: error figures, on steps that were held out.

A prediction is made from the first half of what was measured and held against the second half.
`error` is the mean difference over the mean of what was measured, `naive` that of a guess which
needs no pattern, and both are shares:

    ops      an op takes what it took before (its median); naive: all ops take alike
    within   the device is busy at each moment of a step as it was before; naive: always the mean
    blocks   the next stretch of steps is like those before it; naive: like the one before it alone
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

BINS = 20  # of a step, for what happens within it
LEAST_BLOCKS = 6
TICKS = 5  # of a sensor in a block: its mean is then right to a fifth of a tick's change
TICKS_STEP = 4  # of a sensor in a step, for what happens within it

Row = dict[str, Any]


def ops(steps: Sequence[Timed], graph: str) -> Row | None:
    """The times of ops. None: fewer than two recorded steps that follow another one."""
    found = [
        _op_ns(one) for before, one in itertools.pairwise(steps) if before.window == one.window and one.graph == graph
    ]
    names = sorted(set.intersection(*map(set, found))) if found else []
    if len(found) < 2 or not names:
        return None
    table = np.array([[one[name] for name in names] for one in found], np.float64)
    before, after = halves(table)
    guess = np.median(before, axis=0)
    return _row(after, guess, np.full_like(guess, guess.mean()), len(before), ops=len(names))


def within(run: Run, graph: str) -> Row | None:
    """The device's busy share at each moment of a step, in points of a share."""
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
    mine = [p for p in run.periods if p.graph == graph]
    if not mine:
        return None
    length = float(np.median([p.length for p in mine]))
    by_step = {one.step: one for one in run.timed}
    rows = []
    for period in mine:
        edges = period.begin + np.linspace(0, length, BINS + 1)
        rows.append(busy([by_step[period.step], by_step[period.step + 1]], edges))
    return np.array(rows)


def busy(steps: Sequence[Timed], edges: np.ndarray) -> np.ndarray:
    """The share of each bin in which the device ran a command of these steps."""
    started, ended = (np.concatenate([one.commands[when] for one in steps]) for when in ("started", "ended"))
    return share(started, ended, edges)


def share(started: np.ndarray, ended: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The share of each bin that intervals cover, none of which overlap."""
    base = edges[0]
    begin, end = (started - base).astype(np.float64), (ended - base).astype(np.float64)
    at = (edges - base).astype(np.float64)
    until = np.zeros(len(at))
    for n, edge in enumerate(at):  # covered time up to each edge
        until[n] = np.clip(np.minimum(end, edge) - np.minimum(begin, edge), 0, None).sum()
    covered: np.ndarray = np.clip(np.diff(until) / np.diff(at), 0.0, 1.0)
    return covered


def blocks(run: Run, one: Series, least_s: float = 0.0) -> Row | None:
    """A sensor's mean over stretches of whole steps, each long enough for TICKS of its values.
    None: the run is too short for LEAST_BLOCKS of them, or the sensor did not reach around it."""
    begin, _ = run.warm()
    ends = [begin, *(s.end_ns for s in run.steps() if s.begin_ns >= begin)]
    step = float(np.median(np.diff(ends))) if len(ends) > 2 else 0.0
    if not step:
        return None
    each = max(int(np.ceil(max(TICKS * tick_s(one), least_s) * 1e9 / step)), 1)
    edges = ends[::each]
    values = [means(one, a, b) for a, b in itertools.pairwise(edges)]
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
        "tick_ms": tick_s(one) * 1e3,
    }


def over_step(run: Run, one: Series) -> Row | None:
    """A sensor's values within a step, held against those of earlier steps at the same moment.
    None where it ticks less than TICKS_STEP times a step: what is within cannot be seen."""
    begin, _ = run.warm()
    steps = [s for s in run.steps() if s.begin_ns >= begin and s.graph == run.graph]
    lengths = np.diff([s.end_ns for s in steps])
    if len(steps) < LEAST_BLOCKS + 1 or np.median(lengths) < TICKS_STEP * tick_s(one) * 1e9:
        return None
    count = min(int(np.median(lengths) / (tick_s(one) * 1e9)), BINS)
    rows = []
    for a, b in itertools.pairwise(s.end_ns for s in steps):
        edges = np.linspace(a, b, count + 1).astype(np.int64)
        rows.append([means(one, x, y) for x, y in itertools.pairwise(edges.tolist())])
    if any(v is None for row in rows for v in row):
        return None
    before, after = halves(np.array(rows, np.float64))
    guess = before.mean(axis=0)
    return _row(after, guess, np.full_like(guess, guess.mean()), len(before), bins=count)


def means(one: Series, begin: int, end: int) -> float | None:
    """The mean of a channel over a window: of a counter its rate, else its values."""
    if one.counter or one.quantity in ("power", "energy"):
        total = one.joules(begin, end)
        return None if total is None else total / ((end - begin) * 1e-9)
    if len(one.t_ns) < 2 or one.t_ns[0] > begin or one.t_ns[-1] < end:
        return None
    inside = one.within(begin, end)
    return float(inside.mean() if len(inside) else np.interp((begin + end) / 2, one.t_ns, one.values))


def tick_s(one: Series) -> float:
    """The usual time between two values of a channel."""
    at = one.t_ns[1:][np.diff(one.values) != 0]
    if len(at) < 4:
        at = one.t_ns
    return float(np.median(np.diff(at))) * 1e-9 if len(at) > 1 else 0.1


def halves(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Earlier rows to learn from, later ones to be held out."""
    middle = max(len(table) // 2, 1)
    return table[:middle], table[middle:]


def _op_ns(one: Timed) -> dict[int, int]:
    sums: dict[int, int] = {}
    launches = one.commands["kind"] == LAUNCH
    spent = one.commands["ended"] - one.commands["started"]
    for op, ns in zip(one.commands["op"][launches].tolist(), spent[launches].tolist(), strict=True):
        sums[op] = sums.get(op, 0) + ns
    return sums


def _miss(found: np.ndarray, guess: np.ndarray | float) -> float:
    return float(np.abs(found - guess).mean())


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

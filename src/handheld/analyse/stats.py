"""Distributions, where warm-up ends, which steps are slow."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from handheld.store.record import Record
from handheld.store.rows import StepRow

LIKE_THE_REST = 0.1  # of the usual time: a step that is no further off belongs to the rest
IN_A_ROW = 3  # steps that are alike
FOLLOWING, MOST_FOLLOWING = 10, 200  # steps that they are compared with
AHEAD = 3  # steps that the host may be ahead of the device, and one more
OTHERS = 0.1  # of the cores, busy for others: worth saying
BLOCK_NS = 50_000_000  # steps that the host's calls are averaged over
SLOW_SPREADS, SLOW_SHARE = 6.0, 0.2  # beyond the median: in usual deviations, and of the median


@dataclass(frozen=True, slots=True)
class Distribution(Record):
    """Of at least one value, in its unit."""

    n: int
    median: float
    mean: float
    p5: float
    p25: float
    p75: float
    p95: float
    min: float
    max: float
    cv: float  # standard deviation over mean


@dataclass(frozen=True, slots=True)
class Variance(Record):
    """The step times of a graph in ms. `times` is None if no step can be compared with others."""

    warm_up: int  # the first step after warm-up
    times: Distribution | None = None
    drift: float | None = None  # how much longer the last steps are than the first, as a share
    slow_steps: tuple[int, ...] = ()

    @property
    def n(self) -> int:
        """How many steps that is."""
        return self.times.n if self.times else 0

    def to_json(self) -> dict[str, object]:
        if self.times is None:
            return {"warm_up": self.warm_up, "n": 0}
        return {
            "warm_up": self.warm_up,
            **self.times.to_json(),
            "drift": self.drift,
            "slow_steps": list(self.slow_steps),
        }


def distribution(values: np.ndarray) -> Distribution:
    """Of at least one value, in its unit."""
    low, quarter, middle, high, top = np.percentile(values, (5, 25, 50, 75, 95))
    mean = float(values.mean())
    return Distribution(
        n=len(values),
        median=float(middle),
        mean=mean,
        p5=float(low),
        p25=float(quarter),
        p75=float(high),
        p95=float(top),
        min=float(values.min()),
        max=float(values.max()),
        cv=float(values.std(ddof=1) / mean) if len(values) > 1 and mean else 0.0,
    )


def variance(steps: Sequence[StepRow], graph: str) -> Variance:
    """The distribution of a graph's step times, where warm-up ended, and drift."""
    ids, times, stretches = step_times(steps, graph)
    if not len(times):
        return Variance(0)
    warm = warm_up_end(times)
    late = times[warm:]
    usual = steady(late, stretches[warm:])
    # windows open once the schedule's own warm-up is over; their steps are not among the times
    first = int(ids[warm - 1]) + 1 if warm else min([int(ids[0]), *(s.id for s in steps if s.recorded)])
    return Variance(
        warm_up=first,
        times=distribution(usual * 1e-6),
        drift=drift(usual),
        slow_steps=tuple(ids[warm:][slow(late, usual)].tolist()),
    )


def step_times(steps: Sequence[StepRow], graph: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(step, ns, stretch) of a graph's steps that were not recorded: from the end of the one before
    to its own end; steps of a stretch have no recorded one between them.
    After a window the device is empty, and the host runs ahead for AHEAD steps: these say nothing
    about the device, and are left out."""
    found, since, stretch = [], AHEAD, 0
    for before, one in itertools.pairwise(steps):
        since, stretch = (0, stretch + 1) if one.recorded else (since + 1, stretch)
        if since > AHEAD and one.graph == graph:
            found.append((one.id, one.end_ns - before.end_ns, stretch))
    ids, times, stretches = zip(*found, strict=True) if found else ((), (), ())
    return np.array(ids, np.int64), np.array(times, np.int64), np.array(stretches, np.int64)


def steady(times: np.ndarray, stretches: np.ndarray) -> np.ndarray:
    """Each step's time as the mean of steps around it that take BLOCK_NS together. A host that runs
    ahead of its device returns from some calls at once and waits long in others: single ones say
    when it waited, and their median may be less than the device needs."""
    _, stretch = np.unique(stretches, return_inverse=True)
    totals = np.maximum(np.bincount(stretch, times), 1.0)
    blocks = np.maximum(totals // BLOCK_NS, 1).astype(np.int64)
    begun = np.cumsum(totals) - totals
    share = (np.cumsum(times) - times / 2 - begun[stretch]) / totals[stretch]
    block = np.clip((share * blocks[stretch]).astype(np.int64), 0, blocks[stretch] - 1)
    block += (np.cumsum(blocks) - blocks)[stretch]
    means = np.bincount(block, times) / np.maximum(np.bincount(block), 1)
    return np.asarray(means[block], np.float64)


def warm_up_end(times: np.ndarray) -> int:
    """How many steps are not like those after them: up to the first IN_A_ROW that are near the
    median of what follows, by a tenth of it or what is usual there. What follows is at most a
    quarter of the run: steps that get slower throughout do not make the rest of them warm-up."""
    if len(times) < 2 * IN_A_ROW:
        return 0
    ahead = min(max(FOLLOWING, len(times) // 4), MOST_FOLLOWING)
    for first in range(len(times) // 2):
        following = times[first : first + ahead]
        usual = np.median(following)
        noise = 3 * np.median(np.abs(following - usual))
        near = np.abs(following[:IN_A_ROW] - usual) <= max(LIKE_THE_REST * usual, noise)
        if near.all():
            return first
    return 0


def slow(times: np.ndarray, usually: np.ndarray | None = None) -> np.ndarray:
    """Positions of values far above the others, or above what is given as usual."""
    if len(times) < 5:
        return np.zeros(0, np.int64)
    usual = np.median(times if usually is None else usually)
    spread = 1.4826 * np.median(np.abs(times - usual))
    return np.flatnonzero(times > usual + max(SLOW_SPREADS * spread, SLOW_SHARE * usual))


def others(cores: list[float], count: int) -> str:
    """What other processes took of a machine's cores, a value a run, if that is worth saying."""
    many = [one for one in cores if one > OTHERS * count]
    if not many:
        return ""
    return (
        f"other processes kept {np.median(many):.1f} of {count} cores busy during {len(many)} "
        f"of {len(cores)} runs: times, loads and predictions are disturbed by them"
    )


def drift(times: np.ndarray) -> float | None:
    """How much longer the last fifth's median is than the first fifth's, as a share, if the fifths
    rise or fall one after the other, and by more than their steps differ; 0 if not; None: too few.
    """
    fifth = len(times) // 5
    if fifth < 5:
        return None
    parts = [times[i * fifth : (i + 1) * fifth] for i in range(4)] + [times[-fifth:]]
    middles = np.array([np.median(part) for part in parts])
    rises = np.diff(middles)
    whole = middles[-1] - middles[0]
    noise = np.median([np.median(np.abs(part - np.median(part))) for part in parts])
    steady = (rises * np.sign(whole) >= -0.1 * abs(whole)).all() and (np.abs(rises).max() < 0.8 * abs(whole))
    return float(whole / middles[0]) if steady and abs(whole) > 2 * noise else 0.0

"""Statistics of step times: distributions, end of warm-up, slow steps, drift."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from handheld.store.record import Record
from handheld.store.rows import StepRow

LIKE_THE_REST = 0.1  # A step is normal if its time differs from the usual time by at most this share.
IN_A_ROW = 3  # Warm-up ends with this many normal steps in sequence.
FOLLOWING, MOST_FOLLOWING = 10, 200  # the least and the most steps that they are compared with
AHEAD = 3  # how many steps the host may be ahead of the device, plus one
BLOCK_NS = 50_000_000  # Step times are averaged over blocks of this length.
SLOW_SPREADS, SLOW_SHARE = 6.0, 0.2  # A slow step exceeds the median by so many deviations and by this share of it.


@dataclass(frozen=True, slots=True)
class Distribution(Record):
    """The distribution of at least one value. All fields except `n` and `cv` have the unit of the values."""

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
    drift: float | None = None  # by which share the last steps are longer than the first
    slow_steps: tuple[int, ...] = ()

    @property
    def n(self) -> int:
        """The number of steps in `times`."""
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
    """The distribution of at least one value."""
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
    """The distribution of a graph's step times, the end of warm-up, slow steps and drift."""
    ids, times, stretches = step_times(steps, graph)
    if not len(times):
        return Variance(0)
    warm = warm_up_end(times)
    late = times[warm:]
    usual = steady(late, stretches[warm:])
    # Recorded steps are not among the times, but they come after the schedule's warm-up, so they count as warm.
    first = int(ids[warm - 1]) + 1 if warm else min([int(ids[0]), *(s.id for s in steps if s.recorded)])
    return Variance(
        warm_up=first,
        times=distribution(usual * 1e-6),
        drift=drift(usual),
        slow_steps=tuple(ids[warm:][slow(late, usual)].tolist()),
    )


def step_times(steps: Sequence[StepRow], graph: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(step, ns, stretch) of a graph's steps that were not recorded. A time is from the end of the previous step to the
    end of the step. Steps of one stretch have no recorded step between them.

    After a window the device's queue is empty and the host runs ahead for AHEAD steps. These steps say nothing
    about the device and are left out.
    """
    rows, since, stretch = [], AHEAD, 0
    for before, step in itertools.pairwise(steps):
        since, stretch = (0, stretch + 1) if step.recorded else (since + 1, stretch)
        if since > AHEAD and step.graph == graph:
            rows.append((step.id, step.end_ns - before.end_ns, stretch))
    ids, times, stretches = zip(*rows, strict=True) if rows else ((), (), ())
    return np.array(ids, np.int64), np.array(times, np.int64), np.array(stretches, np.int64)


def steady(times: np.ndarray, stretches: np.ndarray) -> np.ndarray:
    """Each step's time as the mean of the steps around it that together take BLOCK_NS.

    A host that runs ahead of its device returns from some calls at once and waits long in others. Single times only
    show when it waited, and their median may be less than the device needs.
    """
    _, stretch = np.unique(stretches, return_inverse=True)
    totals = np.maximum(np.bincount(stretch, times), 1.0)
    blocks = np.maximum(totals // BLOCK_NS, 1).astype(np.int64)
    begun = np.cumsum(totals) - totals
    share = (np.cumsum(times) - times / 2 - begun[stretch]) / totals[stretch]
    block = np.clip((share * blocks[stretch]).astype(np.int64), 0, blocks[stretch] - 1)
    block += (np.cumsum(blocks) - blocks)[stretch]
    _, block = np.unique(block, return_inverse=True)  # Few blocks of a step that lasted for days have a step.
    means = np.bincount(block, times) / np.maximum(np.bincount(block), 1)
    return np.asarray(means[block], np.float64)


def warm_up_end(times: np.ndarray) -> int:
    """The number of warm-up steps: those before the first IN_A_ROW steps whose times are near the median of the steps
    that follow (within LIKE_THE_REST, or within their usual deviation).

    Only a quarter of the run (at most MOST_FOLLOWING steps) is compared, so that steps that get slower during the whole
    run are not taken for warm-up.
    """
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
    """Positions of values far above the median of all values, or of `usually` if given."""
    if len(times) < 5:
        return np.zeros(0, np.int64)
    usual = np.median(times if usually is None else usually)
    spread = 1.4826 * np.median(np.abs(times - usual))
    return np.flatnonzero(times > usual + max(SLOW_SPREADS * spread, SLOW_SHARE * usual))


def drift(times: np.ndarray) -> float | None:
    """By which share the median of the last fifth is longer than that of the first fifth.

    0 if the medians of the fifths do not rise or fall steadily, or change less than single steps vary. None if
    there are too few steps.
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

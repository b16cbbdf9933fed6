"""Whether two runs differ, judged against the noise of both.

A figure (the time of an op, of a module or of a step) has one value per window of recorded steps in each run. Values
are compared as logarithms, so that differences are ratios. The location of a run is the median of its values, which a
few disturbed windows do not move. Its variance has these parts:

    blocks   neighbouring windows are alike, so the values are divided into at most BLOCKS blocks in their order; the
             medians of the blocks say how far the location may be off
    floor    two processes never agree completely: pages and code lie elsewhere (FLOOR, WHOLE_FLOOR for whole runs)
    habit    an op whose time varies much within a run also differs more between two runs (HABIT times its spread)
    start    starting a launch takes some time that differs between processes (START times the gap between launches,
             so that it counts for short ops)
    load     if other processes held different shares of the cores in the two runs, ops slow down differently
             (LOAD times the logarithm of the ratio of what they left)
    uneven   whatever slowed a whole run did not slow all ops equally (UNEVEN times the difference in common)

What all figures have in common (`common`: the median of their differences) is a difference of the whole run and is
judged separately. If the figures differ from each other by more than their variances explain, all of them are widened
by that factor. The p-values of many figures are judged together by Benjamini and Hochberg's procedure, which limits
the share of false findings to ALPHA; if nothing differs, it reports anything in at most ALPHA of all comparisons.

bench/compare_noise.py measures both rates on real runs; the constants below were chosen with it, on runs of one model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

ALPHA = 0.05
WHOLE_ALPHA = 0.01  # Whole runs are judged by a few tests of their own.
BLOCKS = 12
LEAST = 3  # A figure needs this many values in both runs.
FLOOR, WHOLE_FLOOR = 0.01, 0.025
HABIT = 0.4
START = 0.5
LOAD, WHOLE_LOAD = 1 / 3, 1.0
UNEVEN = 0.5
MANY = 5  # From this many figures on, what they have in common is told apart from their own changes.
_NORMAL = 1.4826  # from the median absolute deviation to the standard deviation of a normal distribution
_MEDIAN = 1.25  # how much less certain a median is than a mean


@dataclass(frozen=True, slots=True)
class Judged:
    """The ratio of b to a with its 95% interval, and whether it is more than noise. `p` is None if it is not judged."""

    ratio: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    differs: bool = False


@dataclass(frozen=True, slots=True)
class Figure:
    """The values of one figure in both runs, and the time in which its launches start, in the unit of the values."""

    a: np.ndarray
    b: np.ndarray
    start: float = 0.0


@dataclass(frozen=True, slots=True)
class _Located:
    """The location of one run's values (logarithms), its variance, its habit, and the number of blocks."""

    at: float
    variance: float
    habit: float
    blocks: int


@dataclass(frozen=True, slots=True)
class _Difference:
    by: float
    variance: float
    freedom: int


def _located(values: np.ndarray) -> _Located:
    logs = np.log(np.maximum(values.astype(np.float64), 1e-9))
    count = min(BLOCKS, len(logs))
    medians = np.array([np.median(part) for part in np.array_split(logs, count)])
    # A block that something disturbed says little about the others, so the smaller of two scales counts.
    scale = min(float(medians.std(ddof=1)), _NORMAL * _MEDIAN * float(np.median(np.abs(medians - np.median(medians)))))
    quarter, three = np.quantile(logs, (0.25, 0.75))
    return _Located(float(np.median(logs)), scale**2 / count, float(three - quarter) / 2 * _NORMAL, count)


def _difference(a: np.ndarray, b: np.ndarray, floor: float, load: float) -> _Difference | None:
    if min(len(a), len(b)) < LEAST:
        return None
    left, right = _located(a), _located(b)
    habit = HABIT**2 * (left.habit**2 + right.habit**2)
    variance = left.variance + right.variance + floor**2 + habit + load**2
    return _Difference(right.at - left.at, variance, left.blocks + right.blocks - 2)


def whole(a: np.ndarray, b: np.ndarray, load: float = 0.0, shown: tuple[float, float] | None = None) -> Judged | None:
    """Judge one figure of two whole runs. `load` is from `unequal_load`. None if there are too few values.

    `shown` are the figures that the runs themselves report, if these are not the medians of the values: then their
    ratio is judged. How far it is from the ratio of the medians counts as noise.
    """
    difference = _difference(a, b, WHOLE_FLOOR, WHOLE_LOAD * load)
    if difference is None:
        return None
    if shown is not None and min(shown) > 0:
        by = math.log(shown[1] / shown[0])
        difference = replace(difference, by=by, variance=difference.variance + (by - difference.by) ** 2)
    p = _p(difference.by / math.sqrt(difference.variance), difference.freedom)
    return _judged(difference, 0.0, 1.0, p, p < WHOLE_ALPHA)


def many(
    figures: Sequence[Figure], load: float = 0.0, common: float | None = None
) -> tuple[float, list[Judged | None]]:
    """Judge many figures of two runs together. Returns what they have in common as a ratio, and one judgement per
    figure about what is beyond that; None for a figure with too few values. `common` is the ratio in common if it
    is already known."""
    differences = [_difference(one.a, one.b, _floor(one), LOAD * load) for one in figures]
    known = [one for one in differences if one is not None]
    several = len(known) >= MANY
    shared = math.log(common) if common else float(np.median([one.by for one in known])) if several else 0.0
    known = [replace(one, variance=one.variance + (UNEVEN * shared) ** 2) for one in known]
    scores = np.array([(one.by - shared) / math.sqrt(one.variance) for one in known])
    wider = max(1.0, _NORMAL * float(np.median(np.abs(scores - np.median(scores))))) if several else 1.0
    values = [_p(score / wider, one.freedom) for score, one in zip(scores.tolist(), known, strict=True)]
    limit = _limit(values)
    judged = iter([_judged(one, shared, wider, p, p <= limit) for one, p in zip(known, values, strict=True)])
    return math.exp(shared), [None if one is None else next(judged) for one in differences]


def _floor(figure: Figure) -> float:
    shortest = min((float(np.median(values)) for values in (figure.a, figure.b) if len(values)), default=0.0)
    return math.hypot(FLOOR, START * figure.start / shortest) if shortest > 0 else FLOOR


def _judged(difference: _Difference, common: float, wider: float, p: float, differs: bool) -> Judged:
    half = _quantile(difference.freedom) * math.sqrt(difference.variance) * wider
    own = difference.by - common
    return Judged(math.exp(own), math.exp(own - half), math.exp(min(own + half, 50.0)), p, differs)


def unequal_load(a: float | None, b: float | None) -> float:
    """The logarithm of the ratio of what other processes left of the cores in two runs. `a` and `b` are the shares that
    they held; 0 if one is not known."""
    if a is None or b is None:
        return 0.0
    return abs(math.log((1 - min(max(a, 0.0), 0.95)) / (1 - min(max(b, 0.0), 0.95))))


def _limit(values: Sequence[float]) -> float:
    """The largest p-value that counts as a finding (Benjamini and Hochberg). -1 if there is none."""
    ranked = sorted(values)
    passed = [p for rank, p in enumerate(ranked, 1) if p <= ALPHA * rank / len(ranked)]
    return max(passed, default=-1.0)


def _p(score: float, freedom: int) -> float:
    """The two-sided p-value of Student's t, by Wallace's approximation with a normal distribution."""
    z = (8 * freedom + 1) / (8 * freedom + 3) * math.sqrt(freedom * math.log1p(score * score / freedom))
    return 2 * (1 - NormalDist().cdf(z))


def _quantile(freedom: int) -> float:
    """The two-sided 95% quantile of Student's t: the inverse of `_p`."""
    z = NormalDist().inv_cdf(0.975) * (8 * freedom + 3) / (8 * freedom + 1)
    return math.sqrt(freedom * math.expm1(min(z * z / freedom, 50.0)))

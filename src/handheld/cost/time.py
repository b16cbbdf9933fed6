"""Predicts the time of ops on a device from samples that were measured there.

The base of a prediction is the least time by the device's ceilings. A Gaussian process per family predicts the
logarithm of the ratio of the real time to it, from the features of the op. An op that was measured is taken as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from handheld.cost.features import categories, features, group
from handheld.cost.gauss import Points
from handheld.cost.local import LocalProcess, Reach
from handheld.cost.rates import Rates
from handheld.cost.samples import OpSample
from handheld.cost.work import Work
from handheld.store.record import Record

#: Half of the width of an interval, in standard deviations: 90% of a normal distribution.
WIDTH = 1.645
#: The deviation of the logarithm of a time if nothing like the op was ever measured.
UNKNOWN = 1.0
#: The deviation of the logarithm of a measured time; and if other processes disturbed it.
NOISE, DISTURBED = 0.05, 0.2


@dataclass(frozen=True)
class OpCost(Record):
    """The predicted seconds of an op, with the interval that holds 90% of such ops. `source` is `measured` (this very
    op was), `model` (ops of its family were) or `ceilings` (none was)."""

    seconds: float
    low_s: float
    high_s: float
    source: str
    bound: str


class TimeModel:
    """The times of ops on one device.

    With `elsewhere`, the samples are those of another device with these ceilings. Then only the ratio of a time to
    the least time is taken from them.
    """

    def __init__(self, rates: Rates, samples: Sequence[OpSample] = (), elsewhere: Rates | None = None) -> None:
        self.rates, base = rates, elsewhere or rates
        self.known = {} if elsewhere else {sample.work.key: sample for sample in samples}
        families: dict[str, list[OpSample]] = {}
        for sample in samples:
            families.setdefault(group(sample.work), []).append(sample)
        self.families: Mapping[str, _Family] = {name: _Family(rates, base, own) for name, own in families.items()}
        ratios = [np.log(s.seconds / base.least_s(s.work)) for s in samples]
        #: The usual ratio to the least time, for families without samples.
        self.usual = float(np.median(ratios)) if ratios else 0.0

    def op(self, work: Work) -> OpCost:
        return self.ops([work])[0]

    def ops(self, works: Sequence[Work], exact: bool = True) -> list[OpCost]:
        """The cost of each op. Without `exact`, measured ops are predicted too, as if they were not known."""
        costs: dict[int, OpCost] = {}
        asked: dict[str, list[int]] = {}
        for i, work in enumerate(works):
            sample = self.known.get(work.key) if exact else None
            if sample is not None:
                noise = DISTURBED if sample.disturbed else NOISE
                costs[i] = self._cost(work, np.log(sample.seconds), noise, "measured")
            else:
                asked.setdefault(group(work), []).append(i)
        for name, which in asked.items():
            family = self.families.get(name)
            if family is None:
                for i in which:
                    costs[i] = self._cost(
                        works[i], np.log(self.rates.least_s(works[i])) + self.usual, UNKNOWN, "ceilings"
                    )
                continue
            logs, deviations = family([works[i] for i in which])
            for i, log, deviation in zip(which, logs, deviations, strict=True):
                costs[i] = self._cost(works[i], log, deviation, "model")
        return [costs[i] for i in range(len(works))]

    def _cost(self, work: Work, log: float, deviation: float, source: str) -> OpCost:
        low, middle, high = (float(np.exp(log + d * deviation)) for d in (-WIDTH, 0.0, WIDTH))
        return OpCost(middle, low, high, source, self.rates.bound(work))


class _Family:
    """The samples of one family, and the process through them."""

    def __init__(self, rates: Rates, base: Rates, samples: Sequence[OpSample]) -> None:
        self.rates = rates
        self.names: list[dict[str, int]] = [{}, {}]
        at = self._points([s.work for s in samples])
        values = np.array([np.log(s.seconds / base.least_s(s.work)) for s in samples])
        noise = np.array([DISTURBED if s.disturbed else NOISE for s in samples])
        self.process = LocalProcess(at, values, noise, _reach(group(samples[0].work), at.features.shape[1]))

    def _points(self, works: Sequence[Work]) -> Points:
        numbers = np.array([features(work) for work in works], np.float64)
        words = [categories(work) for work in works]
        codes = [[self.names[c].setdefault(w[c], len(self.names[c])) for c in range(2)] for w in words]
        return Points(numbers, np.array(codes, np.int64))

    def __call__(self, works: Sequence[Work]) -> tuple[np.ndarray, np.ndarray]:
        means, deviations = self.process(self._points(works))
        return means + np.log([self.rates.least_s(work) for work in works]), np.hypot(deviations, NOISE)


def _reach(name: str, count: int) -> Reach:
    scales, apart, smooth = _SCALES.get(name, ((2.0,) * count, (1.0, 0.3), False))
    return Reach(np.array(scales), np.array(apart), smooth)


#: Family -> the scale of each feature in octaves, the distance of another algorithm and of another program, and
#: whether the function is smooth. Chosen on runs of a GPU for the smallest error on models and batches left out.
_SCALES: Mapping[str, tuple[tuple[float, ...], tuple[float, float], bool]] = {
    "matmul": ((3.0, 1.0, 3.0, 2.0, 8.0, 2.0), (1.0, 0.1), False),
    "conv": ((1.0, 2.0, 1.0, 2.0, 4.0, 3.0, 3.0), (1.0, 0.1), False),
    "conv_input": ((1.4, 4.0, 4.0, 3.0, 4.0, 2.0, 4.0), (1.0, 1.0), False),
    "conv_weight": ((0.8, 4.0, 1.0, 3.0, 2.0, 8.0, 2.0), (3.0, 1.0), False),
    "map": ((3.0, 5.0, 1.5, 3.0, 5.0, 2.0), (0.3, 0.8), True),
    "reduce": ((2.0, 2.0, 2.0, 8.0, 0.5), (4.0, 0.15), True),
}

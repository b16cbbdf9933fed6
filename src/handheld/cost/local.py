"""A local Gaussian process: each point is predicted from its nearest samples only.

That needs no fitting, and thousands of samples cost no more than a few. `gauss.Process` uses all samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from handheld.cost.gauss import Points

#: Samples that a prediction rests on.
NEAREST = 48
#: The deviation of the function's level, which is the same everywhere and not known before.
LEVEL = 1.0


@dataclass(frozen=True)
class Reach:
    """How quickly the function changes: the distance of each feature, and of unequal categories, in units in which 1 is
    far. A smooth function has no corners. `deviation` is that of the function, of the logarithm of a time."""

    scales: np.ndarray
    apart: np.ndarray
    smooth: bool = False
    deviation: float = 0.5


class LocalProcess:
    """Values at points, each with its own deviation `noise`. Far from all points it returns the mean of the nearest."""

    def __init__(self, at: Points, values: np.ndarray, noise: np.ndarray, reach: Reach) -> None:
        self.at, self.values, self.noise, self.reach = at, values, noise, reach
        self.mean = float(np.median(values))

    def _far(self, a: Points, b: Points) -> np.ndarray:
        """The squared distances of points."""
        left, right = a.features / self.reach.scales, b.features / self.reach.scales
        far: np.ndarray = np.maximum((left**2).sum(1)[:, None] + (right**2).sum(1)[None, :] - 2 * left @ right.T, 0.0)
        for column, weight in enumerate(self.reach.apart):
            far += weight * (a.categories[:, column, None] != b.categories[None, :, column])
        return far

    def _cover(self, far: np.ndarray) -> np.ndarray:
        near: np.ndarray = np.exp(-far / 2.0) if self.reach.smooth else 1.0 / (1.0 + far / 2.0)
        return self.reach.deviation**2 * near + LEVEL**2

    def __call__(self, to: Points) -> tuple[np.ndarray, np.ndarray]:
        """The expected values, and their standard deviations."""
        far = self._far(to, self.at)
        count = min(NEAREST, far.shape[1])
        near = np.argpartition(far, count - 1, axis=1)[:, :count]
        cover = self._cover(np.take_along_axis(far, near, axis=1))
        among = self._cover(self._among(near))
        among[:, np.arange(count), np.arange(count)] += self.noise[near] ** 2
        weights = np.linalg.solve(among, cover[:, :, None])[:, :, 0]
        means = self.mean + (weights * (self.values[near] - self.mean)).sum(1)
        left = np.maximum(self.reach.deviation**2 + LEVEL**2 - (weights * cover).sum(1), 0.0)
        return means, np.sqrt(left)

    def _among(self, near: np.ndarray) -> np.ndarray:
        """The squared distances of the samples near each point (points × near × near)."""
        scaled = (self.at.features / self.reach.scales)[near]
        square = (scaled**2).sum(2)
        far: np.ndarray = np.maximum(square[:, :, None] + square[:, None, :] - 2 * scaled @ scaled.swapaxes(1, 2), 0.0)
        for column, weight in enumerate(self.reach.apart):
            codes = self.at.categories[near, column]
            far += weight * (codes[:, :, None] != codes[:, None, :])
        return far

"""A Gaussian process: a smooth function through samples, with the deviation that is left where there are none."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Points:
    """Where a function was or will be asked: features (n × d), and categories as numbers (n × c)."""

    features: np.ndarray
    categories: np.ndarray


@dataclass(frozen=True)
class Shape:
    """How quickly the function changes: the distance of each feature, and of unequal categories, in units in which 1 is
    far. `deviation` is that of the function, `noise` that of one sample, both of the logarithm of a time."""

    scales: np.ndarray
    apart: np.ndarray
    deviation: float = 0.7
    noise: float = 0.05


class Process:
    """The function's mean is the median of the samples."""

    def __init__(self, at: Points, values: np.ndarray, shape: Shape, noise: np.ndarray | None = None) -> None:
        self.at, self.shape = at, shape
        self.mean = float(np.median(values))
        cover = self._cover(at)
        spread = np.full(len(values), shape.noise) if noise is None else np.maximum(noise, shape.noise)
        cover[np.diag_indices_from(cover)] += spread**2
        self._lower = np.linalg.cholesky(cover)
        self._weights = np.linalg.solve(self._lower.T, np.linalg.solve(self._lower, values - self.mean))

    def _cover(self, to: Points) -> np.ndarray:
        """The covariance of points and samples."""
        scaled, own = to.features / self.shape.scales, self.at.features / self.shape.scales
        far = np.maximum((scaled**2).sum(1)[:, None] + (own**2).sum(1)[None, :] - 2 * scaled @ own.T, 0.0)
        for column, weight in enumerate(self.shape.apart):
            far += weight * (to.categories[:, column, None] != self.at.categories[None, :, column])
        cover: np.ndarray = self.shape.deviation**2 / (1.0 + far / 2.0)
        return cover

    def __call__(self, to: Points) -> tuple[np.ndarray, np.ndarray]:
        """The expected values, and their standard deviations."""
        cover = self._cover(to)
        inner = np.linalg.solve(self._lower, cover.T)
        left = np.maximum(self.shape.deviation**2 - (inner**2).sum(0), 0.0) + self.shape.noise**2
        return self.mean + cover @ self._weights, np.sqrt(left)

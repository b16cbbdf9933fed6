"""Predicts the joules of ops from their work and their measured time.

The power of an op, per rail, is a sum of non-negative terms (watts while the device is active, watts per busy compute
unit, joules per flop, per byte, per byte beyond the caches, per launch), fitted to the relative errors of all samples,
times a correction that is close to 1. The correction is a Gaussian process over rates, sizes and kernel: ops that are
like samples of their own kernel follow these, others follow all samples. Energy is this power times the seconds that
the op took, so that clocks and caches are those of the run. What a step takes beyond its ops is `gap_watts`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np

from handheld.cost.gauss import Points, Process, Shape
from handheld.store.record import Record

VERSION = 1
WIDTH = 1.96  # half of a 95% interval, in standard deviations
#: How far apart rates (flops and bytes per second), work-groups, work-items and seconds are, in powers of two.
SCALES = (3.0, 3.0, 3.0, 3.0, 4.0)
APART = (2.0, 0.5)  # the same for another kernel and another kind of op
DEVIATION, NOISE = 0.25, 0.03  # of the logarithm of the correction, and of one sample
MOST = 1.1  # No op takes more than this times the watts of any sample: devices limit their power.
ITEMS = 1024  # Work-items that fill a compute unit.
LEAST_FLOPS_S, LEAST_BYTES_S = 1e9, 1e7  # Lower rates make no difference.


@dataclass(frozen=True, slots=True)
class Effort(Record):
    """The work of an op as a plan launches it. `kernel`, `groups` and `items` are those of its main launch: the name,
    the work-groups and the work-items."""

    op: str
    kernel: str
    flops: int
    bytes: int
    launches: int
    groups: int
    items: int


@dataclass(frozen=True, slots=True)
class EnergySample(Record):
    """One op, measured alone: the seconds of one run in which the device was busy, and the joules in this time per
    rail."""

    effort: Effort
    seconds: float
    joules: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Joules(Record):
    """The joules of one op on one rail, with a 95% interval."""

    joules: float
    low_joules: float
    high_joules: float


@dataclass(frozen=True)
class Rail(Record):
    """A rail of a calibration: its watts while nothing runs, and between two launches of a busy queue."""

    name: str
    covers: tuple[str, ...]
    part_of: str
    idle_watts: float
    gap_watts: float
    #: The usual deviation of a held-out sample, as a share.
    deviation: float = DEVIATION


@dataclass(frozen=True)
class EnergyModel:
    """The energy of ops on one device, fitted to the samples of its calibration."""

    device: str
    driver: str
    date: str
    measuring_s: float
    compute_units: int
    cache_bytes: int
    rails: tuple[Rail, ...]
    samples: tuple[EnergySample, ...]
    #: The version of each kernel family that was measured (kernels/versions.py). Empty in older files.
    families: Mapping[str, int] = field(default_factory=dict)
    _fits: dict[str, _Fit] = field(default_factory=dict, compare=False, repr=False)

    def rail(self, name: str) -> Rail | None:
        return next((rail for rail in self.rails if rail.name == name), None)

    def fit(self, rail: str) -> _Fit:
        if rail not in self._fits:
            known = [sample for sample in self.samples if rail in sample.joules]
            self._fits[rail] = _Fit(self, rail, known)
        return self._fits[rail]

    def joules(self, rail: str, efforts: Sequence[Effort], seconds: Sequence[float]) -> list[Joules]:
        """The joules of ops that took these seconds."""
        known = self.rail(rail)
        if known is None or not efforts:
            return []
        took = np.maximum(np.array(seconds, float), 1e-9)
        watts, deviation = self.fit(rail).watts(efforts, took)
        joules = watts * took
        # The process knows how far an op is from the samples, held-out samples how far they are off on average.
        wide = np.exp(WIDTH * np.maximum(deviation, known.deviation))
        return [Joules(float(j), float(j / w), float(j * w)) for j, w in zip(joules, wide, strict=True)]

    def held_out(self, rail: str) -> np.ndarray:
        """The relative error of each sample on a rail, predicted from the samples of all other ops."""
        return self.fit(rail).held_out

    def to_json(self) -> dict[str, Any]:
        return {
            "handheld": "energy",
            "version": VERSION,
            "device": self.device,
            "driver": self.driver,
            "date": self.date,
            "measuring_s": self.measuring_s,
            "compute_units": self.compute_units,
            "cache_bytes": self.cache_bytes,
            "families": dict(self.families),
            "rails": [rail.to_json() for rail in self.rails],
            "samples": [sample.to_json() for sample in self.samples],
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> EnergyModel:
        """Read the JSON form. Raises KeyError, TypeError or ValueError if the data is something else."""
        if data["handheld"] != "energy" or data["version"] != VERSION:
            raise ValueError("this is not the energy model of a device, or it is of another version")
        names = {known.name for known in fields(Rail)}  # Older files have more.
        kept: list[dict[str, Any]] = [{k: v for k, v in rail.items() if k in names} for rail in data["rails"]]
        rails = tuple(Rail(**{**rail, "covers": tuple(rail["covers"])}) for rail in kept)
        samples = tuple(
            EnergySample(Effort(**s["effort"]), float(s["seconds"]), {k: float(v) for k, v in s["joules"].items()})
            for s in data["samples"]
        )
        if any(s.seconds <= 0 for s in samples) or not samples or not rails:
            raise ValueError("an energy model needs rails, and samples that took time")
        return EnergyModel(
            str(data["device"]),
            str(data["driver"]),
            str(data["date"]),
            float(data["measuring_s"]),
            int(data["compute_units"]),
            int(data["cache_bytes"]),
            rails,
            samples,
            {str(name): int(version) for name, version in data.get("families", {}).items()},
        )


class _Fit:
    """The fitted power on one rail."""

    def __init__(self, model: EnergyModel, rail: str, samples: Sequence[EnergySample]) -> None:
        self.model = model
        self.efforts = [sample.effort for sample in samples]
        self.seconds = np.array([sample.seconds for sample in samples])
        self.measured = np.maximum(np.array([s.joules[rail] for s in samples]) / self.seconds, 1e-6)
        self._numbers: dict[tuple[int, str], int] = {}
        rates = [s.effort.bytes / s.seconds for s in samples if s.effort.groups >= model.compute_units]
        self.most_bytes_s = max(rates, default=math.inf)
        self.weights, self.process = self._fitted(np.ones(len(samples), bool))

    def _fitted(self, used: np.ndarray) -> tuple[np.ndarray, Process]:
        efforts = [effort for effort, use in zip(self.efforts, used, strict=True) if use]
        seconds, measured = self.seconds[used], self.measured[used]
        terms = self._terms(efforts, seconds)
        weights = non_negative(terms / measured[:, None], np.ones(len(efforts)))
        left = np.log(measured / np.maximum(terms @ weights, 1e-6))
        shape = Shape(np.array(SCALES), np.array(APART), DEVIATION, NOISE)
        return weights, Process(self._points(efforts, seconds), left, shape)

    def watts(self, efforts: Sequence[Effort], seconds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The watts of ops that take these seconds, and the deviation of their logarithms."""
        correction, deviation = self.process(self._points(efforts, seconds))
        watts: np.ndarray = np.maximum(self._terms(efforts, seconds) @ self.weights, 1e-6) * np.exp(correction)
        return np.minimum(watts, MOST * self.measured.max()), deviation

    @cached_property
    def held_out(self) -> np.ndarray:
        errors = []
        for i, effort in enumerate(self.efforts):
            used = np.array([other != effort for other in self.efforts])
            if used.sum() < 3:
                return np.zeros(0)
            weights, process = self._fitted(used)
            at = self.seconds[i : i + 1]
            watts = (self._terms([effort], at) @ weights) * np.exp(process(self._points([effort], at))[0])
            most = MOST * self.measured[used].max()
            errors.append(float(min(watts[0], most) / self.measured[i] - 1))
        return np.array(errors)

    def _terms(self, efforts: Sequence[Effort], seconds: np.ndarray) -> np.ndarray:
        """The terms of the power, one row per op."""
        units, cache = self.model.compute_units, self.model.cache_bytes
        rows = []
        for effort, took in zip(efforts, seconds.tolist(), strict=True):
            # Few work-groups cannot move the bytes that all of them can, whatever the count of bytes says.
            moved = min(effort.bytes / took, min(effort.groups / units, 1.0) * self.most_bytes_s)
            beyond = min(max((effort.bytes - cache / 2) / (cache / 2), 0.0), 1.0) if cache else 1.0
            rows.append(
                (
                    1.0,
                    min(effort.groups / units, 1.0),
                    min(effort.items / (units * ITEMS), 1.0),
                    effort.flops / took * 1e-12,
                    moved * 1e-12,
                    moved * beyond * 1e-12,
                    math.sqrt(effort.flops / took * 1e-12),  # The last units of a rate cost less than the first.
                    math.sqrt(moved * 1e-12),
                    effort.launches / took * 1e-6,
                )
            )
        return np.array(rows)

    def _points(self, efforts: Sequence[Effort], seconds: np.ndarray) -> Points:
        rows, kinds = [], []
        for effort, took in zip(efforts, seconds.tolist(), strict=True):
            rows.append(
                [
                    math.log2(max(effort.flops / took, LEAST_FLOPS_S)),
                    math.log2(max(effort.bytes / took, LEAST_BYTES_S)),
                    math.log2(max(effort.groups, 1)),
                    math.log2(max(effort.items, 1)),
                    math.log2(took),
                ]
            )
            kinds.append([self._number(0, effort.kernel), self._number(1, effort.op)])
        return Points(np.array(rows), np.array(kinds))

    def _number(self, column: int, text: str) -> int:
        return self._numbers.setdefault((column, text), len(self._numbers))


def non_negative(terms: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The non-negative weights whose sums of terms are closest to the values. There are few terms, so all choices of
    terms are tried."""
    square, aim = terms.T @ terms, terms.T @ values
    best, least = np.zeros(terms.shape[1]), 0.0
    for size in range(1, terms.shape[1] + 1):
        for chosen in itertools.combinations(np.flatnonzero(np.diag(square) > 0).tolist(), size):
            inner = square[np.ix_(chosen, chosen)]
            weights = np.linalg.lstsq(inner, aim[list(chosen)], rcond=1e-10)[0]
            error = float(weights @ inner @ weights - 2 * weights @ aim[list(chosen)])
            if (weights >= 0).all() and error < least:
                best, least = np.zeros(terms.shape[1]), error
                best[list(chosen)] = weights
    return best

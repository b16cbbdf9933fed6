"""One node on a device and the variants of it that have run, whoever runs them.

open_subject.py     an OpenCL device of this process
target_subject.py   a device that a runner serves
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from handheld.device import DeviceCaps
from handheld.graph.dtypes import DTYPES, F16
from handheld.graph.graph import Graph
from handheld.kernels.base import Choice, Launch, Lowered
from handheld.plan.lowering import lower
from handheld.run.verify import relative_error

TOLERANCE = 2e-5  # Both sides are float32.
HALF_TOLERANCE = 2.0**-11  # Both sides are rounded to half precision, possibly to neighbouring values.
HALF_PRODUCTS = 2.0**-9  # The device also multiplies in half precision.
PERIOD = 1_000_003  # Random inputs repeat after so many elements. It is a prime, so no two rows are equal.


class Subject(ABC):
    """One node on a device, and the variants of it that have run. A subclass runs them."""

    def __init__(self, graph: Graph, caps: DeviceCaps) -> None:
        self.graph, self.caps, self.node = graph, caps, graph.nodes[0]
        self.reference: dict[int, np.ndarray] = {}
        self._tried: set[str] = set()
        self._lowered: dict[tuple[Launch, ...], str] = {}

    @abstractmethod
    def prepare(self, key: str, lowered: Lowered) -> None:
        """Builds a variant and runs it once, with output memory that was filled with NaN before."""

    @abstractmethod
    def output(self, tensor: int, into: np.ndarray) -> None:
        """Reads a result of the variant that was prepared last."""

    @abstractmethod
    def time(self, key: str, seconds: float) -> list[float]:
        """Seconds per run of a variant. Each sample covers enough runs for the clock to resolve."""

    @abstractmethod
    def close(self) -> None:
        """Frees the device."""

    def attempt(self, choice: Choice | None, seconds: float) -> dict[str, Any]:
        key = json.dumps(choice)
        if key in self._tried:
            return {"seconds": self.time(key, seconds)}
        lowered = lower(self.node, self.graph, self.caps, choice)
        twin = self._lowered.setdefault(lowered.launches, key)
        if twin != key:
            return {"same_as": json.loads(twin)}
        self.prepare(key, lowered)
        error = self._error()
        halves = any(self.graph.tensors[t].dtype == F16 for t in self.node.outputs)
        most = HALF_PRODUCTS if "arithmetic" in self.node.attrs else HALF_TOLERANCE if halves else TOLERANCE
        if error > most:
            return {"failed": f"wrong result: off by {error:.1e}"}
        self._tried.add(key)
        return {"error": error, "seconds": self.time(key, seconds)}

    def inputs(self) -> dict[int, np.ndarray]:
        """Random values of the inputs, the same for every variant."""
        random = np.random.default_rng(0)
        tensors = [self.graph.tensors[given.tensor] for given in self.graph.inputs]
        return {tensor.id: _random(random, tensor.size, tensor.dtype) for tensor in tensors}

    def _error(self) -> float:
        """The largest relative error of the outputs. The first result becomes the reference."""
        worst = 0.0
        for t in self.node.outputs:
            tensor = self.graph.tensors[t]
            got: np.ndarray = np.empty(tensor.size, DTYPES[tensor.dtype].numpy)
            if got.size:
                self.output(t, got)
            worst = max(worst, _difference(got, self.reference.setdefault(t, got)))
        return worst


def _random(random: np.random.Generator, size: int, dtype: str) -> np.ndarray:
    few = min(size, PERIOD)
    if DTYPES[dtype].is_float:
        drawn: np.ndarray = random.standard_normal(few, np.float32).astype(DTYPES[dtype].numpy)
    else:  # 0 and 1 are valid indices for every tensor.
        drawn = random.integers(0, 2, few).astype(DTYPES[dtype].numpy)
    return np.resize(drawn, size)


def _difference(got: np.ndarray, want: np.ndarray) -> float:
    """As relative_error, but fast for equal results, because tensors may be large."""
    if got.dtype == np.float32:
        gap, scale = got - want, float(np.vdot(want, want))
        square = float(np.vdot(gap, gap))
        if scale > 0 and square <= (0.5 * TOLERANCE) ** 2 * scale < math.inf:
            return math.sqrt(square / scale)
    return relative_error(got, want)

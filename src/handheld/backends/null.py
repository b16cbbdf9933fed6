"""The null backend: a session that computes nothing. Floats that it returns are NaN, so that nobody uses them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import numpy as np

from handheld.backends.base import ClockMark, Recording, Session, host_caps
from handheld.backends.table import unknown
from handheld.device import DeviceCaps
from handheld.errors import DeviceError
from handheld.graph.dtypes import DTYPES

if TYPE_CHECKING:
    from handheld.plan.plan import Plan


def describe(device: str) -> DeviceCaps:
    if device != "null":
        raise unknown(device)
    return host_caps("null", "null")


class _Nothing:
    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        self.shape, self.dtype = shape, dtype

    def read(self) -> np.ndarray:
        if DTYPES[self.dtype].is_float:
            return np.full(self.shape, np.nan, np.float32)
        return np.zeros(self.shape, DTYPES[self.dtype].numpy)


class NullSession(Session):
    """Counts what would happen. Slots keep their values."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._slots = {name: value.copy() for name, value in plan.values.items()}

    def upload(self, graph: str, tensor: int, array: np.ndarray) -> None:
        self.counters.uploads += 1
        self.counters.upload_bytes += array.nbytes

    def run(self, graph: str) -> None:
        self.counters.steps += 1
        self.counters.launches += len(self.plan.graphs[graph].graph.nodes)

    def run_repeated(self, graph: str, repeats: Mapping[int, int]) -> None:
        self.counters.launches += sum(repeats.get(node, 1) for node in range(len(self.plan.graphs[graph].graph.nodes)))

    def run_node(self, graph: str, index: int) -> None:
        self.counters.launches += 1

    def download(self, graph: str, tensor: int) -> _Nothing:
        record = self.plan.graphs[graph].graph.tensors[tensor]
        self.counters.downloads += 1
        self.counters.download_bytes += record.nbytes
        return _Nothing(record.shape, record.dtype)

    def read_tensor(self, graph: str, tensor: int) -> np.ndarray:
        return self.download(graph, tensor).read()

    def set_tensor(self, graph: str, tensor: int, array: np.ndarray) -> None:
        self.upload(graph, tensor, array)

    def read_slot(self, name: str) -> np.ndarray:
        return self._slots[name].copy()

    def write_slot(self, name: str, array: np.ndarray) -> None:
        self._slots[name] = array.copy()

    def record(self) -> AbstractContextManager[Recording]:
        raise DeviceError("null computes nothing, so there are no times to record. Try: another device")

    def clock_mark(self) -> ClockMark:
        raise DeviceError("null computes nothing and has no clock. Try: another device")

    def finish(self) -> None:
        self.counters.finishes += 1

    def close(self) -> None:
        self._slots.clear()


open_plan = NullSession

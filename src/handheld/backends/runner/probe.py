"""Runs single launches on a device of a runner, to learn what its compiler does."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np

from handheld.backends.runner.link import Link, Op
from handheld.backends.runner.wire import files, open_file, read, write
from handheld.device import DeviceCaps
from handheld.errors import DeviceError, TargetLost
from handheld.graph.dtypes import F32
from handheld.graph.graph import Graph, Node, Origin, Tensor
from handheld.kernels.base import Launch, Lowered
from handheld.plan import file
from handheld.plan.memory import Place
from handheld.plan.plan import GraphPlan, Plan
from handheld.step import Step

RESULTS = 4


class RunnerProbe:
    """A device of a runner, for programs that are run once (backends/vectors.py)."""

    def __init__(self, link: Link, device: int, caps: DeviceCaps) -> None:
        self._link, self._device, self._caps = link, device, caps

    def run(self, launch: Launch, features: str, x: np.ndarray) -> np.ndarray | None:
        y: np.ndarray = np.zeros(RESULTS, np.float32)
        try:
            caps = replace(self._caps, features=features)
            open_file(self._link, self._device, caps, file.to_bytes(_plan(launch, caps, x)))
            write(self._link, 0, 0, x)
            self._link.send(Op.RUN, struct.pack("<I", 0))
            read(self._link, 1, 0, y).wait()
            self._link.send(Op.CLOSE)
        except TargetLost:
            raise
        except DeviceError:  # It does not build or run.
            return None
        return y

    def processor(self) -> str:
        return "".join(found.content.decode(errors="replace") for found in files(self._link, "/proc/cpuinfo"))


def _plan(launch: Launch, caps: DeviceCaps, x: np.ndarray) -> Plan:
    """A plan of one launch, whose arguments are tensor 0 (x) and tensor 1 (the results), each in its own memory."""
    tensors = {0: Tensor(0, x.shape, F32, "input"), 1: Tensor(1, (RESULTS,), F32, "activation")}
    node = Node("map", (), (1,), {}, Origin("forward", "", ""))
    graph = Graph("probe", tensors, (node,), (), {}, (), ())
    places = {0: Place(0, 0, x.nbytes), 1: Place(1, 0, 4 * RESULTS)}
    planned = GraphPlan(graph, (Lowered((launch,)),), places, {}, ())
    step = Step({}, {}, {"probe": graph})
    return Plan(step, "runner", caps, {"probe": planned}, {}, (x.nbytes, 4 * RESULTS), 0)

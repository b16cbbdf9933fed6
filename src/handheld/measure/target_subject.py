"""One node on a device that a runner serves. Each variant is a plan file of its own; the runner times it."""

from __future__ import annotations

import dataclasses
import struct

import numpy as np

from handheld.backends.runner import connect, wire
from handheld.backends.runner.link import Op
from handheld.graph.dtypes import F16
from handheld.graph.graph import Graph
from handheld.kernels.base import Arg, Buffer, Int, Launch, Lowered, Start, Texture, Workspace
from handheld.measure.subject import Subject
from handheld.plan.file_bare import bare_file
from handheld.targets.names import parse


class TargetSubject(Subject):
    """A node whose variants a runner builds and times. Every tensor has a segment of its own."""

    def __init__(self, device: str, graph: Graph) -> None:
        name = parse(device)
        found = connect.find(name)
        super().__init__(graph, found.caps)
        self.index, self.link = found.index, connect.take(name)
        self._segments = {t: i for i, t in enumerate(graph.tensors)}
        self._halves = {self._segments[t] for t, tensor in graph.tensors.items() if tensor.dtype == F16}
        self._files: dict[str, bytes] = {}
        self._open = ""  # The variant that the runner has open.

    def prepare(self, key: str, lowered: Lowered) -> None:
        sizes = [tensor.nbytes for tensor in self.graph.tensors.values()]
        launches = [self._placed(launch) for launch in lowered.launches]
        self._files[key] = bare_file(self.caps, [*sizes, *lowered.workspace], {"go": launches}, self._halves)
        self._switch(key)
        outputs = [self._segments[t] for t in self.node.outputs]
        for segment in (*outputs, *range(len(sizes), len(sizes) + len(lowered.workspace))):
            nbytes = max([*sizes, *lowered.workspace][segment], 4)
            self.link.send(Op.FILL, struct.pack("<IIQQ", segment, 255, 0, nbytes))
        self.link.send(Op.RUN, struct.pack("<I", 0))
        self.link.get(Op.FINISH)

    def _switch(self, key: str) -> None:
        """Opens a variant and gives it the inputs."""
        if self._open == key:
            return
        self._open = ""
        wire.open_file(self.link, self.index, self.caps, self._files[key])
        for t, data in self.inputs().items():
            if data.size:
                wire.write(self.link, self._segments[t], 0, data)
        self._open = key

    def _placed(self, launch: Launch) -> Launch:
        return dataclasses.replace(launch, args=tuple(self._arg(arg) for arg in launch.args))

    def _arg(self, arg: Arg) -> Arg:
        if isinstance(arg, Buffer):
            return Buffer(self._segments[arg.tensor])
        if isinstance(arg, Texture):
            return Texture(self._segments[arg.tensor], arg.floats)
        if isinstance(arg, Workspace):
            return Buffer(len(self._segments) + arg.index)
        return Int(0) if isinstance(arg, Start) else arg  # Every tensor begins at the start of its segment.

    def output(self, tensor: int, into: np.ndarray) -> None:
        wire.read(self.link, self._segments[tensor], 0, into).wait()

    def time(self, key: str, seconds: float) -> list[float]:
        self._switch(key)
        samples = np.frombuffer(self.link.get(Op.TIME, struct.pack("<IId", 0, 0, seconds)), "<f8")
        return [float(sample) for sample in samples]

    def close(self) -> None:
        self.link.send(Op.CLOSE)
        connect.give_back(self.link)

"""One node on an OpenCL device of this process."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import numpy as np

from handheld.backends.opencl import devices as opencl_devices
from handheld.backends.opencl.bind import OwnBuffers, bind
from handheld.backends.opencl.programs import build
from handheld.backends.opencl.submit import Bound, Enqueuer, Work
from handheld.errors import HandheldError
from handheld.graph.graph import Graph
from handheld.kernels.base import Lowered
from handheld.measure.subject import Subject
from handheld.plan.widen import texts_of

if TYPE_CHECKING:
    import pyopencl as cl

SAMPLE_SECONDS = 1e-3  # Long enough to make a clock reading and a wait negligible.


class OpenSubject(Subject):
    """A node whose variants this process builds and enqueues."""

    def __init__(
        self, found: opencl_devices.OpenCLDevice, queue: cl.CommandQueue, graph: Graph, programs: dict[str, cl.Program]
    ) -> None:
        super().__init__(graph, found.caps)
        self.api = opencl_devices.opencl()
        self.queue = queue
        self.programs = programs  # By source text, because many choices change only arguments.
        self.bound: dict[str, Work] = {}
        self.submitter = Enqueuer()
        self._scratch: list[cl.Buffer] = []
        self._all: list[cl.Buffer] = []  # Keeps every bound buffer alive.
        self._buffers = {t: self._buffer(tensor.nbytes) for t, tensor in graph.tensors.items()}
        self._places = OwnBuffers(queue.context, graph, self._buffers, self._scratch)
        for t, data in self.inputs().items():
            if data.size:
                self.api.enqueue_copy(queue, self._buffers[t], data, is_blocking=True)

    def _buffer(self, nbytes: int) -> cl.Buffer:
        flags = self.api.mem_flags.READ_WRITE
        self._all.append(self.api.Buffer(self.queue.context, flags, max(nbytes, 4)))
        return self._all[-1]

    def prepare(self, key: str, lowered: Lowered) -> None:
        bound = self._bind(lowered)
        self._fill()
        self._run(bound, 1)
        self.bound[key] = bound

    def output(self, tensor: int, into: np.ndarray) -> None:
        self.api.enqueue_copy(self.queue, into, self._buffers[tensor], is_blocking=True)

    def _bind(self, lowered: Lowered) -> Work:
        for i, nbytes in enumerate(lowered.workspace):
            if i == len(self._scratch) or self._scratch[i].size < nbytes:
                self._scratch[i : i + 1] = [self._buffer(nbytes)]
        bound, texts = [], texts_of(lowered.launches, self.caps)
        for launch in lowered.launches:
            text = texts[launch.text]
            if text not in self.programs:
                self.programs[text] = self._build(text)
            kernel = self.api.Kernel(self.programs[text], launch.kernel)
            bind(kernel, launch, self._places)
            bound.append(Bound(0, kernel, launch.global_size, launch.local_size))
        return Work(None, tuple(bound))

    def _build(self, text: str) -> cl.Program:
        try:
            return build(self.queue.context, text)
        except self.api.Error as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            line = next((text for text in lines if "error" in text.lower()), lines[0])
            raise HandheldError(f"the driver could not build it: {line.strip()}") from None

    def _fill(self) -> None:
        for buffer in (*(self._buffers[t] for t in self.node.outputs), *self._scratch):
            self.api.enqueue_fill_buffer(self.queue, buffer, np.array(255, np.uint8), 0, buffer.size)

    def _run(self, bound: Work, times: int) -> None:
        for _ in range(times):
            self.submitter.submit(self.queue, bound, None)
        self.queue.finish()

    def time(self, key: str, seconds: float) -> list[float]:
        bound = self.bound[key]
        started = time.perf_counter()
        self._run(bound, 1)
        once = max(time.perf_counter() - started, 1e-7)
        if once >= seconds:
            return [once]
        times, samples = max(1, math.ceil(SAMPLE_SECONDS / once)), list[float]()
        while time.perf_counter() < started + seconds or not samples:
            begun = time.perf_counter()
            self._run(bound, times)
            samples.append((time.perf_counter() - begun) / times)
        return samples

    def close(self) -> None:
        self.bound.clear()
        self._places.release()
        while self._all:
            self._all.pop().release()

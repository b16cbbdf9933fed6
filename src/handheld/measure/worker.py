"""The process in which candidates run, so that a driver that hangs or crashes affects only this process.

It reads one JSON object per line and answers with one:

    {"do": "open", "device": "opencl:0", "graph": {...}}   opens a graph of one node
    {"do": "try", "choice": {...}, "seconds": 0.03}        lowers, builds, runs and checks a variant
                                                           the first time, and times it every time

The first choice that runs is the reference for all others; it should be null, the family's default. Output
memory is filled with NaN before a run, so that missing outputs are noticed.
"""

from __future__ import annotations

import json
import math
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from handheld.backends.opencl import devices as opencl_devices
from handheld.backends.opencl.bind import OwnBuffers, bind
from handheld.backends.opencl.programs import build
from handheld.backends.opencl.submit import Bound, Enqueuer, Work
from handheld.backends.opencl.widen import texts_of
from handheld.child import Parent
from handheld.errors import HandheldError
from handheld.graph.check import check
from handheld.graph.codec import from_json
from handheld.graph.dtypes import DTYPES, F16
from handheld.graph.graph import Graph
from handheld.kernels.base import Choice, Launch, Lowered
from handheld.plan.lowering import lower
from handheld.run.verify import relative_error

if TYPE_CHECKING:
    import pyopencl as cl

TOLERANCE = 2e-5  # Both sides are float32.
HALF_TOLERANCE = 2.0**-11  # Both sides are rounded to half precision, possibly to neighbouring values.
SAMPLE_SECONDS = 1e-3  # Long enough to make a clock reading and a wait negligible.
PERIOD = 1_000_003  # Random inputs repeat after so many elements. It is a prime, so no two rows are equal.


class Subject:
    """One node on a device, and the variants of it that have run."""

    def __init__(
        self, found: opencl_devices.OpenCLDevice, queue: cl.CommandQueue, graph: Graph, programs: dict[str, cl.Program]
    ) -> None:
        self.api = opencl_devices.opencl()
        self.found, self.queue, self.graph = found, queue, graph
        self.programs = programs  # By source text, because many choices change only arguments.
        self.node = graph.nodes[0]
        self.reference: dict[int, np.ndarray] = {}
        self.bound: dict[str, Work] = {}
        self.submitter = Enqueuer()
        self._lowered: dict[tuple[Launch, ...], str] = {}
        self._scratch: list[cl.Buffer] = []
        self._all: list[cl.Buffer] = []  # Keeps every bound buffer alive.
        self._buffers = {t: self._buffer(tensor.nbytes) for t, tensor in graph.tensors.items()}
        self._places = OwnBuffers(queue.context, graph, self._buffers, self._scratch)
        random = np.random.default_rng(0)
        for given in graph.inputs:
            tensor = graph.tensors[given.tensor]
            data = _random(random, tensor.size, tensor.dtype)
            if data.size:
                self.api.enqueue_copy(queue, self._buffers[tensor.id], data, is_blocking=True)

    def _buffer(self, nbytes: int) -> cl.Buffer:
        flags = self.api.mem_flags.READ_WRITE
        self._all.append(self.api.Buffer(self.queue.context, flags, max(nbytes, 4)))
        return self._all[-1]

    def attempt(self, choice: Choice | None, seconds: float) -> dict[str, Any]:
        if _key(choice) in self.bound:
            return {"seconds": self.time(choice, seconds)}
        lowered = lower(self.node, self.graph, self.found.caps, choice)
        twin = self._lowered.setdefault(lowered.launches, _key(choice))
        if twin != _key(choice):
            return {"same_as": json.loads(twin)}
        bound = self._bind(lowered)
        self._fill()
        self._run(bound, 1)
        error = self._error()
        halves = any(self.graph.tensors[t].dtype == F16 for t in self.node.outputs)
        if error > (HALF_TOLERANCE if halves else TOLERANCE):
            return {"failed": f"wrong result: off by {error:.1e}"}
        self.bound[_key(choice)] = bound
        return {"error": error, "seconds": self.time(choice, seconds)}

    def _bind(self, lowered: Lowered) -> Work:
        for i, nbytes in enumerate(lowered.workspace):
            if i == len(self._scratch) or self._scratch[i].size < nbytes:
                self._scratch[i : i + 1] = [self._buffer(nbytes)]
        bound, texts = [], texts_of(lowered.launches, self.found.caps)
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

    def _error(self) -> float:
        """The largest relative error of the outputs. The first result becomes the reference."""
        worst = 0.0
        for t in self.node.outputs:
            tensor = self.graph.tensors[t]
            got: np.ndarray = np.empty(tensor.size, DTYPES[tensor.dtype].numpy)
            if got.size:
                self.api.enqueue_copy(self.queue, got, self._buffers[t], is_blocking=True)
            worst = max(worst, _difference(got, self.reference.setdefault(t, got)))
        return worst

    def time(self, choice: Choice | None, seconds: float) -> list[float]:
        """Seconds per run. Each sample covers enough runs for the clock to resolve."""
        bound = self.bound[_key(choice)]
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


def _key(choice: Choice | None) -> str:
    return json.dumps(choice)


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


class Worker:
    """Keeps the device open from one graph to the next."""

    def __init__(self) -> None:
        self.device = ""
        self.queue: cl.CommandQueue | None = None
        self.programs: dict[str, cl.Program] = {}
        self.subject: Subject | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["do"] == "open":
            return self._open(request["device"], request["graph"])
        if self.subject is None:
            raise HandheldError("no graph is open")
        return self.subject.attempt(request["choice"], request["seconds"])

    def _open(self, device: str, graph: dict[str, Any]) -> dict[str, Any]:
        if self.subject is not None:
            self.subject.close()
            self.subject = None
        opened = opencl_devices.find(device)
        if self.queue is None or self.device != device:
            api = opencl_devices.opencl()
            self.queue, self.device = api.CommandQueue(api.Context([opened.device])), device
            self.programs.clear()
        self.subject = Subject(opened, self.queue, check(from_json(graph)), self.programs)
        return {}


def main() -> None:
    """Answer requests until standard input ends."""
    parent, worker = Parent(), Worker()
    while (request := parent.receive()) is not None:
        try:
            reply = worker.answer(request)
        except Exception as error:  # Drivers raise their own types of errors; each one is an answer.
            name = "" if isinstance(error, HandheldError) else f"{type(error).__name__}: "
            reply = {"failed": f"{name}{error}"}
        parent.send(reply)


if __name__ == "__main__":
    main()

"""The rows of bench/kernels.py, ready to be timed: Handheld's launches and PyTorch's op for the same result."""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import contractions
import numpy as np
import pyopencl as cl
import streams
import torch
import tuned
from contractions import Contraction
from streams import Stream, Update

import handheld
from handheld.backends.opencl.bind import OwnBuffers, bind
from handheld.backends.opencl.devices import OpenCLDevice, find
from handheld.backends.opencl.programs import build
from handheld.backends.opencl.session import OpenCLSession
from handheld.device import DeviceCaps
from handheld.errors import PlanError
from handheld.graph.graph import Graph
from handheld.kernels import contract
from handheld.kernels.base import Lowered
from handheld.measure.ceilings import Ceilings
from handheld.plan.lowering import lower
from handheld.plan.widen import texts_of

PAUSE = 0.01  # seconds between turns
Seconds = Callable[[int], float]  # number of runs -> seconds per run


@dataclass
class Subject:
    """A row that is ready to be timed. `read` and `written` are bytes that move once, `again` those read again."""

    family: str
    name: str
    ours: Seconds
    theirs: Seconds
    error: float
    why: str
    choice: str
    launches: int
    read: int
    written: int
    again: int = 0
    #: whether outputs overwrite inputs
    in_place: bool = False
    flops: int = 0
    candidates: list[dict[str, Any]] = field(default_factory=list)
    close: Callable[[], None] = lambda: None


# ---------------------------------------------------------------------------------- theirs


def pytorch(run: Callable[[], Any], where: str) -> Seconds:
    def on_cpu(times: int) -> float:
        run()
        started = time.perf_counter()
        for _ in range(times):
            run()
        return (time.perf_counter() - started) / times

    def on_cuda(times: int) -> float:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        run()
        torch.cuda._sleep(50_000 * times)  # type: ignore[no-untyped-call]  # so that the host enqueues before the device runs
        first.record()
        for _ in range(times):
            run()
        last.record()
        torch.cuda.synchronize()
        return first.elapsed_time(last) / 1e3 / times

    return on_cpu if where == "cpu" else on_cuda


# ---------------------------------------------------------------------------------- ours


def by_events(queue: Any, launches: list[Any]) -> Seconds:
    """Times the launches by the device's own events, after one round that wakes the device up."""

    def seconds(times: int) -> float:
        events = [cl.enqueue_nd_range_kernel(queue, *launch) for _ in range(times + 1) for launch in launches]
        queue.finish()
        return sum(e.profile.end - e.profile.start for e in events[len(launches) :]) / 1e9 / times

    return seconds


@dataclass
class Device:
    found: OpenCLDevice
    queue: Any
    where: str
    ceilings: Ceilings
    records: tuned.Tuning

    @property
    def caps(self) -> DeviceCaps:
        return self.found.caps

    @staticmethod
    def open(spec: str, where: str) -> Device:
        found = find(spec)
        profiling = cl.command_queue_properties.PROFILING_ENABLE
        queue = cl.CommandQueue(cl.Context([found.device]), properties=profiling)
        return Device(found, queue, where, handheld.ceilings(spec), tuned.known(found.caps)[0])


class Bound:
    """A lowered contraction with its arguments bound."""

    def __init__(self, device: Device, graph: Graph, lowered: Lowered, inputs: list[Any], out: Any) -> None:
        self.queue, self.why = device.queue, lowered.why
        context, flags = self.queue.context, cl.mem_flags
        copied = flags.READ_WRITE | flags.COPY_HOST_PTR
        self.out = np.zeros(out, np.float32)
        self.buffers = [cl.Buffer(context, copied, hostbuf=a) for a in (*inputs, self.out)]
        self.scratch = [cl.Buffer(context, flags.READ_WRITE, n) for n in lowered.workspace]
        programs = {given: build(context, text) for given, text in texts_of(lowered.launches, device.caps).items()}
        places = OwnBuffers(context, graph, dict(enumerate(self.buffers)), self.scratch)
        self.launches = []
        for launch in lowered.launches:
            kernel = cl.Kernel(programs[launch.text], launch.kernel)
            bind(kernel, launch, places)
            self.launches.append((kernel, launch.global_size, launch.local_size))
        self.seconds = by_events(self.queue, self.launches)

    def close(self) -> None:
        """Releases the buffers. This object must live until then, because a kernel does not keep its buffers alive."""
        for buffer in (*self.buffers, *self.scratch):
            buffer.release()

    def result(self) -> np.ndarray:
        self.seconds(1)
        cl.enqueue_copy(self.queue, self.out, self.buffers[2])
        return self.out


def contraction(row: Contraction, device: Device, options: argparse.Namespace) -> Subject:
    shapes, run = contractions.operation(row)
    generator = torch.Generator().manual_seed(0)
    host = [torch.randn(shape, generator=generator) for shape in shapes]
    inputs = [t.to(device.where) for t in host]
    want = run(*inputs).cpu().numpy()
    graph = contractions.graph_of(row, host, want.shape)
    node, caps = graph.nodes[0], device.caps

    def bound_with(choice: Any) -> tuple[Bound, float]:
        lowered = lower(node, graph, caps, choice)
        bound = Bound(device, graph, lowered, [t.numpy() for t in host], want.shape)
        return bound, distance(bound.result(), want)

    standing, choice = tuned.standing(node, graph, caps, device.records)
    ours, error = bound_with(choice)
    tried: list[dict[str, Any]] = []
    for other in contract.candidates(node, graph, caps) if options.candidates else ():
        try:
            candidate, wrong = bound_with(other)
        except (cl.Error, PlanError) as problem:
            tried.append({"choice": dict(other), "failed": str(problem)[:200]})
            continue
        (spent,) = medians([candidate.seconds], options)
        candidate.close()
        tried.append({"choice": dict(other), "why": candidate.why, "us": spent * 1e6, "error": wrong})
    return Subject(
        row.op,
        row.name,
        ours.seconds,
        pytorch(lambda: run(*inputs), device.where),
        error,
        ours.why,
        standing,
        len(ours.launches),
        sum(t.nbytes for t in host),
        want.nbytes,
        flops=contract.flops(node, graph),
        close=ours.close,
        candidates=sorted(tried, key=lambda t: t.get("us", math.inf)),
    )


def stream(row: Stream | Update, device: Device, options: argparse.Namespace) -> Subject:
    """A row that is planned like a step: the plan places its memory and fuses its kernels."""
    host = row.make() if isinstance(row, Stream) else []
    step, name = streams.step_of(row, host)
    plan = step.plan(options.on)
    session = OpenCLSession(plan, profiling=True)
    part = plan.graphs[name]
    nodes = range(len(part.graph.nodes))
    if isinstance(row, Update):
        nodes = [
            i
            for i in nodes
            if part.graph.nodes[i].origin.phase == "update" and part.graph.nodes[i].origin.path != "handheld"
        ]
        run, count = streams.pytorch_update(row, device.where)
        error, read, written = math.nan, 12 * count, 8 * count
    else:
        inputs = [t.to(device.where) for t in host]
        want = streams.outputs(row.run(*inputs))
        for given, t in zip(part.graph.inputs, host, strict=True):
            kind = np.int32 if t.dtype == torch.int64 else np.float32
            session.set_tensor(name, given.tensor, t.numpy().astype(kind))
        session.run(name)
        error = max(
            distance(session.read_tensor(name, shown.view.tensor), t.cpu().numpy())
            for shown, t in zip(part.graph.outputs, want, strict=True)
        )
        read = sum(size(t) for t in host) if row.read is None else row.read
        written = sum(size(t) for t in want)

        def run() -> Any:
            return row.run(*inputs)

    launches = [launch[1:] for i in nodes for launch in session.launches(name, i)]
    return Subject(
        row.family,
        row.name,
        by_events(session.queue, launches),
        pytorch(run, device.where),
        error,
        "; ".join(dict.fromkeys(part.lowered[i].why for i in nodes)),
        "—",
        len(launches),
        read,
        written,
        sum(streams.extra_walks(part.graph.nodes[i], part.graph) for i in nodes),
        isinstance(row, Update),
        close=session.close,
    )


def size(tensor: torch.Tensor) -> int:
    """Bytes on the device, where int64 becomes i32."""
    return tensor.numel() * min(tensor.element_size(), 4)


def distance(got: np.ndarray, want: np.ndarray) -> float:
    """The norm of the difference, relative to the norm of `want`."""
    gap = got.reshape(want.shape).astype(np.float64) - want
    return float(np.linalg.norm(gap) / (np.linalg.norm(want) or 1))


# ---------------------------------------------------------------------------------- turns


def medians(runs: list[Seconds], options: argparse.Namespace) -> list[float]:
    """The median seconds per call of each, from rounds in which they take turns."""
    counts = []
    for run in runs:
        run(1)
        counts.append(max(1, min(50, round(0.005 / max(run(1), 1e-6)))))
    times: list[list[float]] = [[] for _ in runs]
    started = time.perf_counter()
    for _ in range(options.rounds):
        for run, count, into in zip(runs, counts, times, strict=True):
            time.sleep(PAUSE)
            into.append(run(count))
        if time.perf_counter() - started > options.seconds and len(times[0]) > 2:
            break
    return [statistics.median(t) for t in times]

"""The OpenCL backend: implements `Session` with the modules of this folder.

    devices    finds devices and names them
    memory     the memory of the plan on the device (staging: host memory for uploads)
    programs   builds kernels
    bind       gives kernels their arguments, once
    submit     gives launches to the device

There is one in-order queue, and one kernel object per launch whose arguments are bound once. A step consists of its
uploads, one enqueue per launch, and a download of the loss. The host waits for the loss only when it is read.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from handheld.backends.base import ClockMark, Counters, Session, check_device, open_session
from handheld.backends.opencl.ahead import compile_ahead
from handheld.backends.opencl.bind import bind
from handheld.backends.opencl.devices import find, opencl
from handheld.backends.opencl.host import Copies
from handheld.backends.opencl.lost import USES, reports_loss
from handheld.backends.opencl.memory import Memory, NodePlaces
from handheld.backends.opencl.programs import Kept, Programs
from handheld.backends.opencl.record import submitter_for
from handheld.backends.opencl.staging import Flight, Staging
from handheld.backends.opencl.submit import Bound, Notes, Submitter, Work
from handheld.device import DeviceCaps
from handheld.errors import DeviceError
from handheld.graph.dtypes import DTYPES
from handheld.plan.transfers import BEGIN, END, RUN
from handheld.store.commands import COPY, DOWNLOAD, UPLOAD, CommandKind

if TYPE_CHECKING:
    import pyopencl as cl

    from handheld.plan.memory import Place
    from handheld.plan.plan import GraphPlan, Plan

CLOCK_TRIES = 16
#: A slot of at most this many bytes is written without waiting.
SMALL = 4096


def describe(device: str) -> DeviceCaps:
    return find(device).caps


def stable_name(device: str) -> str:
    return f"opencl:{find(device).name}"


@reports_loss("read")
class _Download:
    """Host memory that a device-to-host copy fills."""

    def __init__(self, host: np.ndarray, event: cl.Event | None, counters: Counters, device: str) -> None:
        self.host, self.event, self.counters, self.device = host, event, counters, device

    def read(self) -> np.ndarray:
        if self.event is not None:
            self.event.wait()
            self.counters.waits += 1
            self.event = None
        return self.host


@reports_loss(*USES)
class OpenCLSession(Session):
    """Buffers, programs and bound kernels of one plan.

    profiling       the device keeps the times of every command, also outside a recording
    build_threads   how many programs are built at the same time; default: the number of processors
    kept            a context and programs that several plans share
    submitter       how launches reach the device (submit.py)
    before          a closed session on the same device, whose programs are used again
    """

    def __init__(
        self,
        plan: Plan,
        profiling: bool = False,
        build_threads: int | None = None,
        kept: Kept | None = None,
        submitter: Submitter | None = None,
        before: OpenCLSession | None = None,
    ) -> None:
        super().__init__(plan)
        api = self._api = opencl()
        self._slots = plan.slots
        self._found = find(plan.device)
        check_device(plan, self._found.caps)
        if not isinstance(submitter, Submitter | None):
            raise DeviceError(f"submitter={submitter!r:.60} must be a Submitter. Try: plan.start(submitter=Enqueuer())")
        self._submitter = submitter_for(self._found.device) if submitter is None else submitter
        self._flight = Flight()
        self._timed: cl.CommandQueue | None = None  # keeps times; created for the first recording
        self._mark: cl.Buffer | None = None
        self._notes: Notes | None = None
        earlier = before.context if before else None
        self.context: cl.Context = kept.context if kept else earlier or api.Context([self._found.device])
        properties = api.command_queue_properties.PROFILING_ENABLE if profiling else 0
        self.queue: cl.CommandQueue = api.CommandQueue(self.context, properties=properties)
        self._staging = Staging(api, self.context, self.queue, not plan.caps.unified_memory)
        started = time.perf_counter()
        self._memory = Memory(plan, self.context, self.queue)
        self.counters.allocations += len(self._memory)
        self.allocated_bytes = self._memory.nbytes
        #: The copies between the device and the host that are part of the plan.
        self._copies = Copies(plan, api, self.context, self.queue, self._memory) if plan.host_bytes else None
        self.timings["allocate"] = time.perf_counter() - started
        # The device receives the state while the host builds the kernels.
        writes = [self._write(name, value, False) for name, value in plan.values.items()]
        self.queue.flush()
        started = time.perf_counter()
        self._nodes: dict[str, list[Work]] = {}  # graph -> the work of each node
        self._steps: dict[str, Work] = {}
        self._memory.used_by(self._submitter, self._steps, self._nodes)
        self._programs: Programs = Programs(plan, self.context, kept, before._programs if before else None)
        self._bind_all(self._programs, build_threads)
        self.timings["build"] = time.perf_counter() - started
        for event, _ in writes:
            if event is not None:
                event.wait()

    @property
    def device_name(self) -> str:
        return f"opencl:{self._found.name}"

    # ── launches ──────────────────────────────────────────────────────────────────────────────

    def _bind_all(self, programs: Programs, threads: int | None) -> None:
        """Binds every launch as soon as its program is built."""
        plans = self.plan.graphs
        for name, graph in plans.items():
            self._nodes[name] = [Work(f"{name}/{i}", ()) for i in range(len(graph.lowered))]
        if threads is None:
            compile_ahead(self.plan, programs.sources)
        with programs.building(threads):
            order = [
                (max((programs.turn(launch) for launch in lowered.launches), default=0), name, i)
                for name, graph in plans.items()
                for i, lowered in enumerate(graph.lowered)
            ]
            for _, name, i in sorted(order):
                self._nodes[name][i] = Work(f"{name}/{i}", self._bound(programs, plans[name], i))
        for name, nodes in self._nodes.items():
            self._steps[name] = Work(name, tuple(launch for node in nodes for launch in node.launches))
        self.counters.builds += len(programs)

    def _bound(self, programs: Programs, graph: GraphPlan, node: int) -> tuple[Bound, ...]:
        places, bound = NodePlaces(self._memory, graph, node), []
        for launch in graph.lowered[node].launches:
            kernel = programs.kernel(launch)
            bind(kernel, launch, places)
            bound.append(Bound(node, kernel, launch.global_size, launch.local_size))
        self.counters.bindings += len(bound)
        return tuple(bound)

    def launches(self, graph: str, node: int) -> tuple[Bound, ...]:
        """Returns the launches of a node, for code that measures single kernels."""
        return self._nodes[graph][node].launches

    def _submit(self, work: Work) -> cl.Event | None:
        self.counters.launches += len(work.launches)
        return self._submitter.submit(self.queue, work, self._notes)

    def run(self, graph: str) -> None:
        whole = self._copies is None or graph not in self._copies.actions
        event = self._submit(self._steps[graph]) if whole else self._submit_with_copies(graph)
        plan = self.plan.graphs[graph]
        for source, target in plan.copies:
            event = self._copy(plan, source, target)
        self.queue.flush()
        self.counters.steps += 1
        self._flight.step(event)

    def _submit_with_copies(self, graph: str) -> cl.Event | None:
        """Starts a step whose plan moves values to the host and back. A recording has one queue for everything."""
        assert self._copies is not None
        beside, event = self._notes is None, None
        for number, (kind, nodes) in enumerate(self._copies.actions[graph]):
            if kind == RUN:
                key = f"{graph}#{number}"
                if key not in self._steps:
                    works = [self._nodes[graph][i] for i in nodes]
                    self._steps[key] = Work(key, tuple(launch for work in works for launch in work.launches))
                event = self._submit(self._steps[key])
            elif kind == END and beside:
                self._copies.end(self.queue, nodes[0])
            elif kind == BEGIN and beside:
                self._flight.hold(*self._copies.begin(self.queue, graph, nodes[0]))
                self._copies.known[graph][nodes[0]].add_to(self.counters)
            elif kind == BEGIN:
                self._move(graph, nodes[0])
        return event

    def _move(self, graph: str, node: int) -> None:
        """Starts the copy of a node in the queue of the step."""
        assert self._copies is not None
        one, begin = self._copies.known[graph][node], time.monotonic_ns()
        event, host = self._copies.copy(self.queue, one, graph)
        self._note(UPLOAD if one.way == "in" else DOWNLOAD, one.nbytes, begin, event)
        self._flight.hold(event, host)
        one.add_to(self.counters)

    def run_repeated(self, graph: str, repeats: Mapping[int, int]) -> None:
        event, launches = None, list[Bound]()
        moves = self._copies.known.get(graph, {}) if self._copies is not None else {}
        for i, work in enumerate(self._nodes[graph]):
            launches += work.launches * repeats.get(i, 1)
            if i in moves:
                self._submit(Work(None, tuple(launches)))
                launches = []
                self._move(graph, i)
        event = self._submit(Work(None, tuple(launches)))
        self.queue.flush()
        self._flight.step(event)

    def run_node(self, graph: str, index: int) -> None:
        if self._copies is not None and index in self._copies.known.get(graph, {}):
            self._move(graph, index)
        else:
            self._submit(self._nodes[graph][index])

    # ── transfers ─────────────────────────────────────────────────────────────────────────────

    def _copy(self, plan: GraphPlan, source: int, target: int) -> cl.Event | None:
        nbytes = plan.graph.tensors[source].nbytes
        if not nbytes:
            return None
        a, b = (self._memory.region(replace(plan.places[t], nbytes=nbytes)) for t in (source, target))
        self.counters.copies += 1
        begin = time.monotonic_ns()
        event: cl.Event = self._api.enqueue_copy(self.queue, b, a, byte_count=nbytes)
        self._note(COPY, nbytes, begin, event)
        return event

    def upload(self, graph: str, tensor: int, array: np.ndarray) -> None:
        region = self._memory.region(self.plan.graphs[graph].places[tensor])
        if array.size:
            begin = time.monotonic_ns()
            piece = self._staging.hold((graph, tensor), array)
            event = self._api.enqueue_copy(self.queue, region, piece.host, is_blocking=False)
            piece.event = event
            self._flight.hold(event, piece.host)
            self._note(UPLOAD, array.nbytes, begin, event)
        self.counters.uploads += 1
        self.counters.upload_bytes += array.nbytes

    def download(self, graph: str, tensor: int) -> _Download:
        plan = self.plan.graphs[graph]
        record = plan.graph.tensors[tensor]
        host: np.ndarray = np.empty(record.shape, DTYPES[record.dtype].numpy)
        event = None
        if host.size:
            begin = time.monotonic_ns()
            region = self._memory.region(plan.places[tensor])
            event = self._api.enqueue_copy(self.queue, host, region, is_blocking=False)
            self._note(DOWNLOAD, record.nbytes, begin, event)
            self.queue.flush()
            # Dropping the event of a copy waits for it, so it is kept until the device is done.
            self._flight.hold(event, host)
        self.counters.downloads += 1
        self.counters.download_bytes += record.nbytes
        return _Download(host, event, self.counters, self.plan.device)

    def read_tensor(self, graph: str, tensor: int) -> np.ndarray:
        record = self.plan.graphs[graph].graph.tensors[tensor]
        host: np.ndarray = np.empty(record.shape, DTYPES[record.dtype].numpy)
        if host.size:
            self._copy_now(DOWNLOAD, host, self.plan.graphs[graph].places[tensor])
        self.counters.downloads += 1
        self.counters.download_bytes += record.nbytes
        return host

    def set_tensor(self, graph: str, tensor: int, array: np.ndarray) -> None:
        """Sets the value of a tensor and waits until it is on the device."""
        record = self.plan.graphs[graph].graph.tensors[tensor]
        data: np.ndarray = np.ascontiguousarray(array, DTYPES[record.dtype].numpy)
        if data.size:
            self._copy_now(UPLOAD, data, self.plan.graphs[graph].places[tensor])
        self.counters.uploads += 1
        self.counters.upload_bytes += record.nbytes

    def _copy_now(self, kind: CommandKind, host: np.ndarray, place: Place) -> None:
        region = self._memory.region(place)
        ends = (region, host) if kind == UPLOAD else (host, region)
        begin = time.monotonic_ns()
        event = self._api.enqueue_copy(self.queue, *ends, is_blocking=True)
        self._note(kind, host.nbytes, begin, event)
        self.counters.waits += 1

    def read_slot(self, name: str) -> np.ndarray:
        slot = self._slots[name]
        if self._copies is not None and name in self.plan.host_state:
            return self._copies.store.read(self.plan.host_state[name], DTYPES[slot.dtype].numpy, slot.shape)
        host: np.ndarray = np.empty(slot.shape, DTYPES[slot.dtype].numpy)
        if host.size:
            self._api.enqueue_copy(self.queue, host, self._memory.region(self.plan.state[name]), is_blocking=True)
        return host

    def write_slot(self, name: str, array: np.ndarray) -> None:
        # A learning rate can change between steps while the queue stays busy.
        small = array.nbytes <= SMALL
        event, data = self._write(name, np.array(array) if small else array, not small)
        if small and event is not None:
            self._flight.hold(event, data)

    def _write(self, name: str, array: np.ndarray, wait: bool) -> tuple[cl.Event | None, np.ndarray]:
        """Returns the event of the copy and the array that it reads. The array must live until the copy is done."""
        slot = self._slots[name]
        data: np.ndarray = np.ascontiguousarray(array, DTYPES[slot.dtype].numpy).reshape(slot.shape)
        if not data.size:
            return None, data
        if self._copies is not None and name in self.plan.host_state:
            self.queue.finish()  # A copy of the old value may be under way.
            self._copies.queue.finish()
            self._copies.store.write(self.plan.host_state[name], data)
            return None, data
        region = self._memory.region(self.plan.state[name])
        return self._api.enqueue_copy(self.queue, region, data, is_blocking=wait), data

    # ── times ─────────────────────────────────────────────────────────────────────────────────

    def _note(self, kind: CommandKind, nbytes: int, begin: int, event: cl.Event) -> None:
        if self._notes is not None:
            self._notes.add(kind, nbytes, begin, event)

    @contextlib.contextmanager
    def record(self) -> Iterator[Notes]:
        """Sends the commands inside the `with` block through a queue that keeps times.

        It first waits for earlier commands. Steps outside the block use the plain queue and cost nothing extra.
        """
        timed, _ = self._open_timed()
        self.queue.finish()
        plain, self.queue = self.queue, timed
        self._notes = Notes()
        try:
            yield self._notes
        finally:
            self._notes, self.queue = None, plain
            timed.finish()

    def _open_timed(self) -> tuple[cl.CommandQueue, cl.Buffer]:
        """Returns the queue that keeps times and a small buffer for clock marks; creates them if needed."""
        if self._timed is None or self._mark is None:
            api = self._api
            try:
                self._timed = api.CommandQueue(self.context, properties=api.command_queue_properties.PROFILING_ENABLE)
            except api.Error as error:
                raise DeviceError(
                    f"{self.plan.device} has no command queue that keeps times: {error}. Only whole steps can be timed"
                ) from None
            self._mark = api.Buffer(self.context, api.mem_flags.READ_WRITE, 64)
        return self._timed, self._mark

    def clock_mark(self) -> ClockMark:
        """Returns the mark with the smallest error of a few tries."""
        timed, mark = self._open_timed()
        best = ClockMark(0, 0, 1 << 62)
        for _ in range(CLOCK_TRIES):
            begin = time.monotonic_ns()
            event = self._api.enqueue_fill_buffer(timed, mark, np.uint32(0), 0, 64)
            event.wait()
            end = time.monotonic_ns()
            error = (end - begin) // 2
            if error < best.error_ns:
                best = ClockMark(event.profile.end, begin + error, error)
        return best

    def finish(self) -> None:
        self.queue.finish()
        self.counters.finishes += 1

    def open_again(self, plan: Plan, options: Mapping[str, object]) -> Session:
        self.close()
        return open_session(plan, **{**options, "before": self})

    def close(self) -> None:
        self.queue.finish()
        if self._copies is not None:
            self._copies.release(self.queue)
        self._flight.clear()
        self._staging.release()
        self._memory.release()


open_plan = OpenCLSession

"""The OpenCL backend: every argument bound once, one enqueue a launch, one in-order queue."""

from __future__ import annotations

import contextlib
import os
import time
import warnings
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from handheld.backends.base import Counters
from handheld.backends.opencl.devices import find, opencl
from handheld.backends.opencl.merge import merge, renamed
from handheld.backends.opencl.quiet import without_counts
from handheld.backends.opencl.staging import Staging
from handheld.backends.opencl.widen import texts_of
from handheld.errors import BuildError, DeviceError, OutOfMemory
from handheld.graph.dtypes import DTYPES, F16, F32
from handheld.kernels.base import Arg, Buffer, Float, Int, Start, Texture, Workspace
from handheld.plan.lowering import family
from handheld.plan.memory import Place
from handheld.store.commands import COPY, DOWNLOAD, LAUNCH, UPLOAD, Commands, commands

if TYPE_CHECKING:
    from handheld.kernels.base import Launch
    from handheld.plan.plan import GraphPlan, Plan

IN_FLIGHT = 2  # steps the host may be ahead of the device
FLUSH_EVERY = 48
CLOCK_TRIES = 16
FILL = 1 << 30  # bytes zeroed by one command: NVIDIA's driver counts them in 32 bits

#: a kernel with its arguments, its global and its local size
Bound = tuple[Any, tuple[int, ...], tuple[int, ...]]
#: the program that a text is in, and its number there if it is not alone
Built = tuple[Any, int | None]


class _Download:
    """Host memory that a device-to-host copy fills."""

    def __init__(self, host: np.ndarray, event: Any, counters: Counters) -> None:
        self.host, self.event, self.counters = host, event, counters

    def read(self) -> np.ndarray:
        if self.event is not None:
            self.event.wait()
            self.counters.waits += 1
            self.event = None
        return self.host


@dataclass
class OpenCLRecording:
    """Commands with their events, which are read when someone asks."""

    queue: Any
    #: kind, node, bytes, host begin and end, event
    notes: list[tuple[int, int, int, int, int, Any]]

    def read(self) -> Commands:
        rows = []
        for *known, event in self.notes:
            times = event.profile
            rows.append((*known, times.queued, times.submit, times.start, times.end))
        self.notes.clear()
        return commands(rows)

    def __len__(self) -> int:
        """Commands so far."""
        return len(self.notes)


class Kept:
    """A context and what was built in it, for those who start many plans that share programs."""

    def __init__(self, device: str) -> None:
        self.context: Any = opencl().Context([find(device).device])
        self.programs: dict[str, Any] = {}


class OpenCLSession:
    """Buffers, programs and bound kernels of one plan."""

    def __init__(
        self, plan: Plan, profiling: bool = False, build_threads: int | None = None, kept: Kept | None = None
    ) -> None:
        cl = self._cl = opencl()
        self.plan, self.counters = plan, Counters()
        self._slots = plan.slots
        self.timings: dict[str, float] = {}
        self._flight: deque[Any] = deque()
        self._timed: Any = None  # a queue whose events have times; made when something is recorded
        self._mark: Any = None
        self._recording: OpenCLRecording | None = None
        self.found = find(plan.device)
        device = self.found.device
        self._check_device()
        self.context = kept.context if kept else cl.Context([device])
        self._kept = kept
        properties = cl.command_queue_properties.PROFILING_ENABLE if profiling else 0
        self.queue = cl.CommandQueue(self.context, properties=properties)
        self._staging = Staging(cl, self.context, self.queue, not plan.caps.unified_memory)
        started = time.perf_counter()
        self._allocate()
        self.timings["allocate"] = time.perf_counter() - started
        # the device takes in the state while the host builds
        writes = [self._write(name, value, False) for name, value in plan.values.items()]
        self.queue.flush()
        started = time.perf_counter()
        self._prepare(build_threads, plan.caps.kind == "cpu" and kept is None)
        self.timings["build"] = time.perf_counter() - started
        for event, _ in writes:
            if event is not None:
                event.wait()

    def _check_device(self) -> None:
        have, want = self.found.caps, self.plan.caps
        if have.name != want.name:
            raise DeviceError(f"the plan was made for {want.name} and {self.plan.device} is {have.name}")

    # ── memory ────────────────────────────────────────────────────────────────────────────────

    def _allocate(self) -> None:
        cl = self._cl
        flags = cl.mem_flags.READ_WRITE
        if self.plan.caps.unified_memory:
            flags |= cl.mem_flags.ALLOC_HOST_PTR
        try:
            self._segments = [cl.Buffer(self.context, flags, max(n, 4)) for n in self.plan.segments]
            for buffer, size in zip(self._segments, self.plan.segments, strict=True):
                # packs are read with their gaps: start from zeros, so that nothing is undefined
                whole = max(size, 4) // 4 * 4
                cl.enqueue_fill_buffer(self.queue, buffer, np.uint8(0), 0, min(FILL, whole))
                for start in range(FILL, whole, FILL):  # from what is zero already
                    cl.enqueue_copy(
                        self.queue, buffer, buffer, src_offset=0, dst_offset=start, byte_count=min(FILL, whole - start)
                    )
        except cl.Error as error:
            raise OutOfMemory(
                f"{self.plan.device} refused {sum(self.plan.segments):,} bytes in "
                f"{len(self.plan.segments)} pieces: {error}. Try a smaller batch"
            ) from None
        self.counters.allocations += len(self._segments)
        self.allocated_bytes: int | None = sum(int(buffer.size) for buffer in self._segments)
        self._regions: dict[tuple[int, int, int], Any] = {}
        self._textures: dict[tuple[int, int, str], Any] = {}
        # also when a session is dropped without being closed, and at exit
        self._launches: dict[str, list[list[Bound]]] = {}
        self._release = weakref.finalize(self, _free, self._launches, self._textures, self._regions, self._segments)

    def _region(self, place: Place) -> Any:
        key = (place.segment, place.offset, max(place.nbytes, 4))
        if key not in self._regions:
            size = min(key[2], max(self.plan.segments[place.segment], 4) - place.offset)
            self._regions[key] = self._segments[place.segment].get_sub_region(place.offset, size)
        return self._regions[key]

    # ── programs ──────────────────────────────────────────────────────────────────────────────

    def _prepare(self, threads: int | None, merged: bool) -> None:
        """Builds every distinct program text once, several at a time, and binds each launch as soon
        as its program is there. `merged`, the texts of a family are one program: compilers for CPUs
        take longer for many (merge.py)."""
        families: dict[str, dict[str, Launch]] = {}
        for graph in self.plan.graphs.values():
            for node, lowered in zip(graph.graph.nodes, graph.lowered, strict=True):
                for launch in lowered.launches:
                    whose = family(node.op) if merged else launch.text
                    families.setdefault(whose, {}).setdefault(launch.text, launch)
        self._texts = texts_of(
            (launch for graph in self.plan.graphs.values() for lowered in graph.lowered for launch in lowered.launches),
            self.plan.caps,
        )
        with ThreadPoolExecutor(max_workers=threads or os.cpu_count() or 1) as pool:
            building = {}
            for texts in families.values():
                building.update(dict.fromkeys(texts, pool.submit(self._build_family, texts)))
            if threads == 1:  # nothing at the same time: Oclgrind falls over
                wait(building.values())
            turn = {text: n for n, text in enumerate(building)}
            for name, graph in self.plan.graphs.items():
                self._launches[name] = [[] for _ in graph.lowered]
            nodes = [
                (max((turn[launch.text] for launch in lowered.launches), default=0), name, i)
                for name, graph in self.plan.graphs.items()
                for i, lowered in enumerate(graph.lowered)
            ]
            for _, name, i in sorted(nodes):
                self._launches[name][i] = [
                    self._bind(self.plan.graphs[name], i, launch, building[launch.text].result()[launch.text])
                    for launch in self.plan.graphs[name].lowered[i].launches
                ]
        self.counters.builds += len(
            {id(built[text][0]) for text, future in building.items() for built in [future.result()]}
        )

    def _build_family(self, first: dict[str, Launch]) -> dict[str, Built]:
        texts = sorted(first)  # whatever the order of launches, the program is the same
        if len(texts) == 1:
            return {texts[0]: (self._build_one(first[texts[0]]), None)}
        try:
            with without_counts():
                whole = self._program(merge([self._texts[text] for text in texts]))
            return {text: (whole, i) for i, text in enumerate(texts)}
        except self._cl.Error as error:  # is it one of them, or their being together?
            problem = str(error)[:1000]
        built: dict[str, Built] = {text: (self._build_one(first[text]), None) for text in texts}
        warnings.warn(
            f"programs built apart: {self.plan.device} did not build {len(texts)} programs as one, which takes "
            f"longer and changes no result: {problem}",
            stacklevel=2,
        )
        return built

    def _build_one(self, launch: Launch) -> Any:
        cl, text = self._cl, self._texts[launch.text]
        try:
            return self._program(text)
        except cl.Error as error:
            raise BuildError(
                f"{self.plan.device} could not build kernel {launch.kernel}:\n{error}\n--- source ---\n{text}"
            ) from None

    def _program(self, text: str) -> Any:
        known = self._kept.programs if self._kept else {}
        if text not in known:
            known[text] = self._cl.Program(self.context, text).build(options=["-w"])
        return known[text]

    def _bind(self, graph: GraphPlan, node: int, launch: Launch, built: Built) -> Bound:
        program, i = built
        name = launch.kernel if i is None else renamed(launch.kernel, i)
        try:
            kernel = self._cl.Kernel(program, name)
        except self._cl.Error as error:
            raise BuildError(
                f"{self.plan.device} built a program without kernel {name}: {error}. "
                "A damaged cache of the driver can do that; try emptying it"
            ) from None
        kernel.set_args(*(self._argument(graph, node, arg) for arg in launch.args))
        self.counters.bindings += 1
        return kernel, launch.global_size, launch.local_size

    def _argument(self, graph: GraphPlan, node: int, arg: Arg) -> Any:
        if isinstance(arg, Buffer):
            return self._region(graph.places[arg.tensor])
        if isinstance(arg, Texture):
            kind = graph.graph.tensors[arg.tensor].dtype
            return self._texture(graph.places[arg.tensor].segment, arg.floats, kind)
        if isinstance(arg, Start):
            width = DTYPES[graph.graph.tensors[arg.tensor].dtype].nbytes
            return np.int32(graph.places[arg.tensor].offset // width)
        if isinstance(arg, Workspace):
            return self._region(graph.workspace[node, arg.index])
        if isinstance(arg, Int):
            return np.int32(arg.value)
        assert isinstance(arg, Float)
        return np.float32(arg.value)

    def _texture(self, segment: int, floats: int, kind: str) -> Any:
        key = (segment, floats, kind)
        if key not in self._textures:
            try:
                self._textures[key] = texture(self.context, self._segments[segment], floats, kind)
            except self._cl.Error as error:
                raise BuildError(
                    f"{self.plan.device} makes no texture of {self.plan.segments[segment]:,} bytes: {error}"
                ) from None
        return self._textures[key]

    # ── running ───────────────────────────────────────────────────────────────────────────────

    def upload(self, graph: str, tensor: int, array: np.ndarray) -> None:
        place = self.plan.graphs[graph].places[tensor]
        if array.size:
            begin = time.monotonic_ns()
            piece = self._staging.hold((graph, tensor), array)
            piece.event = event = self._cl.enqueue_copy(self.queue, self._region(place), piece.host, is_blocking=False)
            self._flight.append((event, piece.host))
            self._note(UPLOAD, -1, array.nbytes, begin, event)
        self.counters.uploads += 1
        self.counters.upload_bytes += array.nbytes

    def run(self, graph: str) -> None:
        plan = self.plan.graphs[graph]
        enqueue, queue, count = self._cl.enqueue_nd_range_kernel, self.queue, 0
        event = None
        if self._recording is not None:
            event, count = self._run_recorded(graph, self._recording)
        else:
            for rows in self._launches[graph]:
                for kernel, global_size, local_size in rows:
                    event = enqueue(queue, kernel, global_size, local_size)
                    count += 1
                    if count % FLUSH_EVERY == 0:
                        queue.flush()
        for value, slot in plan.copies:
            event = self._copy(plan, value, slot)
        queue.flush()
        self.counters.launches += count
        self.counters.steps += 1
        self._throttle(event)

    def _run_recorded(self, graph: str, recording: OpenCLRecording) -> tuple[Any, int]:
        """As `run`, with a note of each launch."""
        enqueue, queue, event = self._cl.enqueue_nd_range_kernel, self.queue, None
        notes, now = recording.notes, time.monotonic_ns
        for node, rows in enumerate(self._launches[graph]):
            for kernel, global_size, local_size in rows:
                begin = now()
                event = enqueue(queue, kernel, global_size, local_size)
                notes.append((LAUNCH, node, 0, begin, now(), event))
                if len(notes) % FLUSH_EVERY == 0:
                    queue.flush()
        return event, sum(map(len, self._launches[graph]))

    def run_repeated(self, graph: str, repeats: Mapping[int, int]) -> None:
        """A step in which some nodes run more than once (node -> how often); 0: not at all."""
        enqueue, queue, event, count = self._cl.enqueue_nd_range_kernel, self.queue, None, 0
        for node, rows in enumerate(self._launches[graph]):
            for _ in range(repeats.get(node, 1)):
                for kernel, global_size, local_size in rows:
                    event = enqueue(queue, kernel, global_size, local_size)
                    count += 1
                    if count % FLUSH_EVERY == 0:
                        queue.flush()
        queue.flush()
        self.counters.launches += count
        self._throttle(event)

    def run_node(self, graph: str, index: int) -> None:
        for kernel, global_size, local_size in self._launches[graph][index]:
            begin = time.monotonic_ns()
            event = self._cl.enqueue_nd_range_kernel(self.queue, kernel, global_size, local_size)
            self._note(LAUNCH, index, 0, begin, event)
            self.counters.launches += 1

    def _copy(self, plan: GraphPlan, value: int, slot: int) -> Any:
        nbytes = plan.graph.tensors[value].nbytes
        if not nbytes:
            return None
        a, b = (self._region(replace(plan.places[t], nbytes=nbytes)) for t in (value, slot))
        self.counters.copies += 1
        begin = time.monotonic_ns()
        event = self._cl.enqueue_copy(self.queue, b, a, byte_count=nbytes)
        self._note(COPY, -1, nbytes, begin, event)
        return event

    def _throttle(self, event: Any) -> None:
        """Lets the host be at most IN_FLIGHT steps ahead, without emptying the queue."""
        self._flight.append((event, None))
        steps = [n for n, (_, array) in enumerate(self._flight) if array is None]
        while len(steps) > IN_FLIGHT:
            for _ in range(steps[0] + 1):
                old, array = self._flight.popleft()
                if array is None and old is not None:
                    old.wait()
            steps = [n for n, (_, array) in enumerate(self._flight) if array is None]

    def download(self, graph: str, tensor: int) -> _Download:
        plan = self.plan.graphs[graph]
        made = plan.graph.tensors[tensor]
        host: np.ndarray = np.empty(made.shape, DTYPES[made.dtype].numpy)
        event = None
        if host.size:
            begin = time.monotonic_ns()
            event = self._cl.enqueue_copy(self.queue, host, self._region(plan.places[tensor]), is_blocking=False)
            self._note(DOWNLOAD, -1, made.nbytes, begin, event)
            self.queue.flush()
            # a copy's event waits when it is dropped: keep it until the device is past it
            self._flight.append((event, host))
        self.counters.downloads += 1
        self.counters.download_bytes += made.nbytes
        return _Download(host, event, self.counters)

    def read_tensor(self, graph: str, tensor: int) -> np.ndarray:
        """Waits for what was enqueued before, and for the copy."""
        made = self.plan.graphs[graph].graph.tensors[tensor]
        host: np.ndarray = np.empty(made.shape, DTYPES[made.dtype].numpy)
        if host.size:
            self._copy_now(DOWNLOAD, host, self.plan.graphs[graph].places[tensor])
        self.counters.downloads += 1
        self.counters.download_bytes += made.nbytes
        return host

    def set_tensor(self, graph: str, tensor: int, array: np.ndarray) -> None:
        """Writes a tensor's place, and waits: for those who run the nodes of a graph one by one."""
        made = self.plan.graphs[graph].graph.tensors[tensor]
        data: np.ndarray = np.ascontiguousarray(array, DTYPES[made.dtype].numpy)
        if data.size:
            self._copy_now(UPLOAD, data, self.plan.graphs[graph].places[tensor])
        self.counters.uploads += 1
        self.counters.upload_bytes += made.nbytes

    def _copy_now(self, kind: int, host: np.ndarray, place: Place) -> None:
        region = self._region(place)
        ends = (region, host) if kind == UPLOAD else (host, region)
        begin = time.monotonic_ns()
        event = self._cl.enqueue_copy(self.queue, *ends, is_blocking=True)
        self._note(kind, -1, host.nbytes, begin, event)
        self.counters.waits += 1

    def read_slot(self, name: str) -> np.ndarray:
        slot = self._slots[name]
        host: np.ndarray = np.empty(slot.shape, DTYPES[slot.dtype].numpy)
        if host.size:
            self._cl.enqueue_copy(self.queue, host, self._region(self.plan.state[name]), is_blocking=True)
        return host

    def write_slot(self, name: str, array: np.ndarray) -> None:
        # a learning rate changes between steps without emptying the queue
        small = array.nbytes <= 4096
        event, data = self._write(name, np.array(array) if small else array, not small)
        if small and event is not None:
            self._flight.append((event, data))

    def _write(self, name: str, array: np.ndarray, wait: bool) -> tuple[Any, np.ndarray]:
        """The copy's event, and what it reads until it is over."""
        slot = self._slots[name]
        data: np.ndarray = np.ascontiguousarray(array, DTYPES[slot.dtype].numpy).reshape(slot.shape)
        if not data.size:
            return None, data
        region = self._region(self.plan.state[name])
        return self._cl.enqueue_copy(self.queue, region, data, is_blocking=wait), data

    # ── times ─────────────────────────────────────────────────────────────────────────────────

    def _note(self, kind: int, node: int, nbytes: int, begin: int, event: Any) -> None:
        if self._recording is not None:
            self._recording.notes.append((kind, node, nbytes, begin, time.monotonic_ns(), event))

    @contextlib.contextmanager
    def record(self) -> Iterator[OpenCLRecording]:
        """What is enqueued inside goes through a queue that keeps times. What was enqueued before
        is waited for: other steps pay nothing for it."""
        self._open_timed()
        self.queue.finish()
        plain, self.queue = self.queue, self._timed
        self._recording = OpenCLRecording(self._timed, [])
        try:
            yield self._recording
        finally:
            self._recording, self.queue = None, plain
            self._timed.finish()

    def _open_timed(self) -> None:
        if self._timed is None:
            cl = self._cl
            try:
                self._timed = cl.CommandQueue(self.context, properties=cl.command_queue_properties.PROFILING_ENABLE)
            except cl.Error as error:
                raise DeviceError(
                    f"{self.plan.device} has no queue that keeps times: {error}. Only whole steps can be timed"
                ) from None
            self._mark = cl.Buffer(self.context, cl.mem_flags.READ_WRITE, 64)

    def clock_mark(self) -> tuple[int, int, int]:
        """One moment on both clocks: the device's ns, the host's ns, and how far off that may be.
        The best of a few tries."""
        self._open_timed()
        best = (0, 0, 1 << 62)
        for _ in range(CLOCK_TRIES):
            begin = time.monotonic_ns()
            event = self._cl.enqueue_fill_buffer(self._timed, self._mark, np.uint32(0), 0, 64)
            event.wait()
            end = time.monotonic_ns()
            error = (end - begin) // 2
            if error < best[2]:
                best = (event.profile.end, begin + error, error)
        return best

    def finish(self) -> None:
        self.queue.finish()
        self.counters.finishes += 1

    def close(self) -> None:
        self.queue.finish()
        self._flight.clear()
        self._staging.release()
        self._release()


def texture(context: Any, buffer: Any, floats: int, kind: str = F32) -> Any:
    """A buffer as an image1d_buffer_t of texels of 1 or 4 floats or halves."""
    cl = opencl()
    channel = cl.channel_type.HALF_FLOAT if kind == F16 else cl.channel_type.FLOAT
    order = cl.channel_order.RGBA if floats == 4 else cl.channel_order.R
    make = getattr(cl, "create_image", cl.Image)  # pyopencl before 2024.3 has no create_image
    return make(
        context,
        cl.mem_flags.READ_ONLY,
        cl.ImageFormat(order, channel),
        shape=(buffer.size // (DTYPES[kind].nbytes * floats),),
        buffer=buffer,
    )


def _free(
    launches: dict[str, list[list[Bound]]],
    textures: dict[tuple[int, int, str], Any],
    regions: dict[tuple[int, int, int], Any],
    segments: list[Any],
) -> None:
    """Newest first: NVIDIA's driver crashes when sub-buffers are released in another order."""
    launches.clear()
    textures.clear()
    while regions:
        regions.popitem()
    while segments:
        segments.pop().release()

"""The runner backend: implements `Session` over a link to a runner.

Devices: `runner` and `runner:NAME` on this machine, `ssh:user@host` and `adb` on others (targets/names.py). A step is
its batch, one request to run, and a request for the loss. Nothing is waited for until the loss is read.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from handheld.backends.base import ClockMark, Session, StepTimes, check_device
from handheld.backends.runner import connect
from handheld.backends.runner.caps import RunnerDevice
from handheld.backends.runner.link import Answer, Link, Op
from handheld.backends.runner.shared import SharedInputs
from handheld.backends.runner.wire import open_file, read, write
from handheld.callers import warn_user
from handheld.device import DeviceCaps, backend_of
from handheld.errors import BuildError, DeviceError
from handheld.graph.dtypes import DTYPES
from handheld.plan import file
from handheld.store.commands import COMMAND, Commands
from handheld.targets.find import find as find_target
from handheld.targets.names import TargetName, parse

if TYPE_CHECKING:
    from handheld.plan.memory import Place
    from handheld.plan.plan import Plan

#: How many steps the host may be ahead of the device.
IN_FLIGHT = 2


def target_of(device: str) -> TargetName:
    """The target of a device's name. Without pyopencl, `opencl:NAME` is served by the runner of this machine."""
    return parse(device)


def describe(device: str) -> DeviceCaps:
    return connect.find(target_of(device)).caps


def stable_name(device: str) -> str:
    """The name of the device itself, with the serial number of a phone."""
    found = connect.find(target_of(device))
    return _full_name(device, found.name)


def _full_name(device: str, found: str) -> str:
    if backend_of(device) == "opencl":
        return f"opencl:{found}"
    target = parse(find_target(parse(device)).name)
    return str(TargetName(target.kind, target.where, target.port, found))


class _Download:
    """Host memory that an answer fills."""

    def __init__(self, host: np.ndarray, answer: Answer | None, session: RunnerSession) -> None:
        self.host, self.answer, self.session = host, answer, session
        self.steps = session.counters.steps

    def read(self) -> np.ndarray:
        if self.answer is not None:
            self.answer.wait()
            self.answer = None
            self.session.counters.waits += 1
            self.session.link.steps = max(self.session.link.steps, self.steps)
        return self.host


class _Recorded:
    """The commands of a recording. The runner keeps their times until they are read, or until the recording ends:
    then they are on their way, and can be read after the session is closed."""

    def __init__(self, link: Link) -> None:
        self._link, self._count = link, 0
        self._rest: Answer | None = None
        self._ended = False

    def add(self, commands: int) -> None:
        self._count += commands

    def end(self) -> None:
        self._rest, self._ended = self._link.ask(Op.RECORDED) if self._count else None, True

    def read(self) -> Commands:
        self._count = 0
        if self._ended and self._rest is None:
            return np.empty(0, COMMAND)
        answer, self._rest = self._rest or self._link.ask(Op.RECORDED), None
        return np.frombuffer(bytearray(answer.wait()), COMMAND)  # Callers may change it.

    def clear(self) -> None:
        self.read()

    def __len__(self) -> int:
        return self._count


class _AskedTimes:
    """The times of steps, which the runner sends once it has enqueued them."""

    def __init__(self, answer: Answer, steps: int) -> None:
        self._answer, self._steps = answer, steps

    @property
    def is_there(self) -> bool:
        return self._answer.is_there

    def read(self) -> StepTimes:
        times = np.frombuffer(bytearray(self._answer.wait()), "<i8").reshape(-1, 2)
        return StepTimes(self._steps - len(times), times[:, 0], times[:, 1])


class RunnerSession(Session):
    """A plan that a runner has opened.

    profiling   the device keeps the times of every command, also outside a recording
    inputs      how large inputs reach memory that the device shares with its host (wire.INPUT_WAYS)
    """

    def __init__(self, plan: Plan, profiling: bool = False, inputs: str = "auto") -> None:
        super().__init__(plan)
        self._slots = plan.slots
        self._name = target_of(plan.device)
        self._found: RunnerDevice = connect.find(self._name)
        check_device(plan, self._found.caps)
        self._graphs = {name: i for i, name in enumerate(plan.graphs)}
        self._launches = {name: [len(low.launches) for low in graph.lowered] for name, graph in plan.graphs.items()}
        self._commands = {name: graph.launches + _copies(plan, name) for name, graph in plan.graphs.items()}
        self._recorded: _Recorded | None = None
        self._flight: deque[Answer | None] = deque()  # per step an answer that comes after it
        self._closed = False
        self._pid: int | None = None
        self.link: Link = connect.take(self._name)
        self._shared = SharedInputs(self.link)
        try:
            self._open(profiling, inputs)
        except BaseException:
            self.close()
            raise

    def _open(self, profiling: bool, inputs: str) -> None:
        plan, device = self.plan, self._found.index
        begun = time.perf_counter()
        try:
            opened = open_file(self.link, device, plan.caps, file.to_bytes(plan), profiling, inputs)
        except BuildError as error:
            if plan.caps.kind != "cpu":
                raise
            problem = str(error)[:1000]
            opened = open_file(self.link, device, plan.caps, file.to_bytes(plan, merged=False), profiling, inputs)
            warn_user(
                f"programs built separately: {plan.device} could not build the programs of a family as one. This takes "
                f"longer but does not change results: {problem}"
            )
        except DeviceError as error:
            raise self.link.out_of_memory(error) from None
        for name, value in plan.values.items():
            self.write_slot(name, value)
        self.link.get(Op.FINISH)
        self.timings |= {"allocate": opened["allocate_s"], "build": opened["build_s"]}
        self.timings["send"] = time.perf_counter() - begun - opened["allocate_s"] - opened["build_s"]
        self.allocated_bytes = int(opened["allocated_bytes"])
        self.shared_segments = int(opened["shared_segments"])
        self.counters.allocations += len(plan.segments)
        self.counters.builds += int(opened["programs"])
        self.counters.bindings += sum(sum(counts) for counts in self._launches.values())

    @property
    def device_name(self) -> str:
        return _full_name(self.plan.device, self._found.name)

    # ── steps ─────────────────────────────────────────────────────────────────────────────────

    def _note(self, commands: int) -> None:
        if self._recorded is not None:
            self._recorded.add(commands)

    def run(self, graph: str) -> None:
        self.link.send(Op.RUN, struct.pack("<I", self._graphs[graph]))
        self._note(self._commands[graph])
        self.counters.steps += 1
        self.counters.launches += sum(self._launches[graph])
        self.counters.copies += _copies(self.plan, graph)
        self._step()

    def _step(self) -> None:
        """Adds a step. If the host is more than IN_FLIGHT steps ahead, waits for the oldest step."""
        if self._flight and self._flight[-1] is None:  # The step before has no result that was asked for.
            self._flight[-1] = self.link.ask(Op.CLOCK)
        self._flight.append(None)
        while len(self._flight) > IN_FLIGHT:
            answer = self._flight.popleft()
            if answer is not None:
                answer.wait()
                self.link.steps = max(self.link.steps, self.counters.steps - len(self._flight))

    def run_repeated(self, graph: str, repeats: Mapping[int, int]) -> None:
        pairs = [number for pair in repeats.items() for number in pair]
        self.link.send(Op.RUN_REPEATED, struct.pack(f"<II{len(pairs)}I", self._graphs[graph], len(repeats), *pairs))
        launches = sum(n * repeats.get(i, 1) for i, n in enumerate(self._launches[graph]))
        self._note(launches)
        self.counters.launches += launches
        self._step()

    def run_node(self, graph: str, index: int) -> None:
        self.link.send(Op.RUN_NODE, struct.pack("<II", self._graphs[graph], index))
        launches = self._launches[graph][index]
        self._note(launches)
        self.counters.launches += launches

    def finish(self) -> None:
        self.link.get(Op.FINISH)
        self._flight.clear()
        self.counters.finishes += 1

    # ── transfers ─────────────────────────────────────────────────────────────────────────────

    def _write(self, place: Place, array: np.ndarray) -> None:
        if array.size:
            write(self.link, place.segment, place.offset, array)

    def _read(self, place: Place, shape: tuple[int, ...], dtype: str) -> tuple[np.ndarray, Answer | None]:
        host: np.ndarray = np.empty(shape, DTYPES[dtype].numpy)
        return host, read(self.link, place.segment, place.offset, host) if host.size else None

    def upload(self, graph: str, tensor: int, array: np.ndarray) -> None:
        data: np.ndarray = np.ascontiguousarray(array)
        place = self.plan.graphs[graph].places[tensor]
        if not self._shared.write(place.segment, place.offset, data):
            self._write(place, data)
        self._note(int(bool(data.size)))
        self.counters.uploads += 1
        self.counters.upload_bytes += data.nbytes

    def download(self, graph: str, tensor: int) -> _Download:
        plan = self.plan.graphs[graph]
        record = plan.graph.tensors[tensor]
        host, answer = self._read(plan.places[tensor], record.shape, record.dtype)
        if answer is not None:
            self._note(1)
            if self._flight:
                self._flight[-1] = answer
        self.counters.downloads += 1
        self.counters.download_bytes += record.nbytes
        return _Download(host, answer, self)

    def read_tensor(self, graph: str, tensor: int) -> np.ndarray:
        return self.download(graph, tensor).read()

    def set_tensor(self, graph: str, tensor: int, array: np.ndarray) -> None:
        record = self.plan.graphs[graph].graph.tensors[tensor]
        self.upload(graph, tensor, np.ascontiguousarray(array, DTYPES[record.dtype].numpy))

    def read_slot(self, name: str) -> np.ndarray:
        slot = self._slots[name]
        host, answer = self._read(self.plan.state[name], slot.shape, slot.dtype)
        if answer is not None:
            answer.wait()
        return host

    def write_slot(self, name: str, array: np.ndarray) -> None:
        slot = self._slots[name]
        data: np.ndarray = np.ascontiguousarray(array, DTYPES[slot.dtype].numpy).reshape(slot.shape)
        self._write(self.plan.state[name], data)

    def input_ways(self) -> tuple[int, int]:
        """How many large inputs so far were read straight into memory that the device shares with its host, and how
        many were staged and copied (native/transfer.c)."""
        mapped, staged = struct.unpack("<QQ", self.link.get(Op.INPUTS))
        return mapped, staged

    # ── times ─────────────────────────────────────────────────────────────────────────────────

    @contextlib.contextmanager
    def record(self) -> Iterator[_Recorded]:
        """Lets the runner keep the times of the commands inside the `with` block. It first waits for earlier ones."""
        self.link.get(Op.RECORD, struct.pack("<I", 1))
        self._recorded = recorded = _Recorded(self.link)
        try:
            yield recorded
        finally:
            self._recorded = None
            if self.link.lost is None:
                recorded.end()
                self.link.get(Op.RECORD, struct.pack("<I", 0))

    def clock_mark(self) -> ClockMark:
        """Returns one moment on the clock of the device and on that of the runner's machine."""
        return ClockMark(*struct.unpack("<qqq", self.link.get(Op.MARK)))

    @property
    def pid(self) -> int:
        if self._pid is None:
            self._pid = int(connect.system(self.link)["pid"])
        return self._pid

    def ask_step_times(self) -> _AskedTimes:
        return _AskedTimes(self.link.ask(Op.STEPS), self.counters.steps)

    # ── closing ───────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self.link.lost is None:
            self.link.forget()
            with contextlib.suppress(DeviceError):
                self.link.send(Op.CLOSE)
                self.link.get(Op.CLOCK)  # The memory is free when this is answered.
        connect.give_back(self.link)


def _copies(plan: Plan, graph: str) -> int:
    planned = plan.graphs[graph]
    return sum(planned.graph.tensors[copy.value].nbytes > 0 for copy in planned.copies)


open_plan = RunnerSession

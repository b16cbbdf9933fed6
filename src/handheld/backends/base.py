"""`Session`: the contract between a backend and the code that runs plans.

A backend opens a session for a plan. The session holds the memory on the device. Devices by name:

    opencl           any OpenCL device: `opencl` (a GPU before a CPU), `opencl:0`, `opencl:<name>`
    reference:cpu    PyTorch, op by op: the reference for all other devices
    reference:cuda   the same on an NVIDIA GPU
    null             computes nothing; for plans, counters and commands without a device

Code that runs plans uses only `Session`. `table.py` lists the backends.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import psutil

from handheld.backends.table import backend
from handheld.callers import warn_user
from handheld.device import DeviceCaps, canonical
from handheld.errors import DeviceError, TargetLost
from handheld.plan.quirks import other_driver
from handheld.store.commands import Commands
from handheld.targets.names import is_target

if TYPE_CHECKING:
    from handheld.plan.plan import Plan


@dataclass
class Counters:
    """What a session did since it was opened. The trainer computes `per_step` from differences."""

    steps: int = 0
    launches: int = 0
    uploads: int = 0
    upload_bytes: int = 0
    downloads: int = 0
    download_bytes: int = 0
    copies: int = 0
    finishes: int = 0
    waits: int = 0
    allocations: int = 0
    bindings: int = 0
    builds: int = 0

    def add(self, other: Counters) -> None:
        """Adds the counts of an earlier session."""
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def __sub__(self, other: Counters) -> Counters:
        now, before = dataclasses.asdict(self), dataclasses.asdict(other)
        return Counters(**{k: now[k] - before[k] for k in now})


class Recording(Protocol):
    """Commands with the times that the device kept."""

    def read(self) -> Commands:
        """Returns the commands since the last read. Waits until they are done; this is slow."""

    def clear(self) -> None:
        """Forgets the commands that were not read yet."""

    def __len__(self) -> int:
        """Returns the number of commands that were not read yet."""


class Pending(Protocol):
    """A download that was started."""

    def read(self) -> np.ndarray:
        """Waits for the download and returns its data."""
        ...


class ClockMark(NamedTuple):
    """One moment on the device's clock and on the host's clock; host_ns is correct to ± error_ns."""

    device_ns: int
    host_ns: int
    error_ns: int


class StepTimes(NamedTuple):
    """When steps began and ended, by CLOCK_MONOTONIC of the machine that enqueued them. `first` is the number of the
    first of them, counted like `Counters.steps` from 0."""

    first: int
    begin_ns: np.ndarray
    end_ns: np.ndarray


class AskedTimes(Protocol):
    """Times of steps that are under way from another process."""

    @property
    def is_there(self) -> bool:
        """Whether `read` returns at once."""

    def read(self) -> StepTimes:
        """The times. Waits for them, and raises TargetLost if they will not come."""


class Session(ABC):
    """One plan on one opened device.

    Methods take the name of a graph in the plan, and tensors and nodes by their numbers in that graph. A method
    that a backend does not support raises DeviceError.
    """

    #: The bytes that were allocated on the device for the plan; None if unknown.
    allocated_bytes: int | None = None

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.counters = Counters()
        #: How long the parts of opening took, in seconds.
        self.timings: dict[str, float] = {}

    @property
    def device_name(self) -> str:
        """The name of the device. It does not depend on which other devices exist."""
        return self.plan.device

    # ── steps ─────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def upload(self, graph: str, tensor: int, array: np.ndarray) -> None:
        """Sets the value of an input. The caller may change the array as soon as this returns."""

    @abstractmethod
    def run(self, graph: str) -> None:
        """Runs one step: every node in order, then updates the slots. It may return before the device is done."""

    def run_repeated(self, graph: str, repeats: Mapping[int, int]) -> None:
        """Runs a step in which some nodes run several times or, with 0, not at all (node -> how often).

        Slots that are not updated in place keep their values.
        """
        raise DeviceError(
            f"{self.plan.device} runs every op of a step once; only OpenCL devices can repeat ops. Try: --on opencl"
        )

    @abstractmethod
    def download(self, graph: str, tensor: int) -> Pending:
        """Starts to read a tensor and returns without waiting."""

    @abstractmethod
    def finish(self) -> None:
        """Waits until the device is done with everything."""

    @abstractmethod
    def close(self) -> None:
        """Frees the memory on the device. The session cannot be used afterwards."""

    def open_again(self, plan: Plan, options: Mapping[str, object]) -> Session:
        """Closes the session and opens one for another plan on the same device, which may use its programs again."""
        self.close()
        return open_session(plan, **options)

    # ── state ─────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def read_slot(self, name: str) -> np.ndarray:
        """Returns a copy of the slot's value, after all work that was started before is done."""

    @abstractmethod
    def write_slot(self, name: str, array: np.ndarray) -> None:
        """Sets the value of a slot. The caller may change the array as soon as this returns."""

    # ── node by node ──────────────────────────────────────────────────────────────────────────

    def begin_nodes(self, graph: str) -> None:  # noqa: B027 - most backends have nothing to prepare
        """Must be called once before the nodes of a step are run one by one."""

    @abstractmethod
    def run_node(self, graph: str, index: int) -> None:
        """Runs one node. It may return before the device is done."""

    @abstractmethod
    def read_tensor(self, graph: str, tensor: int) -> np.ndarray:
        """Waits for the value of a tensor and returns a copy."""

    @abstractmethod
    def set_tensor(self, graph: str, tensor: int, array: np.ndarray) -> None:
        """Sets the value of any tensor: an input or the result of a node."""

    # ── times ─────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def record(self) -> AbstractContextManager[Recording]:
        """Makes the device keep the times of the commands that are started inside the `with` block."""

    @abstractmethod
    def clock_mark(self) -> ClockMark:
        """Returns one moment on the clock of the device and on CLOCK_MONOTONIC of the machine that enqueues."""

    # The process that enqueues the steps may be another one, on another machine with its own clock.

    @property
    def pid(self) -> int:
        """The process that enqueues the steps."""
        return os.getpid()

    def ask_step_times(self) -> AskedTimes | None:
        """Asks for the steps since the last call, as the process that enqueues them saw them. None if this process
        does."""
        return None

    def step_times(self) -> StepTimes | None:
        """The same, once they are there."""
        asked = self.ask_step_times()
        return None if asked is None else asked.read()


def available_memory() -> int:
    """Returns the free memory of the system in bytes."""
    return int(psutil.virtual_memory().available)


def host_caps(name: str, kind: str) -> DeviceCaps:
    """Returns the description of a device that allocates from host memory."""
    return DeviceCaps(
        name=name,
        vendor=name,
        kind=kind,
        driver="",
        compute_units=psutil.cpu_count() or 1,
        max_work_group=1,
        local_mem_bytes=0,
        global_mem_bytes=available_memory(),
        max_alloc_bytes=2**40,
        base_align_bytes=64,
        unified_memory=True,
    )


def describe(device: str) -> DeviceCaps:
    """Returns the description of a device by its name. Old names work too (`device.canonical`)."""
    device = canonical(device)
    return backend(device).describe(device)


def is_gone(device: str, error: Exception) -> bool:
    """Whether work on a target failed because the target or the connection to it is gone. This says nothing about the
    work; a runner that has ended on a target that still answers may."""
    if not is_target(device):
        return False
    if isinstance(error, TargetLost) and not error.crashed:
        return True
    try:
        describe(device)
    except DeviceError:
        return True
    return False


def stable_name(device: str) -> str:
    """Returns the full name of a device, which does not depend on which other devices exist."""
    device = canonical(device)
    name: Callable[[str], str] | None = getattr(backend(device), "stable_name", None)
    return name(device) if name is not None else device


def check_device(plan: Plan, actual: DeviceCaps) -> None:
    """Raises DeviceError if the plan was made for another device than the one that was opened, and warns if the driver
    was another one."""
    if actual.name != plan.caps.name:
        raise DeviceError(
            f"the plan was made for {plan.caps.name}, but {plan.device} is {actual.name}. Try: make the plan again"
        )
    if note := other_driver("the plan", plan.caps.driver, plan.device, actual.driver):
        warn_user(f"{note}. Try: make the plan again")


def open_session(plan: Plan, **options: object) -> Session:
    """Opens a session on the device of the plan. Raises DeviceError for an unknown option."""
    open_plan = backend(plan.device, planned=True).open_plan
    known = list(inspect.signature(open_plan).parameters)[1:]
    unknown = [name for name in options if name not in known]
    if unknown:
        raise DeviceError(f"{plan.device} has no option {unknown[0]!r}; it has: {', '.join(known) or 'none'}")
    return open_plan(plan, **options)

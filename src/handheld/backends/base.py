"""What runs a plan. A backend opens a session for a plan; the session holds the device's memory.

opencl           any OpenCL device: `opencl` (a GPU before a CPU), `opencl:0`, `opencl:<name>`
reference:cpu    PyTorch, op by op: the reference
reference:cuda   the same on an NVIDIA GPU
null             nothing is computed: plans, counters and command lines without a device

Whoever runs plans uses `Session` and nothing else of a backend. `table.py` lists the backends.
"""

from __future__ import annotations

import dataclasses
import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import psutil

from handheld.backends.table import backend
from handheld.device import DeviceCaps, canonical
from handheld.errors import DeviceError
from handheld.store.commands import Commands

if TYPE_CHECKING:
    from handheld.plan.plan import Plan


@dataclass
class Counters:
    """What a session did since it was opened; `per_step` of the trainer is their difference."""

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

    def __sub__(self, other: Counters) -> Counters:
        mine, theirs = dataclasses.asdict(self), dataclasses.asdict(other)
        return Counters(**{k: mine[k] - theirs[k] for k in mine})


class Recording(Protocol):
    """A stretch of commands whose times the device keeps."""

    def read(self) -> Commands:
        """What was recorded since the last read. It waits for the end, and takes a while."""

    def clear(self) -> None:
        """Forgets what was recorded and not yet read."""

    def __len__(self) -> int:
        """Commands recorded and not yet read."""


class Pending(Protocol):
    """A download on its way."""

    def read(self) -> np.ndarray: ...


class Session(ABC):
    """One plan on one device: the whole contract between a backend and everyone who runs plans.

    A graph is named as in the plan, and a tensor and a node by their numbers in that graph. What a backend cannot do
    raises DeviceError and says so."""

    #: what was asked of the device for the plan; None: not known
    allocated_bytes: int | None = None

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.counters = Counters()
        #: seconds that opening took, by what they went into
        self.timings: dict[str, float] = {}

    @property
    def device_name(self) -> str:
        """The device under a name that does not depend on which others there are."""
        return self.plan.device

    # ── steps ─────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def upload(self, graph: str, tensor: int, array: np.ndarray) -> None:
        """Gives an input its value. The array may change as soon as this returns."""

    @abstractmethod
    def run(self, graph: str) -> None:
        """One step: every node in order, and the new values into the slots. It may return before the device is done."""

    def run_repeated(self, graph: str, repeats: Mapping[int, int]) -> None:
        """A step in which some nodes run more than once (node -> how often) or, with 0, not at all; slots that are
        not updated in place keep their values."""
        raise DeviceError(
            f"{self.plan.device} runs every op of a step once; OpenCL devices can repeat them. Try: --on opencl"
        )

    @abstractmethod
    def download(self, graph: str, tensor: int) -> Pending:
        """Starts to read a tensor, without waiting."""

    @abstractmethod
    def finish(self) -> None:
        """Waits until the device is done with everything."""

    @abstractmethod
    def close(self) -> None:
        """Frees the device's memory; the session is of no use afterwards."""

    # ── state ─────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def read_slot(self, name: str) -> np.ndarray:
        """A copy of the slot's value, after everything that was started before."""

    @abstractmethod
    def write_slot(self, name: str, array: np.ndarray) -> None:
        """Gives a slot its value. The array may change as soon as this returns."""

    # ── node by node ──────────────────────────────────────────────────────────────────────────

    def begin_nodes(self, graph: str) -> None:  # noqa: B027 - most backends have nothing to prepare
        """Called once before the nodes of a step are run one by one."""

    @abstractmethod
    def run_node(self, graph: str, index: int) -> None:
        """One node. It may return before the device is done."""

    @abstractmethod
    def read_tensor(self, graph: str, tensor: int) -> np.ndarray:
        """A copy of a tensor's value, as soon as it is there."""

    @abstractmethod
    def set_tensor(self, graph: str, tensor: int, array: np.ndarray) -> None:
        """Gives any tensor a value: an input, or what a node would have computed."""

    # ── times ─────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def record(self) -> AbstractContextManager[Recording]:
        """Has the device keep the times of the commands that are started inside."""

    @abstractmethod
    def clock_mark(self) -> tuple[int, int, int]:
        """One moment on both clocks: the device's ns, the host's ns, and how far off that may be."""


def available_memory() -> int:
    """Free memory as the system has it."""
    return int(psutil.virtual_memory().available)


def host_caps(name: str, kind: str) -> DeviceCaps:
    """A device that allocates from the host's memory."""
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
    """The description of a device by its name; `device.py` has the names that devices had before."""
    device = canonical(device)
    return backend(device).describe(device)


def open_session(plan: Plan, **options: object) -> Session:
    """Opens the plan's device."""
    open_plan = backend(plan.device, planned=True).open_plan
    known = list(inspect.signature(open_plan).parameters)[1:]
    unknown = [name for name in options if name not in known]
    if unknown:
        raise DeviceError(f"{plan.device} has no option {unknown[0]!r}; it has: {', '.join(known) or 'none'}")
    return open_plan(plan, **options)

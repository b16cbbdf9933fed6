"""What runs a plan. A backend opens a session for a plan; the session holds the device's memory.

opencl          any OpenCL device: `opencl` (a GPU before a CPU), `opencl:0`, `opencl:<name>`
reference:cpu   the captured graph op by op in PyTorch: what every other device is compared with (once `torch:cpu`)
reference:cuda  the same on an NVIDIA GPU
null            nothing is computed: plans, counters and command lines without a device
"""

from __future__ import annotations

import dataclasses
import inspect
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import psutil

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
    """A stretch of commands whose times the device keeps; `read` costs, and waits for the end."""

    def read(self) -> Commands: ...
    def __len__(self) -> int: ...


class Pending(Protocol):
    """A download on its way."""

    def read(self) -> np.ndarray: ...


class Session(Protocol):
    """One plan on one device."""

    counters: Counters
    timings: dict[str, float]
    allocated_bytes: int | None  # what was asked of the device for the plan; None: not known

    def upload(self, graph: str, tensor: int, array: np.ndarray) -> None:
        """Of an input. The array is the caller's: it may change as soon as this returns."""

    def run(self, graph: str) -> None: ...
    def download(self, graph: str, tensor: int) -> Pending: ...
    def read_slot(self, name: str) -> np.ndarray: ...
    def write_slot(self, name: str, array: np.ndarray) -> None: ...
    def read_tensor(self, graph: str, tensor: int) -> np.ndarray: ...
    def run_node(self, graph: str, index: int) -> None: ...
    def record(self) -> AbstractContextManager[Recording]: ...
    def clock_mark(self) -> tuple[int, int, int]: ...
    def finish(self) -> None: ...
    def close(self) -> None: ...


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
    """The description of a device by its name."""
    device = canonical(device)
    kind = device.partition(":")[0]
    if kind == "opencl":
        from handheld.backends.opencl.devices import find

        return find(device).caps
    if kind == "reference":
        try:
            from handheld.backends.reference import session as reference
        except ImportError as error:
            raise DeviceError(f"{device} needs PyTorch ({error}). Try: pip install 'handheld[capture]'") from None
        return reference.describe(device)
    if device == "null":
        return host_caps("null", "null")
    raise DeviceError(f"unknown device {device!r}; there are opencl[:name], reference:cpu, reference:cuda and null")


def open_session(plan: Plan, **options: Any) -> Session:
    """Opens the plan's device."""
    kind = plan.device.partition(":")[0]
    opened: Any
    if kind == "opencl":
        from handheld.backends.opencl.session import OpenCLSession as opened
    elif kind == "reference":
        from handheld.backends.reference.session import ReferenceSession as opened
    elif kind == "null":
        from handheld.backends.null import NullSession as opened
    else:
        raise DeviceError(f"a plan for {plan.device!r} is a description only: nothing here can run it")
    known = list(inspect.signature(opened).parameters)[1:]
    unknown = [name for name in options if name not in known]
    if unknown:
        raise DeviceError(f"{plan.device} has no option {unknown[0]!r}; it has: {', '.join(known) or 'none'}")
    session: Session = opened(plan, **options)
    return session

"""The backends there are. A new one is one module and one row here.

The module has two functions, and is imported when a device of the backend is first named:

    describe(device: str) -> DeviceCaps      of `kind` or `kind:which`; DeviceError if there is no such device
    open_plan(plan: Plan, ...) -> Session    its other parameters are the options of `plan.start(...)`
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from handheld.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from handheld.backends.base import Session
    from handheld.device import DeviceCaps


class Backend(Protocol):
    """What a backend's module has."""

    describe: Callable[[str], DeviceCaps]
    open_plan: Callable[..., Session]


@dataclass(frozen=True)
class Row:
    """Where a backend is."""

    module: str
    names: tuple[str, ...]  # of its devices, as messages give them
    needs: str = ""  # what to install if the module cannot be imported


#: what stands before the colon in a device's name -> its backend
BACKENDS: dict[str, Row] = {
    "opencl": Row("handheld.backends.opencl.session", ("opencl[:name]",)),
    "reference": Row(
        "handheld.backends.reference.session",
        ("reference:cpu", "reference:cuda"),
        "PyTorch ({error}). Try: pip install 'handheld[capture]'",
    ),
    "null": Row("handheld.backends.null", ("null",)),
}


def backend(device: str, planned: bool = False) -> Backend:
    """The module of a device's backend. `planned`: a plan names the device, and may be for one that is only
    described."""
    row = BACKENDS.get(device.partition(":")[0])
    if row is None and planned:
        raise DeviceError(f"a plan for {device!r} is a description only: nothing here can run it")
    if row is None:
        raise unknown(device)
    try:
        return cast(Backend, import_module(row.module))
    except ImportError as error:
        if not row.needs:
            raise
        raise DeviceError(f"{device} needs {row.needs.format(error=error)}") from None


def unknown(device: str) -> DeviceError:
    """The error for a device that no backend has."""
    *names, last = (name for row in BACKENDS.values() for name in row.names)
    return DeviceError(f"unknown device {device!r}; there are {', '.join(names)} and {last}")

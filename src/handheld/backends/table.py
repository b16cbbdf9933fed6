"""The table of backends. A new backend needs a module and a row here.

The module is imported when a device of the backend is first used. It has these functions:

    describe(device: str) -> DeviceCaps      of `kind` or `kind:which`; DeviceError if there is no such device
    stable_name(device: str) -> str          optional: its full name, if `device` may be a part of it
    open_plan(plan: Plan, ...) -> Session    its other parameters are the options of `plan.start(...)`
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from handheld.callers import warn_user
from handheld.device import backend_of
from handheld.errors import DeviceError
from handheld.names import suggestion
from handheld.targets.names import no_pyopencl

if TYPE_CHECKING:
    from collections.abc import Callable

    from handheld.backends.base import Session
    from handheld.device import DeviceCaps


class Backend(Protocol):
    """The functions that the module of a backend has."""

    describe: Callable[[str], DeviceCaps]
    open_plan: Callable[..., Session]


@dataclass(frozen=True)
class Row:
    """One backend."""

    module: str
    #: The names of its devices, for messages.
    names: tuple[str, ...]
    #: What to install if the module cannot be imported.
    needs: str = ""


#: The part of a device name before the colon -> its backend.
BACKENDS: dict[str, Row] = {
    "opencl": Row("handheld.backends.opencl.session", ("opencl[:name]",)),
    "reference": Row(
        "handheld.backends.reference.session",
        ("reference:cpu", "reference:cuda"),
        "PyTorch ({error}). Try: pip install torch",
    ),
    "runner": Row("handheld.backends.runner.session", ("runner[:name]",)),
    "ssh": Row("handheld.backends.runner.session", ("ssh:user@host[/name]",)),
    "adb": Row("handheld.backends.runner.session", ("adb[:serial][/name]",)),
    "null": Row("handheld.backends.null", ("null",)),
}


def backend(device: str, planned: bool = False) -> Backend:
    """Returns the module of a device's backend. Raises DeviceError if there is none.

    `planned` means that the name comes from a plan. A plan may be for a device that is only described.
    """
    row = BACKENDS.get(backend_of(device))
    if backend_of(device) == "opencl" and no_pyopencl():
        row = BACKENDS["runner"]
        _say_served()
    if row is None and planned:
        raise DeviceError(f"the plan is for {device!r}, which is only a description of a device: it cannot run here")
    if row is None:
        raise unknown(device)
    try:
        return cast(Backend, import_module(row.module))
    except ImportError as error:
        if not row.needs:
            raise
        raise DeviceError(f"{device} needs {row.needs.format(error=error)}") from None


@functools.cache
def _say_served() -> None:
    """Says once that the runner replaces pyopencl."""
    warn_user(f"pyopencl cannot be imported ({no_pyopencl()}): the native runner serves the OpenCL devices here")


def unknown(device: str) -> DeviceError:
    """Returns the error for an unknown device."""
    *names, last = (name for row in BACKENDS.values() for name in row.names)
    kind, _, where = device.partition(":")
    if kind == "pytorch":
        text = f"{device} is plain PyTorch, which only handheld bench runs. Try: reference:{where or 'cpu'}"
        return DeviceError(text)
    if kind == "fleet":
        text = f"{device} is a fleet, on which bench, study, profile, tune and doctor --conformance run"
        return DeviceError(f"{text}. Try: one device of it (handheld fleet)")
    hint = suggestion(kind, BACKENDS, "handheld doctor")
    return DeviceError(f"unknown device {device!r}; there are {', '.join(names)} and {last}. {hint}")

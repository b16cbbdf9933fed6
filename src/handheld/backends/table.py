"""The table of backends. A new backend needs a module and a row here.

The module is imported when a device of the backend is first used. It has two functions:

    describe(device: str) -> DeviceCaps      of `kind` or `kind:which`; DeviceError if there is no such device
    open_plan(plan: Plan, ...) -> Session    its other parameters are the options of `plan.start(...)`
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from handheld.errors import DeviceError
from handheld.names import suggestion

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
    "null": Row("handheld.backends.null", ("null",)),
}


def backend(device: str, planned: bool = False) -> Backend:
    """Returns the module of a device's backend. Raises DeviceError if there is none.

    `planned` means that the name comes from a plan. A plan may be for a device that is only described.
    """
    row = BACKENDS.get(device.partition(":")[0])
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


def unknown(device: str) -> DeviceError:
    """Returns the error for an unknown device."""
    *names, last = (name for row in BACKENDS.values() for name in row.names)
    kind, _, where = device.partition(":")
    if kind == "pytorch":
        text = f"{device} is plain PyTorch, which only handheld bench runs. Try: reference:{where or 'cpu'}"
        return DeviceError(text)
    hint = suggestion(kind, BACKENDS, "handheld doctor")
    return DeviceError(f"unknown device {device!r}; there are {', '.join(names)} and {last}. {hint}")

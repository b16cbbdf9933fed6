"""A device that fails while it is in use: errors of the driver become DeviceLost, which says which device it was.

The driver reports such a failure wherever it is asked next, so all methods that use the device are wrapped.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from handheld.backends.opencl.devices import opencl
from handheld.errors import DeviceLost

#: The methods of a session that use the device after it was opened.
USES = (
    *("run", "run_repeated", "run_node", "upload", "download", "read_tensor", "set_tensor"),
    *("read_slot", "write_slot", "finish", "close"),
)
Kind = TypeVar("Kind", bound=type)


def reports_loss(*methods: str) -> Callable[[Kind], Kind]:
    """Wraps these methods of a class. Its instances have a plan, or the name of their device."""

    def wrap(kind: Kind) -> Kind:
        for name in methods:
            setattr(kind, name, _wrapped(getattr(kind, name)))
        return kind

    return wrap


def _wrapped(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Any, *args: Any, **options: Any) -> Any:
        try:
            return method(self, *args, **options)
        except opencl().Error as error:  # The name is looked up only if there was an error.
            device = self.device if hasattr(self, "device") else self.plan.device
            raise DeviceLost(
                f"{device} failed while it was in use: {error}. The device is gone, or its driver has reset it"
            ) from error

    return call

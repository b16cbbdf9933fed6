"""The OpenCL devices of this machine, through pyopencl or, where it cannot be imported, through the runner."""

from __future__ import annotations

from typing import NamedTuple

from handheld.backends.opencl import devices as opencl_devices
from handheld.backends.runner import connect
from handheld.device import DeviceCaps
from handheld.targets.names import no_pyopencl, parse


class Present(NamedTuple):
    """A device under the name that commands take, such as `opencl:pocl-cpu`."""

    name: str
    caps: DeviceCaps


def present_devices(device: str | None = None) -> list[Present]:
    """Returns all devices, or the one that a name such as `opencl:0` stands for. Raises DeviceError."""
    if no_pyopencl():
        name = parse(device or "opencl")
        found = connect.devices(name) if device is None else [connect.find(name)]
        return [Present(f"opencl:{one.name}", one.caps) for one in found]
    listed = opencl_devices.devices() if device is None else [opencl_devices.find(device)]
    return [Present(f"opencl:{one.name}", one.caps) for one in listed]

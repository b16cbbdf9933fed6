"""Finds OpenCL devices, gives them stable names and describes them."""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from handheld.backends.base import available_memory
from handheld.backends.hints import driver_hint
from handheld.backends.matrix_units import matrix_units
from handheld.backends.names import chosen, device_name
from handheld.backends.opencl.unknown_cpu import name_processor
from handheld.backends.vectors import cpuinfo, rate_of, vectors_of
from handheld.device import DeviceCaps
from handheld.errors import DeviceError
from handheld.kernels.base import Launch
from handheld.plan.widen import widened

if TYPE_CHECKING:
    import pyopencl as cl


def opencl() -> Any:
    """Returns the module pyopencl, or raises DeviceError if it cannot be imported."""
    try:
        import pyopencl
    except ImportError as error:  # A broken OpenCL loader also ends here.
        raise DeviceError(f"pyopencl cannot be imported ({error}). Try: pip install pyopencl") from None
    _ignore_compiler_notes()
    return pyopencl


@functools.cache
def _ignore_compiler_notes() -> None:
    """pyopencl warns if a compiler prints anything, even after success. Failed builds raise BuildError anyway."""
    warnings.filterwarnings("ignore", message="Non-empty compiler output")


@dataclass(frozen=True)
class OpenCLDevice:
    """An OpenCL device under its stable name."""

    name: str
    device: cl.Device
    caps: DeviceCaps


def devices() -> list[OpenCLDevice]:
    """Returns all OpenCL devices, GPUs first. Their names come from platform and device, not from their position."""
    api = opencl()
    try:
        platforms = api.get_platforms()
    except api.Error as error:
        raise DeviceError(f"no OpenCL platform: {error}. {driver_hint()}") from None
    listed: list[OpenCLDevice] = []
    for platform in platforms:
        try:
            members = platform.get_devices()
        except api.Error:
            continue
        for device in members:
            name_processor(device)
            name = device_name(platform.name, device.name, [other.name for other in listed])
            listed.append(OpenCLDevice(name, device, caps_of(device)))
    return sorted(listed, key=lambda f: f.caps.kind != "gpu")


def caps_of(device: cl.Device) -> DeviceCaps:
    api = opencl()
    kind = "cpu" if device.type & api.device_type.CPU else "gpu"
    unified = bool(device.host_unified_memory)
    memory = int(device.global_mem_size)
    if unified:
        memory = min(memory, available_memory())
    extensions = device.extensions.split()
    plain = DeviceCaps(
        name=device.name.strip(),
        vendor=device.vendor.strip(),
        kind=kind,
        driver=f"{device.platform.version.strip()}; {device.driver_version.strip()}",
        compute_units=int(device.max_compute_units),
        max_work_group=int(device.max_work_group_size),
        local_mem_bytes=int(device.local_mem_size),
        global_mem_bytes=memory,
        max_alloc_bytes=int(device.max_mem_alloc_size),
        base_align_bytes=int(device.mem_base_addr_align) // 8,
        unified_memory=unified,
        images=bool(device.image_support),
        fp16="cl_khr_fp16" in extensions,
        fp64="cl_khr_fp64" in extensions,
        vector_width=max(int(device.native_vector_width_float), 1),
    )
    identity = device.name, device.platform.version, device.driver_version
    width, features = vectors_of(plain, identity, _Probe(device))
    units = matrix_units(plain, identity, _Probe(device))
    rate = rate_of(cpuinfo(), width) if kind == "cpu" else 1
    return replace(plain, vector_width=width, vector_rate=rate, features=features or units)


class _Probe:
    """Runs small programs on a device (backends/vectors.py)."""

    def __init__(self, device: cl.Device) -> None:
        self._device = device

    def run(self, launch: Launch, features: str, x: np.ndarray) -> np.ndarray | None:
        api, y = opencl(), np.zeros(4, np.float32)
        text = widened([launch], features) if features else launch.text
        try:
            context = api.Context([self._device])
            queue, flags = api.CommandQueue(context), api.mem_flags
            program = api.Program(context, text).build(options=["-w"])
            of_x = api.Buffer(context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=x)
            of_y = api.Buffer(context, flags.WRITE_ONLY, y.nbytes)
            kernel = api.Kernel(program, launch.kernel)
            kernel.set_args(of_x, of_y)
            api.enqueue_nd_range_kernel(queue, kernel, launch.global_size, launch.local_size)
            api.enqueue_copy(queue, y, of_y)
        except api.Error:
            return None
        return y

    def processor(self) -> str:
        return cpuinfo()


def find(spec: str) -> OpenCLDevice:
    """Returns the device for `opencl`, `opencl:0` or `opencl:<part of a name>`, or raises DeviceError."""
    kind, _, wanted = spec.partition(":")
    if kind != "opencl":
        raise DeviceError(f"{spec} is not an OpenCL device. Try: opencl, or opencl:NAME as handheld doctor lists it")
    known = devices()
    if not known:
        raise DeviceError(f"no OpenCL device found. {driver_hint()}")
    found = chosen(known, wanted)
    if found is not None:
        return found
    raise DeviceError(f"there is no OpenCL device {wanted!r}. Try: {', '.join('opencl:' + f.name for f in known)}")

"""OpenCL devices: which there are, their stable names, and what is known of each."""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from handheld import cache
from handheld.backends.base import available_memory
from handheld.device import DeviceCaps
from handheld.errors import DeviceError, HandheldError


def opencl() -> Any:
    """The module pyopencl."""
    try:
        import pyopencl
    except ImportError as error:  # a broken loader is a missing device, not a crash
        raise DeviceError(
            f"pyopencl cannot be imported ({error}). Try: pip install pyopencl"
        ) from None
    return pyopencl


_widths: dict[Path, int] = {}  # that this process knows

#: a kernel that is never run: its work-group size is the answer
_WIDTH = """
#if defined(__AVX512F__)
#define WIDTH 16
#elif defined(__AVX__)
#define WIDTH 8
#elif defined(__SSE2__) || defined(__ARM_NEON)
#define WIDTH 4
#else
#define WIDTH 1
#endif
__kernel __attribute__((reqd_work_group_size(WIDTH, 1, 1))) void width(__global int *y) {
    y[get_global_id(0)] = 0;
}
"""


@dataclass(frozen=True)
class Found:
    """An OpenCL device under its stable name."""

    name: str
    device: Any
    caps: DeviceCaps


def devices() -> list[Found]:
    """All OpenCL devices, GPUs first, named after platform and device rather than by position."""
    cl = opencl()
    try:
        platforms = cl.get_platforms()
    except cl.Error as error:
        raise DeviceError(
            f"no OpenCL platform: {error}. Try: pip install pocl-binary-distribution"
        ) from None
    found: list[Found] = []
    for platform in platforms:
        try:
            members = platform.get_devices()
        except cl.Error:
            continue
        for device in members:
            base = cache.slug(f"{platform.name} {device.name}")
            for long, short in (("portable-computing-language", "pocl"), ("nvidia-cuda-", "")):
                base = base.replace(long, short)
            same = sum(f.name == base or f.name.startswith(f"{base}--") for f in found)
            found.append(
                Found(base if not same else f"{base}--{same + 1}", device, caps_of(device))
            )
    return sorted(found, key=lambda f: f.caps.kind != "gpu")


def caps_of(device: Any) -> DeviceCaps:
    cl = opencl()
    kind = "cpu" if device.type & cl.device_type.CPU else "gpu"
    unified = bool(device.host_unified_memory)
    memory = int(device.global_mem_size)
    if unified:
        memory = min(memory, available_memory())
    extensions = device.extensions.split()
    return DeviceCaps(
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
        vector_width=_vector_width(device, kind),
    )


def _vector_width(device: Any, kind: str) -> int:
    """Floats in a vector. A driver may name the CPU's own and compile for less: an older PoCL does
    on processors that its compiler does not know. What it says is compared with what it compiles
    for, once a driver."""
    said = max(int(device.native_vector_width_float), 1)
    if kind != "cpu" or said < 16:
        return said
    key = hashlib.sha256(f"{device.name}\n{device.platform.version}\n{device.driver_version}"
                         .encode()).hexdigest()[:12]
    path = cache.folder() / "devices" / f"{cache.slug(device.name)}-{key}.json"
    if path not in _widths:
        _widths[path] = _kept_width(path) or _ask_width(device, said, path)
    return _widths[path]


def _kept_width(path: Path) -> int:
    """0 if there is none."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return int(json.loads(path.read_text(encoding="utf-8"))["vector_width"])
    return 0


def _ask_width(device: Any, said: int, path: Path) -> int:
    width = min(_compiled_width(device) or said, said)
    with contextlib.suppress(HandheldError):  # the next process asks again
        cache.write_json(path, {"vector_width": width})
    return width


def _compiled_width(device: Any) -> int:
    """By the names that the compiler defines; 0 if it defines none of them."""
    cl = opencl()
    try:
        program = cl.Program(cl.Context([device]), _WIDTH).build()
        size = cl.Kernel(program, "width").get_work_group_info(
            cl.kernel_work_group_info.COMPILE_WORK_GROUP_SIZE, device)
    except cl.Error:
        return 0
    return int(size[0]) if size[0] > 1 else 0


def find(spec: str) -> Found:
    """`opencl`, `opencl:0` or `opencl:<part of a name>`."""
    wanted = spec.partition(":")[2]
    found = devices()
    if not found:
        raise DeviceError(
            "no OpenCL device found. Try: pip install pocl-binary-distribution (x86-64 Linux), "
            "install the GPU vendor's OpenCL driver, or use --on torch:cpu"
        )
    if not wanted:
        return found[0]
    if wanted.isdigit():
        if int(wanted) < len(found):
            return found[int(wanted)]
    else:
        exact = [f for f in found if f.name == wanted]
        partial = [f for f in found if wanted.lower() in f.name]
        if exact or partial:
            return (exact or partial)[0]
    raise DeviceError(
        f"no OpenCL device {wanted!r}; there are {', '.join('opencl:' + f.name for f in found)}"
    )

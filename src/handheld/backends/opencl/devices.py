"""Finds OpenCL devices, gives them stable names and describes them."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from handheld import cache
from handheld.backends.base import available_memory
from handheld.backends.opencl.widen import widened
from handheld.device import DeviceCaps
from handheld.errors import DeviceError, HandheldError
from handheld.kernels.base import Buffer, Launch

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


#: The results of `_vectors_of` in this process.
_vectors: dict[Path, tuple[int, str]] = {}

#: A kernel that is never run. Its work-group size tells the vector width that the compiler uses.
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


#: The features of processors with vectors of 16 floats, except the very first of them.
_FEATURES = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl"
#: Item i computes (i + 1) times the sum of the 16 floats of x, once as floats and once converted to integers.
_TRY = """
typedef float16 __attribute__((aligned(4))) loose16;
__kernel void attempt(const __global float *x, __global float *y) {
  const float16 some = *(const __global loose16 *)x;
  ushort bits[16];
  for (int i = 0; i < 16; ++i) bits[i] = x[i];
  const uint16 whole = convert_uint16(*(const ushort16 *)bits) + 0x4b000000u;
  const float16 all = (some + (as_float16(whole) - 0x1p23f)) * (get_global_id(0) + 1.0f);
  const float8 half_ = all.lo + all.hi;
  const float4 quarter = half_.lo + half_.hi;
  y[get_global_id(0)] = quarter.x + quarter.y + quarter.z + quarter.w;
}
"""


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
        raise DeviceError(f"no OpenCL platform: {error}. Try: pip install pocl-binary-distribution") from None
    listed: list[OpenCLDevice] = []
    for platform in platforms:
        try:
            members = platform.get_devices()
        except api.Error:
            continue
        for device in members:
            base = cache.slug(f"{platform.name} {device.name}")
            for long, short in (("portable-computing-language", "pocl"), ("nvidia-cuda-", "")):
                base = base.replace(long, short)
            same = sum(f.name == base or f.name.startswith(f"{base}--") for f in listed)
            listed.append(OpenCLDevice(base if not same else f"{base}--{same + 1}", device, caps_of(device)))
    return sorted(listed, key=lambda f: f.caps.kind != "gpu")


def caps_of(device: cl.Device) -> DeviceCaps:
    api = opencl()
    kind = "cpu" if device.type & api.device_type.CPU else "gpu"
    unified = bool(device.host_unified_memory)
    memory = int(device.global_mem_size)
    if unified:
        memory = min(memory, available_memory())
    extensions = device.extensions.split()
    width, features = _vectors_of(device, kind)
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
        vector_width=width,
        features=features,
    )


def _vectors_of(device: cl.Device, kind: str) -> tuple[int, str]:
    """Returns the floats in a vector, and the features that program texts must ask for to use such vectors.

    A driver may report the vectors of the CPU but compile for smaller ones. An older PoCL does so on processors
    that its compiler does not know. The reported width is therefore compared with the compiled one, once per driver.
    """
    reported = max(int(device.native_vector_width_float), 1)
    if kind != "cpu" or reported < 16:
        return reported, ""
    key = hashlib.sha256(f"{device.name}\n{device.platform.version}\n{device.driver_version}".encode()).hexdigest()[:12]
    path = cache.folder() / "devices" / f"{cache.slug(device.name)}-{key}.json"
    if path not in _vectors:
        _vectors[path] = _kept_vectors(path) or _ask_vectors(device, reported, path)
    return _vectors[path]


def _kept_vectors(path: Path) -> tuple[int, str] | None:
    """Returns the cached result, or None if there is none.

    A result with features that this processor does not have is ignored, because machines may share a cache folder.
    """
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads(path.read_text(encoding="utf-8"))
        width, features = kept["vector_width"], kept["features"]
        if width in (1, 4, 8, 16) and (features == "" or (features == _FEATURES and _processor_has(features))):
            return width, features
    return None


def _ask_vectors(device: cl.Device, reported: int, path: Path) -> tuple[int, str]:
    width, features = min(_compiled_width(device) or reported, reported), ""
    if width < reported and _processor_has(_FEATURES) and _works(device, _FEATURES):
        width, features = reported, _FEATURES
    with contextlib.suppress(HandheldError):  # Without the file the next process asks again.
        cache.write_json(path, {"vector_width": width, "features": features})
    return width, features


def _compiled_width(device: cl.Device) -> int:
    """Returns the vector width according to the macros that the compiler defines; 0 if it defines none of them."""
    api = opencl()
    try:
        program = api.Program(api.Context([device]), _WIDTH).build()
        size = api.Kernel(program, "width").get_work_group_info(
            api.kernel_work_group_info.COMPILE_WORK_GROUP_SIZE, device
        )
    except api.Error:
        return 0
    return int(size[0]) if size[0] > 1 else 0


def _processor_has(features: str) -> bool:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return False
    cores = [set(line.split(":")[1].split()) for line in lines if line.startswith("flags")]
    return bool(cores) and set(features.split(",")) <= set.intersection(*cores)


def _works(device: cl.Device, features: str) -> bool:
    """Whether a program that asks for these features builds and computes the right result."""
    api = opencl()
    launch = Launch("attempt", _TRY, (Buffer(0), Buffer(1)), (4,), (1,))
    x, y = np.arange(16, dtype=np.float32), np.zeros(4, np.float32)
    try:
        context = api.Context([device])
        queue, flags = api.CommandQueue(context), api.mem_flags
        program = api.Program(context, widened([launch], features)).build(options=["-w"])
        of_x = api.Buffer(context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=x)
        of_y = api.Buffer(context, flags.WRITE_ONLY, y.nbytes)
        kernel = api.Kernel(program, launch.kernel)
        kernel.set_args(of_x, of_y)
        api.enqueue_nd_range_kernel(queue, kernel, launch.global_size, launch.local_size)
        api.enqueue_copy(queue, y, of_y)
    except api.Error:
        return False
    return bool((y == 2 * x.sum() * np.arange(1, 5)).all())


def find(spec: str) -> OpenCLDevice:
    """Returns the device for `opencl`, `opencl:0` or `opencl:<part of a name>`, or raises DeviceError."""
    kind, _, wanted = spec.partition(":")
    if kind != "opencl":
        raise DeviceError(f"{spec} is not an OpenCL device. Try: opencl, or opencl:NAME as handheld doctor lists it")
    known = devices()
    if not known:
        raise DeviceError(
            "no OpenCL device found. Try: pip install pocl-binary-distribution (x86-64 Linux), "
            "install the GPU vendor's OpenCL driver, or use --on reference:cpu"
        )
    if not wanted:
        return known[0]
    if wanted.isdigit():
        if int(wanted) < len(known):
            return known[int(wanted)]
    else:
        exact = [f for f in known if f.name == wanted]
        partial = [f for f in known if wanted.lower() in f.name]
        if exact or partial:
            return (exact or partial)[0]
    raise DeviceError(f"no OpenCL device {wanted!r}; there are {', '.join('opencl:' + f.name for f in known)}")

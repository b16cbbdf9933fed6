"""What to do about a machine without an OpenCL device."""

from __future__ import annotations

import os
import platform

from handheld.targets.names import TargetName
from handheld.targets.shell import LIBRARY


def driver_hint() -> str:
    """Returns `Try: ...` for a machine without an OpenCL device. A wheel is named only where one exists."""
    machine, other = platform.machine().lower(), "or use --on reference:cpu"
    if "com.termux" in os.environ.get("PREFIX", ""):
        return (
            "Try: export LD_LIBRARY_PATH=/vendor/lib64:$PREFIX/lib (Termux on Adreno), or pkg install ocl-icd "
            f"opencl-vendor-driver clinfo (Termux on Mali), {other}"
        )
    if machine.startswith(("aarch64", "arm")):
        return f"Try: apt install pocl-opencl-icd, or the vendor's OpenCL driver for the GPU, {other}"
    if machine in ("x86_64", "amd64") and platform.system() == "Linux":
        return f"Try: pip install pocl-binary-distribution, install the GPU vendor's OpenCL driver, {other}"
    return f"Try: install the vendor's OpenCL driver, {other}"


def without_device(name: TargetName, problem: str) -> str:
    """The problem of a runner that found no OpenCL device, with what to do on its machine."""
    found = problem.partition(". Try: ")[0] or "no OpenCL device was found"
    if name.kind == "runner":  # What to install is known for this machine.
        return f"{found}. {driver_hint()}"
    path = "/vendor/lib64/NAME.so" if name.kind == "adb" else "/usr/lib/NAME.so"
    install = "use a phone whose vendor ships OpenCL" if name.kind == "adb" else "install its OpenCL driver"
    return f"{found}. Try: {install}, or name the library that it has: {LIBRARY}={path} (docs/targets.md)"

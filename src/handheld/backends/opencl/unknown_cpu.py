"""Names the processor to a PoCL whose compiler does not know it.

PoCL asks its compiler for the name of the processor and compiles for that name. A compiler older than the processor
answers `generic`, and then refuses that name: every build fails with `unknown target CPU 'generic'`. PoCL's wheel does
so on AMD's Zen 5. No option and no variable changes the name, so it is written into PoCL's own description of the
device: a struct in which the name follows the text `x86_64-...` of the machine. The runner does the same
(native/unknown_cpu.c).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct
from typing import TYPE_CHECKING

from handheld.backends.vectors import cpuinfo, has_features

if TYPE_CHECKING:
    import pyopencl as cl

UNKNOWN = b"generic\0"
#: Names that fit into the place of UNKNOWN, with what the processor must have. The first that fits is used.
NAMES = (("znver3", "avx2,fma,bmi1,bmi2,abm,movbe,f16c,sse4a"), ("haswell", "avx2,fma,bmi1,bmi2,abm,movbe,f16c"))
ANY_NAME = "x86-64"
#: The bytes of the struct that are searched. The name is at byte 640 of PoCL 3.0.
STRUCT_BYTES = 2048


def name_processor(device: cl.Device) -> bool:
    """Gives the device a processor name that its compiler knows. Returns whether it had none."""
    if platform.machine() != "x86_64" or not device.platform.name.startswith("Portable Computing Language"):
        return False
    with contextlib.suppress(OSError), open("/proc/self/mem", "rb", buffering=0) as memory:
        place = _place_of_name(memory.fileno(), device.int_ptr)
        if place:
            ctypes.memmove(place, known_name(cpuinfo()).encode().ljust(len(UNKNOWN), b"\0"), len(UNKNOWN))
            return True
    return False


def known_name(text: str) -> str:
    """Returns a name that old compilers know, whose instructions the processor of this /proc/cpuinfo has."""
    return next((name for name, features in NAMES if has_features(text, features)), ANY_NAME)


def _place_of_name(memory: int, start: int) -> int:
    """Returns the address of the text `generic` that follows the name of the machine in a struct, or 0."""
    machine = b""
    for (pointer,) in struct.iter_unpack("<Q", os.pread(memory, STRUCT_BYTES, start)):
        text = b""
        with contextlib.suppress(OSError, OverflowError):  # Most words of the struct are not addresses.
            text = os.pread(memory, len(UNKNOWN), pointer)
        if text == UNKNOWN and machine == b"x86_64-":
            return int(pointer)
        machine = text[:7]
    return 0

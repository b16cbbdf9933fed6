"""Known faults of drivers and their workarounds, as data. Only what was seen is here, with its source.

What a driver computes wrongly in general is not listed: the check of a driver (drivers/) finds it. A quirk is for what
a check cannot find, or cannot get around by other kernels: crashes while building, compiler options, simulators.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from handheld.device import DeviceCaps

#: A plan that needs less than this part of the device's memory may lie in shared virtual memory.
SHARED = 1 / 16


@dataclass(frozen=True)
class Quirk:
    """A fault. `drivers` is a pattern for "name; driver" of a device description."""

    name: str
    drivers: str
    why: str
    source: str
    #: How many programs may be built at the same time; None: any number. With 1, nothing runs during a build.
    build_threads: int | None = None
    #: (pattern, replacement) in the texts of programs.
    texts: tuple[tuple[str, str], ...] = ()
    #: The ops that need another way (plan/ways.py), also if the driver was not checked.
    avoid: str = ""
    #: Whether the device only simulates: large problems would take minutes.
    simulator: bool = False
    #: Whether the driver keeps what it has built, so that a runner need not ask it for binaries.
    keeps_programs: bool = False
    #: Whether the driver compares each argument of a launch with all sub-buffers that overlap it.
    tracks_overlaps: bool = False
    #: Whether the driver compiles a kernel at its first launch, one at a time in a process, and keeps it in a folder
    #: for all processes.
    compiles_at_launch: bool = False


QUIRKS: tuple[Quirk, ...] = (
    Quirk(
        "oclgrind-builds",
        r"oclgrind",
        "Oclgrind crashes if two threads build programs, or if one builds while a kernel runs",
        "seen with Oclgrind 21.10 of Debian 12: a segmentation fault in its compiler",
        build_threads=1,
    ),
    Quirk(
        "oclgrind-vectors",
        r"oclgrind",
        "Oclgrind computes the masked vector loads wrongly that its compiler makes of loops with assume_safety",
        "seen with Oclgrind 21.10 of Debian 12: wrong gradients of reductions",
        texts=((r"loop vectorize\(assume_safety\)[^\n\"]*", "loop vectorize(disable)"),),
        simulator=True,
    ),
    Quirk(
        "nvidia-overlaps",
        r"nvidia",
        "A launch costs the host about 2 us more for each sub-buffer in use that overlaps one of its arguments, unless "
        "the buffer lies in shared virtual memory (backends/opencl/memory.py)",
        "measured with driver 580 on an H200: a step of DenseNet-100 takes 9 ms instead of 50 ms",
        tracks_overlaps=True,
    ),
    Quirk(
        "pocl-binaries",
        r"\bpocl\b",
        "Asked for the binary of a program, PoCL compiles every kernel for work-groups of any size, and at the first "
        "launch again for the real size. It keeps what it has built by itself",
        "measured with PoCL 3.0: with binaries, the check of a driver takes 2.3 times the processor time",
        keeps_programs=True,
    ),
    Quirk(
        "pocl-first-launch",
        r"\bpocl\b",
        "PoCL compiles a kernel at its first launch, and no two kernels of a process at the same time. Other processes "
        "compile them faster (backends/opencl/ahead.py)",
        "measured with PoCL 3.0: two thirds of the time to the first step on a machine with two cores",
        compiles_at_launch=True,
    ),
)


def quirks_of(caps: DeviceCaps) -> tuple[Quirk, ...]:
    """The known faults of a device's driver."""
    driver = f"{caps.name}; {caps.driver}"
    return tuple(quirk for quirk in QUIRKS if re.search(quirk.drivers, driver, re.IGNORECASE))


def build_threads(caps: DeviceCaps) -> int | None:
    """How many programs may be built at the same time; None: any number."""
    return min((q.build_threads for q in quirks_of(caps) if q.build_threads is not None), default=None)


def mended(text: str, caps: DeviceCaps) -> str:
    """The text of a program without what the device's compiler does wrongly."""
    for quirk in quirks_of(caps):
        for pattern, replacement in quirk.texts:
            text = re.sub(pattern, replacement, text)
    return text


def known_avoid(caps: DeviceCaps) -> str:
    """The ops that need another way even if the driver was not checked, as `avoid` of a description."""
    return " ".join(q.avoid for q in quirks_of(caps) if q.avoid)


def keeps_programs(caps: DeviceCaps) -> bool:
    """Whether the driver keeps what it has built, and binaries would only cost time."""
    return any(q.keeps_programs for q in quirks_of(caps))


def tracks_overlaps(caps: DeviceCaps) -> bool:
    """Whether overlapping sub-buffers cost time at every launch."""
    return any(q.tracks_overlaps for q in quirks_of(caps))


def other_driver(what: str, planned: str, device: str, driver: str) -> str:
    """Says that `what` was planned for another driver than the one of the device; empty if it was not."""
    if planned == driver:
        return ""
    return (
        f"{what} was made for driver {planned}, but {device} has driver {driver}. Programs are compiled from source "
        "for this driver, but what only this driver computes wrongly is not avoided"
    )


def in_shared_memory(caps: DeviceCaps, nbytes: int) -> bool:
    """Whether a plan of so many bytes lies in shared virtual memory, if the device has it."""
    return tracks_overlaps(caps) and nbytes < SHARED * caps.global_mem_bytes


def compiles_at_launch(caps: DeviceCaps) -> bool:
    """Whether kernels are compiled at their first launch, and other processes can do it before."""
    return any(q.compiles_at_launch for q in quirks_of(caps))


def simulated(caps: DeviceCaps) -> bool:
    return any(q.simulator for q in quirks_of(caps))

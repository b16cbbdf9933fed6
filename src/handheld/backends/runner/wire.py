"""The payloads of requests, as functions over a link."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from typing import Any

import numpy as np

from handheld.backends.runner.link import Answer, Link, Op
from handheld.device import DeviceCaps
from handheld.errors import DeviceError
from handheld.plan.quirks import keeps_programs
from handheld.progress import listener
from handheld.sensors.mirror import Found
from handheld.sensors.wire import found_files

#: Flag of OPEN and PLAN: the queue keeps times from the start.
PROFILING = 1
#: How a runner gives steps to its device (record.c). The position, times 2, is the flag of OPEN and PLAN.
RECORDINGS = ("auto", "off", "khr", "qcom")
RECORDING_VARIABLE = "HANDHELD_RECORDING"
#: How large inputs reach a device that shares its memory with its host (transfer.c): mapped if the device is idle,
#: always staged, or always mapped. The position, times 8, is the flag of OPEN and PLAN.
INPUT_WAYS = ("auto", "staged", "mapped")
#: Flag of OPEN and PLAN: the runner keeps no binaries of programs.
NO_BINARIES = 32


def open_file(
    link: Link, device: int, caps: DeviceCaps, plan: bytes, profiling: bool = False, inputs: str = "auto"
) -> dict[str, Any]:
    """Opens a plan file on a device. It is sent only if the runner does not have it."""
    link.forget()
    flags = (PROFILING if profiling else 0) | _recording() | 8 * INPUT_WAYS.index(inputs)
    flags |= NO_BINARIES if keeps_programs(caps) else 0
    head = struct.pack("<II32s", device, flags, hashlib.sha256(plan).digest())
    report = listener()
    answer = bytes(link.ask(Op.OPEN, head, progress=report).wait())
    if not answer[0]:
        answer = bytes(link.ask(Op.PLAN, head, plan, progress=report).wait())
    opened: dict[str, Any] = json.loads(answer[4:])
    return opened


def _recording() -> int:
    """The flags for how steps run: HANDHELD_RECORDING of this machine counts on all targets."""
    way = os.environ.get(RECORDING_VARIABLE) or "auto"
    if way not in RECORDINGS:
        raise DeviceError(f"{RECORDING_VARIABLE}={way!r:.40} is no way to run a step. Try: {', '.join(RECORDINGS)}")
    return 2 * RECORDINGS.index(way)


def write(link: Link, segment: int, offset: int, array: np.ndarray) -> None:
    """Writes an array to a place. The array may change as soon as this returns."""
    link.send(Op.WRITE, struct.pack("<IIQ", segment, 0, offset), flat(array))


def read(link: Link, segment: int, offset: int, into: np.ndarray) -> Answer:
    """Starts to read a place into an array."""
    view = flat(into)
    return link.ask(Op.READ, struct.pack("<IIQQ", segment, 0, offset, len(view)), into=view)


def flat(array: np.ndarray) -> memoryview:
    """The bytes of a contiguous array."""
    return array.reshape(-1).view(np.uint8).data


def files(link: Link, *patterns: str) -> list[Found]:
    """Reads files of the target by patterns with * and ?."""
    return found_files(bytes(link.get(Op.FILES, "\n".join(patterns).encode())))

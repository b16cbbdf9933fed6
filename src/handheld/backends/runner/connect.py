"""Runners that were started by this process, and the devices that they have.

A runner serves one plan at a time. A session takes a free runner or starts one, and gives it back when it is closed,
because a start over ssh takes a second.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import struct
import threading
from collections.abc import Iterator
from typing import Any

from handheld.backends.hints import without_device
from handheld.backends.names import chosen
from handheld.backends.runner.caps import RunnerDevice, devices_of
from handheld.backends.runner.link import PROTOCOL, Link, Op
from handheld.errors import DeviceError, HandheldError
from handheld.targets.find import find as find_target
from handheld.targets.names import TargetName, parse

#: Process and target -> its free runners. A fork shares the streams of its parent's runners, and must not use them.
_free: dict[tuple[int, str], list[Link]] = {}
_lock = threading.Lock()


def take(name: TargetName) -> Link:
    """Returns a free runner of the target, or a new one."""
    target = find_target(name)  # It knows its full name: `adb` may be `adb:SERIAL`.
    with _lock:
        free = _free.get((os.getpid(), target.name), [])
        while free:
            link = free.pop()
            if link.lost is None:
                link.forget()
                return link
            link.close()
    return Link(target)


def give_back(link: Link) -> None:
    """Takes a runner back whose plan is closed."""
    if link.lost is not None:
        link.close()
        return
    link.steps = 0
    with _lock:
        _free.setdefault((os.getpid(), link.target.name), []).append(link)


@contextlib.contextmanager
def borrowed(name: TargetName) -> Iterator[Link]:
    """A runner of the target for as long as the context lasts."""
    link = take(name)
    try:
        yield link
    finally:
        give_back(link)


def hello(link: Link) -> dict[str, Any]:
    """Asks the runner for its description: versions, the system, OpenCL devices."""
    answer = bytes(link.get(Op.HELLO, struct.pack("<I", PROTOCOL)))
    try:
        described: dict[str, Any] = json.loads(answer)
    except ValueError:
        raise DeviceError(
            f"{link.target.name}: the runner's description is no JSON. "
            f"Try: handheld target clean --on {link.target.name}"
        ) from None
    return described


def system(link: Link) -> dict[str, Any]:
    """Asks the runner for its machine and its process. OpenCL is not loaded for this."""
    described: dict[str, Any] = json.loads(bytes(link.get(Op.SYSTEM)))
    return described


def devices(name: TargetName) -> list[RunnerDevice]:
    """Returns the OpenCL devices of a target, GPUs first. Raises DeviceError if there are none."""
    while True:
        link = take(name)
        described = hello(link)
        if described.get("devices"):
            break
        link.close()
        if not link.target.more_libraries():
            raise DeviceError(f"{name.target}: {without_device(name, str(described.get('problem') or ''))}")
    try:
        return devices_of(link, described)
    finally:
        give_back(link)


def find(spec: str | TargetName) -> RunnerDevice:
    """Returns the device of a name such as `runner:pocl`, `ssh:me@box/1`, `adb`. Raises DeviceError."""
    name = parse(spec) if isinstance(spec, str) else spec
    known = devices(name)
    found = chosen(known, name.device)
    if found is not None:
        return found
    named = " or ".join(f"--on {TargetName(name.kind, name.where, name.port, device.name)}" for device in known)
    raise DeviceError(f"{name.target} has no OpenCL device {name.device!r}. Try: {named}")


@atexit.register
def close_all() -> None:
    """Closes the free runners of this process."""
    for (process, _), links in _free.items():
        for link in links if process == os.getpid() else ():
            with contextlib.suppress(HandheldError, OSError):
                link.close()
    _free.clear()

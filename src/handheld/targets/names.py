"""The names of targets: what a user writes after `--on` for a device that a runner serves.

    runner, runner:NAME                      the runner on this machine
    ssh:user@host, ssh:user@host:2222        a machine that OpenSSH reaches, also by an alias of ~/.ssh/config
    adb, adb:SERIAL                          a phone that adb reaches: the only one, or the one with this serial number

Where pyopencl cannot be imported, `opencl` and `opencl:NAME` are names of the runner's devices too.

`ssh` and `adb` take an OpenCL device of the target after a slash, by its number or a part of its name:
`ssh:me@box/1`, `adb/adreno`. Without it, a GPU comes before a CPU, as with `opencl`.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from handheld.device import backend_of
from handheld.errors import DeviceError

KINDS = ("runner", "ssh", "adb")
_SSH = "Try: ssh:user@host, ssh:user@host:2222, or with an OpenCL device of it, ssh:user@host/0"
_ADB = "Try: adb, adb:SERIAL as `adb devices` prints it, or with an OpenCL device of it, adb:SERIAL/0"


@dataclass(frozen=True)
class TargetName:
    """A name in its parts. `where` is `user@host` or a serial number, `device` a number or a part of a name; both may
    be empty."""

    kind: str
    where: str = ""
    port: int | None = None
    device: str = ""

    @property
    def target(self) -> str:
        """The name without the device on it."""
        if self.kind == "runner":
            return self.kind
        port = f":{self.port}" if self.port is not None else ""
        return f"{self.kind}:{self.where}{port}" if self.where else self.kind

    def __str__(self) -> str:
        if self.kind == "runner":
            return f"runner:{self.device}" if self.device else "runner"
        return f"{self.target}/{self.device}" if self.device else self.target


def is_target(device: str) -> bool:
    """Whether the device is reached through a runner, here or elsewhere. So is `opencl` without pyopencl."""
    kind = backend_of(device)
    return kind in KINDS or (kind == "opencl" and bool(no_pyopencl()))


@functools.cache
def no_pyopencl() -> str:
    """Why pyopencl cannot be imported, or "" if it can. A broken OpenCL loader is a reason too."""
    try:
        import pyopencl  # noqa: F401
    except ImportError as error:
        return str(error) or "it cannot be imported"
    return ""


def is_remote(device: str) -> bool:
    """Whether the device belongs to another machine, with its own memory, clock and sensors."""
    return backend_of(device) in ("ssh", "adb")


def on_option(device: str) -> str:
    """The option that a command in a message needs to be about this device; empty for devices of this machine."""
    return f" --on {device}" if is_remote(device) else ""


def parse(device: str) -> TargetName:
    """The parts of a target's name. Raises DeviceError with the right forms."""
    kind = backend_of(device)
    rest = device[len(kind) :]
    if kind == "runner" or (kind == "opencl" and no_pyopencl()):
        return TargetName("runner", device=rest[1:])  # After a colon as with opencl, or a slash as with other targets.
    if kind == "ssh":
        return _ssh(device, rest)
    if kind == "adb":
        return _adb(device, rest)
    raise DeviceError(f"{device!r} is no target; there are runner, ssh:user@host and adb")


def _ssh(device: str, rest: str) -> TargetName:
    where, slash, chosen = rest.removeprefix(":").partition("/")
    # IPv6 addresses have colons of their own, so they are written in brackets.
    match = re.fullmatch(r"((?:[^@\s\[\]]+@)?(?:\[[0-9A-Fa-f:.%\w]+\]|[^@:\s\[\]]+))(?::([^:]*))?", where)
    if match is None:
        raise DeviceError(f"{device!r} names no machine. {_SSH}")
    login, port = match[1], match[2]
    # A login that begins with a dash would be read as an option of ssh.
    if login.startswith("-") or login.rpartition("@")[2].startswith("-"):
        raise DeviceError(f"{device!r}: neither the user nor the host may begin with a dash. {_SSH}")
    if port is not None and not (port.isdigit() and port.isascii() and 0 < int(port) < 65536):
        raise DeviceError(f"{device!r}: the port {port!r} is no number from 1 to 65535. {_SSH}")
    _check_device(device, slash, chosen, _SSH)
    return TargetName("ssh", login, None if port is None else int(port), chosen)


def _adb(device: str, rest: str) -> TargetName:
    serial, slash, chosen = rest.removeprefix(":").partition("/")
    if (rest.startswith(":") and not serial) or re.search(r"\s", serial) or serial.startswith("-"):
        raise DeviceError(f"{device!r} names no phone. {_ADB}")
    _check_device(device, slash, chosen, _ADB)
    return TargetName("adb", serial, None, chosen)


def _check_device(device: str, slash: str, chosen: str, hint: str) -> None:
    if slash and not chosen.strip():
        raise DeviceError(f"{device!r} has a slash and no OpenCL device after it. {hint}")

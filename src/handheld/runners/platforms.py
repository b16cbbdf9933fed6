"""The platforms that a runner can be built for."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from handheld.errors import DeviceError


@dataclass(frozen=True)
class Platform:
    """A system and a processor. `machine` is what `uname -m` prints there."""

    name: str
    machine: str
    about: str

    @property
    def android(self) -> bool:
        return self.name.startswith("android")


PLATFORMS = {
    platform.name: platform
    for platform in (
        Platform("android-arm64", "aarch64", "Android 8.0 and newer, also in Termux"),
        Platform("linux-arm64", "aarch64", "Raspberry Pi OS, Jetson and other 64-bit ARM systems with glibc 2.17"),
        Platform("linux-x86_64", "x86_64", "laptops, desktops and servers with glibc 2.17"),
    )
}

#: Other names of the same processors.
_MACHINES = {"arm64": "aarch64", "armv8l": "aarch64", "amd64": "x86_64", "x64": "x86_64"}


def named(name: str) -> Platform:
    """The platform with this name. Raises DeviceError with the names that there are."""
    if name not in PLATFORMS:
        raise DeviceError(f"there is no runner for the platform {name!r}. Try: {', '.join(PLATFORMS)}")
    return PLATFORMS[name]


def platform_of(system: str, machine: str) -> str:
    """The name of the platform of a machine: `system` is linux or android, `machine` is what `uname -m` prints."""
    system, machine = system.strip().lower(), machine.strip().lower()
    machine = _MACHINES.get(machine, machine)
    name = f"{system}-{'arm64' if machine == 'aarch64' else machine}"
    if name in PLATFORMS:
        return name
    raise DeviceError(
        f"there is no runner for {system} on {machine or 'an unknown processor'}; there are runners for "
        f"{', '.join(PLATFORMS)}. Try: a 64-bit system"
    )


def this_machine() -> str:
    """The name of this machine's platform. Python on Android (Termux) has `sys.getandroidapilevel`."""
    system = "android" if hasattr(sys, "getandroidapilevel") else sys.platform
    return platform_of(system, os.uname().machine if hasattr(os, "uname") else "")

"""Finds the runner for a platform: the one in the package, one built earlier, or one that is built now."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from handheld import cache
from handheld.errors import DeviceError
from handheld.files import replace_file
from handheld.runners import sources
from handheld.runners.build import build
from handheld.runners.platforms import PLATFORMS, named, platform_of

#: A file that is used as the runner whatever its platform, for tests and for a runner built by hand.
OVERRIDE = "HANDHELD_RUNNER"

__all__ = ["OVERRIDE", "Runner", "built", "find", "platform_of", "prebuilt", "runners"]


@dataclass(frozen=True)
class Runner:
    """An executable that exists. `current`: it was made from the sources of this installation."""

    platform: str
    path: Path
    origin: str  # "prebuilt", or "built" on this machine
    bytes: int
    current: bool


def prebuilt(platform: str) -> Path:
    """Where the package keeps the runner of a platform."""
    return sources.PREBUILT / platform / sources.EXECUTABLE


def built(platform: str) -> Path:
    """Where a runner that was built on this machine is kept. The name tells which sources it was made from."""
    return cache.folder() / "runners" / platform / f"{sources.EXECUTABLE}-{sources.source_hash()}"


def runners() -> list[Runner]:
    """Every runner that exists, by platform."""
    found = []
    for platform in PLATFORMS:
        for origin, path in (("prebuilt", prebuilt(platform)), ("built", built(platform))):
            if path.is_file():
                current = sources.made_from(path, sources.source_hash())
                found.append(Runner(platform, path, origin, path.stat().st_size, current))
    return found


def _executable_copy(path: Path, to: Path) -> Path:
    """A copy in the cache that can be run: some installers drop the permission, and folders may be read-only."""

    def fill(file: BinaryIO) -> None:
        file.write(path.read_bytes())
        os.fchmod(file.fileno(), 0o755)

    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        replace_file(to, fill)
    except OSError as error:
        raise DeviceError(
            f"{to} could not be written: {error.strerror}. Try: set HANDHELD_CACHE to a folder that can be written"
        ) from error
    return to


def find(platform: str) -> Path:
    """The runner for a platform. It is built if there is none from the present sources.

    Raises DeviceError where that is not possible, with the command to try.
    """
    named(platform)
    override = os.environ.get(OVERRIDE)
    if override:
        if not os.access(override, os.X_OK) or Path(override).is_dir():
            raise DeviceError(f"{OVERRIDE} names {override}, which is no executable file. Try: unset {OVERRIDE}")
        return Path(override)
    source = sources.source_hash()
    for path in (prebuilt(platform), built(platform)):
        if sources.made_from(path, source):
            return path if os.access(path, os.X_OK) else _executable_copy(path, built(platform))
    try:
        build(platform, built(platform))
    except DeviceError as error:
        have = "is older than its sources" if prebuilt(platform).is_file() else "is not part of this installation"
        raise DeviceError(
            f"the runner for {platform} {have}, and it could not be built: {error}. "
            f"Then: handheld runner build --for {platform}"
        ) from error
    return built(platform)

"""The runner on this machine. It lies where it was installed or built; its folder is in the user's cache."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

from handheld import cache
from handheld.errors import DeviceError
from handheld.runners import find as runners
from handheld.runners.platforms import this_machine
from handheld.targets.base import Contents, Running, Target
from handheld.targets.names import TargetName

#: A command that is put before the runner's path, such as an emulator.
COMMAND = "HANDHELD_RUNNER_COMMAND"
#: Names the OpenCL library. The runner reads it.
LIBRARY = "HANDHELD_OPENCL"
#: The address space for batches that a runner reads from shared memory. More goes through its pipe.
SHARED_BYTES = 256 << 20


class LocalTarget(Target):
    """This machine, without ssh or adb."""

    def __init__(self, name: TargetName) -> None:
        self.name = name.target
        self.folder = cache.folder() / "runner"

    def platform(self) -> str:
        return this_machine()

    def start(self, *arguments: str) -> Running:
        file = runners.find(self.platform())
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DeviceError(
                f"{self.name}: {self.folder} cannot be written: {error.strerror}. "
                "Try: set HANDHELD_CACHE to a folder that can be written"
            ) from None
        before = shlex.split(os.environ.get(COMMAND, ""))
        shared = _shared_file() if arguments[0] == "serve" else None
        more = () if shared is None else ("--shared", str(shared))
        command = [*before, str(file), *arguments, *_library(), "--folder", str(self.folder), *more]
        try:
            return Running(command, shared_file=shared)
        except OSError as error:
            raise DeviceError(
                f"{self.name}: {file} does not start: {error.strerror}. "
                f"Try: handheld runner build --for {self.platform()}"
            ) from None
        finally:
            if shared is not None:
                os.close(shared)  # The memory stays mapped.

    def contents(self) -> Contents:
        files = {
            str(path.relative_to(self.folder)): path.stat().st_size
            for path in sorted(self.folder.rglob("*"))
            if path.is_file() and not path.is_symlink()
        }
        return Contents(str(self.folder), files)

    def clean(self) -> Contents:
        contents = self.contents()
        try:
            if self.folder.exists():
                shutil.rmtree(self.folder)
        except OSError as error:
            raise DeviceError(f"{self.name}: {self.folder} could not be removed: {error.strerror}") from None
        return contents


def _shared_file() -> int | None:
    """A file in memory that the runner gets too. Its pages exist only once they are written. Only Linux has it."""
    if not hasattr(os, "memfd_create"):
        return None
    file = os.memfd_create("handheld batches")
    os.ftruncate(file, SHARED_BYTES)
    return file


def _library() -> list[str]:
    """The OpenCL loader that comes with pyopencl, if there is one, so that both find the same devices."""
    if os.environ.get(LIBRARY):
        return []
    for folder in sys.path:
        for path in sorted(Path(folder or ".", "pyopencl", ".libs").glob("libOpenCL*")):
            return ["--opencl", str(path)]
    return []

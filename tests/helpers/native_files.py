"""The runner's own code for files and samples, compiled as a library, as a machine that sensors are read on."""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from handheld.sensors.mirror import Found, Wanted
from handheld.sensors.wire import found_files, sample_list

NATIVE = Path(__file__).parents[2] / "src" / "handheld" / "native"
WARNINGS = ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Wstrict-prototypes", "-Werror")
_Bytes = ctypes.POINTER(ctypes.c_ubyte)


def compiled(folder: Path) -> ctypes.CDLL:
    """The library. Skips the test where there is no compiler."""
    if not (compiler := shutil.which("gcc") or shutil.which("clang")):
        pytest.skip("there is no C compiler")
    library = folder / "files.so"
    sources = [str(NATIVE / name) for name in ("files.c", "sample.c")]
    subprocess.run([compiler, *WARNINGS, "-O1", "-shared", "-fPIC", *sources, "-o", str(library)], check=True)
    loaded = ctypes.CDLL(str(library))
    loaded.sampler_fork.restype = ctypes.c_void_p
    for name in ("files_answer", "sampler_start", "sampler_take", "sampler_stop"):
        getattr(loaded, name).restype = ctypes.c_char_p
    return loaded


class NativeMachine:
    """A machine whose files lie under a folder."""

    name, page_bytes = "ssh:me@box", 4096

    def __init__(self, library: ctypes.CDLL, root: Path, pid: int | None = None) -> None:
        self.library, self.root = library, str(root).encode()
        self.pid = os.getpid() if pid is None else pid
        self.sampler = ctypes.c_void_p(library.sampler_fork(self.root))

    def _answer(self, function: str, *given: object) -> bytes:
        data, size = _Bytes(), ctypes.c_size_t()
        problem = getattr(self.library, function)(*given, ctypes.byref(data), ctypes.byref(size))
        assert problem is None, problem
        return ctypes.string_at(data, size.value)

    def files(self, patterns: Iterable[str]) -> list[Found]:
        text = "\n".join(patterns).encode()
        return found_files(self._answer("files_answer", self.root, text, ctypes.c_size_t(len(text))))

    def sample(self, wanted: Sequence[Wanted]) -> None:
        problem = self.start(sample_list(wanted))
        assert problem is None, problem

    def start(self, data: bytes) -> bytes | None:
        return self.library.sampler_start(self.sampler, data, ctypes.c_size_t(len(data)))

    def samples(self) -> bytes:
        return self._answer("sampler_take", self.sampler)

    def stop_sampling(self) -> bytes:
        return self._answer("sampler_stop", self.sampler)

    def clock_ns(self) -> int:
        return time.monotonic_ns()

    def close(self) -> None:
        self.library.sampler_end(self.sampler)


def record(number: int, length: int, t_ns: int, content: bytes = b"") -> bytes:
    return struct.pack("<IIq", number, length, t_ns) + content

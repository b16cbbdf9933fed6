"""Builds the native runner for tests, and talks to it."""

from __future__ import annotations

import importlib.util
import shutil
import struct
import subprocess
from pathlib import Path

import handheld

NATIVE = Path(handheld.__file__).parent / "native"
STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror")


def compilers() -> list[str]:
    """The C compilers of this machine."""
    return [name for name in ("gcc", "clang") if shutil.which(name)]


def compile_runner(out: Path, compiler: str, *options: str, but: tuple[str, ...] = ()) -> Path:
    """Compiles all sources of the runner except `but`."""
    sources = [str(path) for path in sorted(NATIVE.glob("*.c")) if path.name not in but]
    command = [compiler, "-std=c99", "-O2", *options, *sources, "-o", str(out), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return out


def compile_fuzzer(out: Path) -> Path:
    """Compiles tests/native/fuzz.c and the runner with sanitizers. clang has the faster ones."""
    tests = Path(__file__).parents[1] / "native"
    compiler = "clang" if "clang" in compilers() else "gcc"
    options = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
    options += ("-DMOST_SECONDS=0.001", "-DMOST_COMMANDS=(size_t)64")
    own = (str(tests / "fuzz.c"), str(tests / "fake_cl.c"), f"-I{NATIVE}", f"-I{tests}")
    return compile_runner(out, compiler, *options, *own, but=("main.c", "cl.c", "info.c", "sample.c"))


def opencl_library() -> list[str]:
    """The option that names the OpenCL library of pyopencl's wheel, which is not where the system looks."""
    spec = importlib.util.find_spec("pyopencl")
    folder = Path(spec.origin).parent / ".libs" if spec and spec.origin else Path("nowhere")
    found = sorted(folder.glob("libOpenCL*")) if folder.is_dir() else []
    return ["--opencl", str(found[0])] if found else []


class Refused(Exception):
    """The runner answered with an error."""


class Wire:
    """Talks to `runner serve` in bytes, as docs/runner.md says."""

    def __init__(self, runner: Path, folder: Path, *options: str, env: dict[str, str] | None = None) -> None:
        command = [str(runner), "serve", "--folder", str(folder), *opencl_library(), *options]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=env)
        self.seq = 0
        self.progress: list[str] = []

    def send(self, op: int, payload: bytes = b"") -> int:
        assert self.process.stdin is not None
        self.seq += 1
        self.process.stdin.write(struct.pack("<IIQ", op, self.seq, len(payload)) + payload)
        self.process.stdin.flush()
        return self.seq

    def answer(self) -> tuple[int, bytes]:
        """The next answer: its seq and its payload."""
        assert self.process.stdout is not None
        while True:
            head = self.process.stdout.read(16)
            if len(head) < 16:
                raise EOFError("the runner ended")
            status, seq, length = struct.unpack("<IIQ", head)
            data = self.process.stdout.read(length)
            if status == 0:
                return seq, data
            if status == 1:
                raise Refused(seq, data.decode())
            self.progress.append(data.decode())

    def ask(self, op: int, payload: bytes = b"") -> bytes:
        seq = self.send(op, payload)
        found, data = self.answer()
        assert found == seq
        return data

    def close(self) -> int:
        assert self.process.stdin is not None and self.process.stdout is not None and self.process.stderr is not None
        self.process.stdin.close()
        code = self.process.wait(30)
        self.process.stdout.close()
        self.process.stderr.close()
        return code

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

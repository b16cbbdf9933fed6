"""The C sources of the runner, and the hash that tells whether an executable was made from them."""

from __future__ import annotations

import hashlib
from pathlib import Path

from handheld.errors import DeviceError

NATIVE = Path(__file__).resolve().parent.parent / "native"
PREBUILT = NATIVE / "prebuilt"
EXECUTABLE = "handheld-runner"
DIGITS = 16  # of the hash, as text


def c_files() -> list[Path]:
    """The files to compile, sorted. Raises DeviceError where there are none."""
    found = sorted(NATIVE.glob("*.c"))
    if not found:
        raise DeviceError(f"{NATIVE} has no C files, so no runner can be built. Try: install Handheld again")
    return found


def source_hash() -> str:
    """The hash of what an executable is made from: the C files and the headers.

    It is compiled into the executable, which therefore needs no file beside it that could go out of date.
    """
    digest = hashlib.sha256()
    for path in sorted([*c_files(), *NATIVE.glob("*.h")]):
        content = path.read_bytes()
        digest.update(f"\n{path.name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()[:DIGITS]


def made_from(executable: Path, source: str) -> bool:
    """Whether the executable was made from the sources with this hash."""
    try:
        return source.encode() in executable.read_bytes()
    except OSError:
        return False

"""Plan files: a plan as one file of numbers and texts, without code, that a runner executes.

    write(plan, path)        with the values of the slots, so that the file is complete
    to_bytes(plan)           without values, as a session sends it
    read(path)               checks everything; docs/plan-file.md describes the format

file_format.py has the layout, file_write.py the writer, file_read.py the reader.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from handheld.errors import PlanFileError
from handheld.files import replace_file
from handheld.plan.file_format import Content, Section
from handheld.plan.file_read import content_of
from handheld.plan.file_write import parts_of
from handheld.plan.quirks import other_driver

if TYPE_CHECKING:
    from handheld.device import DeviceCaps
    from handheld.plan.plan import Plan

__all__ = ["Content", "Section", "check_device", "read", "to_bytes", "write"]


def to_bytes(plan: Plan, values: bool = False, merged: bool = True) -> bytes:
    """Returns the plan file. Without `merged`, each text of a launch is its own program, also on a CPU."""
    data = b"".join(parts_of(plan, values, merged))
    content_of(np.frombuffer(data, np.uint8))  # The writer reads what it wrote.
    return data


def write(plan: Plan, path: str | Path, values: bool = True) -> Content:
    """Writes a plan file atomically, reads it back and returns its content."""
    path = Path(path)
    parts = parts_of(plan, values)

    def fill(file: BinaryIO) -> None:
        for part in parts:
            file.write(part)

    try:
        replace_file(Path(os.path.realpath(path)), fill)
    except OSError as error:
        size = sum(len(part) for part in parts)
        reason = error.strerror or type(error).__name__
        raise PlanFileError(f"{path} ({size:,} bytes) could not be written: {reason}. Try: another folder") from error
    return read(path)


def read(path: str | Path) -> Content:
    """Reads a plan file and checks it. Raises PlanFileError."""
    path = Path(path)
    try:
        size = path.stat().st_size
        data = np.memmap(path, np.uint8, "r") if size and path.is_file() else np.empty(0, np.uint8)
        return content_of(data)
    except OSError as error:
        raise PlanFileError(f"{path} cannot be read: {error.strerror or type(error).__name__}") from None
    except PlanFileError as error:
        raise PlanFileError(f"{path} {error}") from None


def check_device(content: Content, path: str | Path, device: str, caps: DeviceCaps) -> str:
    """Raises PlanFileError if the file is for another device than this one. Returns a sentence if it is for another
    driver, otherwise an empty text."""
    if content.device != caps.name:
        raise PlanFileError(
            f"{path} is a plan for {content.device}, but {device} is {caps.name}. "
            f"Try: handheld plan STEP --on {device} --out {path}"
        )
    note = other_driver(str(path), content.driver, device, caps.driver)
    return note and f"{note}. Try: handheld plan STEP --on {device} --out {path}"

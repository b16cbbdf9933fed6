"""What the formats share: atomic files with one error, and packages that only one format needs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import BinaryIO

from handheld.errors import HandheldError, RunFileError
from handheld.files import replace_file


def needed(module: str, package: str) -> ModuleType:
    """A module of a package that is not always installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing = (error.name or package).partition(".")[0]
        why = f"which is not installed here (there is no module {missing})"
        raise HandheldError(f"this format needs the package {package}, {why}. Try: pip install {package}") from None


def write_file(path: Path, fill: Callable[[BinaryIO], None]) -> Path:
    """Write a file completely or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, fill)
    except OSError as error:
        raise RunFileError(f"{path} cannot be written: {error.strerror or error}. Try: another --out") from None
    return path

"""Converts a run file to other formats.

One file per format. A format is a function `write(run, out)` that reads the run and nothing else, writes its files
completely or not at all, and returns their paths. To add one, write its file and add a row to `FORMATS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from handheld.analyse.run import Run
from handheld.errors import RunFileError
from handheld.export import csv

#: Format name on the command line -> its write function.
FORMATS: Mapping[str, Callable[[Run, Path], list[Path]]] = MappingProxyType({"csv": csv.write})


def export(run: Run, format_name: str, out: Path) -> list[Path]:
    """Write the run in a format and return the paths of the files."""
    if format_name not in FORMATS:
        raise RunFileError(f"there is no format {format_name!r}. Try one of: {', '.join(FORMATS)}")
    return FORMATS[format_name](run, out)

"""Converts run files, and the state of trained models, to other formats.

One file per format. A format of a run is a function `write(run, out)` that reads the run and nothing else, writes its
files completely or not at all, and returns their paths. To add one, write its file and add a row to `FORMATS`.
`tracks.py` is a run over time and `tables.py` a run as tables; the formats write one of the two.
Formats of a model's state are in `STATE_FORMATS`: they write arrays by their PyTorch names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from handheld.analyse.run import Run
from handheld.errors import RunFileError
from handheld.export import chrome, csv, parquet, perfetto, state, tensorboard

#: Format name on the command line -> its write function.
FORMATS: Mapping[str, Callable[[Run, Path], list[Path]]] = MappingProxyType(
    {
        "perfetto": perfetto.write,
        "chrome": chrome.write,
        "csv": csv.write,
        "parquet": parquet.write,
        "tensorboard": tensorboard.write,
    }
)

#: The formats that are one file, and how its name ends. The others are folders.
SUFFIXES: Mapping[str, str] = MappingProxyType({"perfetto": ".pftrace", "chrome": ".trace.json"})

#: Format name -> its write function, for parameters and buffers.
STATE_FORMATS: Mapping[str, Callable[[state.State, Path], Path]] = MappingProxyType(
    {"pt": state.write_pt, "safetensors": state.write_safetensors}
)


def export(run: Run, format_name: str, out: Path) -> list[Path]:
    """Write the run in a format and return the paths of the files."""
    if format_name not in FORMATS:
        raise RunFileError(f"there is no format {format_name!r}. Try one of: {', '.join(FORMATS)}")
    return FORMATS[format_name](run, out)


def place(file: Path, format_name: str) -> Path:
    """Where a run file is exported to by default: beside it."""
    suffix = SUFFIXES.get(format_name)
    return file.with_name(f"{file.stem}-{format_name}") if suffix is None else file.with_name(f"{file.stem}{suffix}")

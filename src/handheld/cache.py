"""The user's cache folder, which holds measurements of this machine that would take time to repeat.

It is the folder `HANDHELD_CACHE` if that is set, otherwise `handheld` in `XDG_CACHE_HOME` or `~/.cache`. Everything in
it may be deleted at any time.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, BinaryIO

from handheld.errors import HandheldError
from handheld.files import replace_file


def folder() -> Path:
    chosen = os.environ.get("HANDHELD_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "handheld"


def slug(text: str) -> str:
    """The text in a form that is safe in a file name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def write_json(path: Path, data: Any) -> None:
    """Write a JSON file atomically: at any time, even after a crash, `path` holds the old content or the new
    content."""
    text = json.dumps(data, indent=1, allow_nan=False) + "\n"

    def fill(file: BinaryIO) -> None:
        file.write(text.encode())

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, fill)
    except OSError as error:
        raise HandheldError(
            f"{path} could not be written: {error.strerror}. Try: set HANDHELD_CACHE to a folder that can be written"
        ) from error

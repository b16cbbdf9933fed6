"""The user's cache folder, which holds measurements of this machine that would take time to repeat.

It is the folder `HANDHELD_CACHE` if that is set, otherwise `handheld` in `XDG_CACHE_HOME` or `~/.cache`. Everything in
it may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
from pathlib import Path
from typing import Any

from handheld.errors import HandheldError


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
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(data, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise HandheldError(
            f"{path} could not be written: {error.strerror}. Try: set HANDHELD_CACHE to a folder that can be written"
        ) from error
    finally:  # Also after Ctrl-C, no temporary file is left.
        with contextlib.suppress(OSError):
            temporary.unlink()

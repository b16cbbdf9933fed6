"""The user's cache folder: what was measured on this machine and would cost time to measure again.

`HANDHELD_CACHE` moves it; otherwise it is `handheld` in `XDG_CACHE_HOME` or `~/.cache`. Whatever is
in it may be deleted at any time.
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
    own = os.environ.get("HANDHELD_CACHE")
    if own:
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "handheld"


def slug(text: str) -> str:
    """A device's name as part of a file's name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def write_json(path: Path, data: Any) -> None:
    """Whoever opens `path`, also after a kill in the middle, finds the old file or the new one."""
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(data, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise HandheldError(
            f"{path} could not be written: {error.strerror}. Try: HANDHELD_CACHE=a folder that can be written"
        ) from error
    finally:  # Ctrl-C too leaves nothing behind
        with contextlib.suppress(OSError):
            temporary.unlink()

"""How far a command is that runs in another process or thread."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path


def steps_in(path: Path) -> int:
    """The steps in a run file that is being written; 0 if there is none yet."""
    with (
        contextlib.suppress(sqlite3.Error),
        contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db,
    ):
        return int(db.execute("SELECT count(*) FROM step").fetchone()[0])
    return 0

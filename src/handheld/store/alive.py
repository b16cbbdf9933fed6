"""Whether the process that writes a run file still runs."""

from __future__ import annotations

from collections.abc import Mapping

import psutil


def alive(process: Mapping[str, float] | None) -> bool | None:
    """`process` is the entry of `meta`. None if the file does not name its process."""
    if process is None:
        return None
    try:
        return bool(psutil.Process(int(process["pid"])).create_time() == process["created"])
    except psutil.Error:
        return False

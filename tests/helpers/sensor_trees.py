"""Folders like those of devices, made from sensors/trees/: each cites what it reproduces."""

from __future__ import annotations

import os
import re
from pathlib import Path

from handheld.sensors.base import Sensor, Value, Where

FOLDER = Path(__file__).parents[1] / "sensors" / "trees"


def grow(name: str, root: Path) -> Where:
    """Writes a tree's files under a folder, and looks there for process 4242."""
    text = (FOLDER / f"{name}.tree").read_text(encoding="utf-8")
    for part in re.split(r"^=== ", text, flags=re.MULTILINE)[1:]:
        path, _, content = part.partition("\n")
        put(root, path, content)
    return Where(root, pid=4242)


def put(root: Path, path: str, content: str) -> Path:
    """Writes a file in one go: who reads it meanwhile sees the old content or the new one."""
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode()
    descriptor = os.open(target, os.O_RDWR | os.O_CREAT)
    os.pwrite(descriptor, data.ljust(os.fstat(descriptor).st_size), 0)
    os.close(descriptor)
    if target.parent.name == "bin":
        target.chmod(0o755)
    return target


def values(sensor: Sensor) -> dict[str, Value]:
    """A reading by the channels' names."""
    return dict(zip((channel.name for channel in sensor.channels), sensor.read(), strict=True))

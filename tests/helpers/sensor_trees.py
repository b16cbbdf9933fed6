"""Writes file trees like those of real devices, from sensors/trees/. Each tree cites its origin."""

from __future__ import annotations

import os
import re
from pathlib import Path

from handheld.sensors.base import Sensor, Value, Where

FOLDER = Path(__file__).parents[1] / "sensors" / "trees"


def grow(name: str, root: Path) -> Where:
    """Writes a tree's files under a folder; returns the place for sensors to read, with process 4242."""
    text = (FOLDER / f"{name}.tree").read_text(encoding="utf-8")
    for part in re.split(r"^=== ", text, flags=re.MULTILINE)[1:]:
        path, _, content = part.partition("\n")
        put(root, path, content)
    return Where(root, pid=4242)


def put(root: Path, path: str, content: str) -> Path:
    """Writes a file with one call, so that a reader sees either the old content or the new."""
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
    """One reading, by channel name."""
    return dict(zip((channel.name for channel in sensor.channels), sensor.read(), strict=True))

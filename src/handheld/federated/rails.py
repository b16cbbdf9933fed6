"""Joules of devices that share a power rail: several SuperNodes on one machine each measure all of it.

A device says which rail it read and when it trained. While several of them train, each gets an equal part of the rail,
so that the sum over the devices is what the rail delivered. The times of one rail come from one clock.
"""

from __future__ import annotations

import itertools
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from handheld.federated.record import Visit

BOOT = Path("/proc/sys/kernel/random/boot_id")


def rail_of(device: str, rail: str) -> str:
    """The name of a rail that no other machine has. A board that ssh reaches is one, whoever reaches it."""
    if device.startswith("ssh:"):
        return f"{device}/{rail}"
    machine = BOOT.read_text().strip() if BOOT.exists() else platform.node()  # Containers of a machine share its boot.
    return f"{machine}/{device}/{rail}" if device.startswith("adb") else f"{machine}/{rail}"


def divide(visits: Sequence[tuple[Visit, Mapping[str, Any]]]) -> int:
    """Divide the joules of the visits of a round that share a rail. Each visit comes with what its device reported.
    Returns how many got a part only."""
    by_rail: dict[str, list[tuple[Visit, tuple[float, float]]]] = {}
    for visit, facts in visits:
        if visit.joules is not None and "rail" in facts:
            span = float(facts["begin-seconds"]), float(facts["end-seconds"])
            by_rail.setdefault(str(facts["rail"]), []).append((visit, span))
    divided = 0
    for members in by_rail.values():
        for (visit, _), part in zip(members, parts([span for _, span in members]), strict=True):
            visit.joules = (visit.joules or 0.0) * part
            divided += part < 1
    return divided


def parts(spans: Sequence[tuple[float, float]]) -> list[float]:
    """The part of a rail that each span gets: at any time, the spans that cover it share it equally."""
    edges = sorted({edge for span in spans for edge in span})
    got = [0.0] * len(spans)
    for low, high in itertools.pairwise(edges):
        inside = [number for number, (begin, end) in enumerate(spans) if begin <= low and high <= end]
        for number in inside:
            got[number] += (high - low) / len(inside)
    return [own / (end - begin) if end > begin else 1.0 for own, (begin, end) in zip(got, spans, strict=True)]

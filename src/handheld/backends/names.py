"""The stable names of OpenCL devices. They come from platform and device, not from the position in a list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from handheld import cache


class Named(Protocol):
    @property
    def name(self) -> str: ...


Found = TypeVar("Found", bound=Named)


def chosen(known: Sequence[Found], wanted: str) -> Found | None:
    """Returns the device that a user means: the first without a wish, else by number, name or part of a name."""
    if not wanted:
        return known[0]
    if wanted.isdigit():
        return known[int(wanted)] if int(wanted) < len(known) else None
    exact = [device for device in known if device.name == wanted]
    return next((device for device in (*exact, *known) if wanted.lower() in device.name.lower()), None)


def device_name(platform: str, device: str, others: Sequence[str]) -> str:
    """Returns the name of a device. Equal devices get the endings --2, --3; `others` are the names before it."""
    base = cache.slug(f"{platform} {device}")
    for long, short in (("portable-computing-language", "pocl"), ("nvidia-cuda-", "")):
        base = base.replace(long, short)
    same = sum(other == base or other.startswith(f"{base}--") for other in others)
    return base if not same else f"{base}--{same + 1}"

"""Opens targets by name, once per process, because the first connection asks for facts that do not change."""

from __future__ import annotations

from collections.abc import Callable

from handheld.targets.adb import AdbTarget
from handheld.targets.base import Target
from handheld.targets.local import LocalTarget
from handheld.targets.names import TargetName, parse
from handheld.targets.ssh import SshTarget

KINDS: dict[str, Callable[[TargetName], Target]] = {"runner": LocalTarget, "ssh": SshTarget, "adb": AdbTarget}
_opened: dict[str, Target] = {}


def find(name: TargetName | str) -> Target:
    """The target of a device's name. Raises DeviceError if it cannot be reached."""
    parsed = parse(name) if isinstance(name, str) else name
    if parsed.target not in _opened:
        _opened[parsed.target] = KINDS[parsed.kind](parsed)
    return _opened[parsed.target]

"""A stand-in phone with sensor files of its own: its runner looks for files in the phone's folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from handheld.backends.runner import connect
from handheld.runners import find as runners
from handheld.runners.platforms import this_machine
from handheld.targets import find
from handheld.targets.local import _library
from helpers.phones import AddPhone, Phone
from helpers.sensor_trees import put

GETPROP = (
    'case "$1" in *manufacturer) echo Google;; *product.model) echo "Pixel 7";; *soc*) echo GS201;; *) echo 14;; esac'
)


def furnish(root: Path) -> None:
    """Files of a phone: a GPU, a thermal zone, a battery and a power rail. Processes are those of this machine."""
    (root / "proc").symlink_to("/proc")
    for name, content in (("gpu_busy_percentage", "50 %"), ("temp", "41000"), ("devfreq/cur_freq", "585000000")):
        put(root, f"sys/class/kgsl/kgsl-3d0/{name}", content)
    for name, content in (("type", "gpu"), ("temp", "40000")):
        put(root, f"sys/class/thermal/thermal_zone0/{name}", content)
    for name, content in (("type", "Battery"), ("status", "Discharging"), ("power_now", "2000000"), ("capacity", "80")):
        put(root, f"sys/class/power_supply/battery/{name}", content)


@pytest.fixture
def furnished_phone(phones: AddPhone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Phone]:
    """A phone with files and properties, and a runner that looks for files in the phone's own folder."""
    phone = phones()
    root = phone.folder / "root"
    furnish(root)
    phone.program("getprop", GETPROP)
    wrapped = tmp_path / "wrapped"
    wrapped.write_text(
        f'#!/bin/sh\ncommand="$1"\nshift\n[ "$command" = serve ] && set -- "$@" --root "{root}"\n'
        f'exec "{runners.find(this_machine())}" "$command" "$@"\n'
    )
    wrapped.chmod(0o755)
    monkeypatch.setenv("HANDHELD_RUNNER", str(wrapped))
    if library := _library():
        monkeypatch.setenv("HANDHELD_OPENCL", library[1])
    monkeypatch.setattr(find, "_opened", {})
    yield phone
    connect.close_all()  # The next phone has the same name.

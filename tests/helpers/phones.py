"""Stand-in phones: `phone/adb` takes the place of the transport. Everything behind it is real: a shell, a file system,
and the Linux build of the runner."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from handheld.backends.runner import connect
from helpers.sensor_trees import put

ADB = Path(__file__).parent / "phone" / "adb"


@dataclass
class Phone:
    """One stand-in phone. Its folder is all there is of it."""

    folder: Path

    @property
    def name(self) -> str:
        return f"adb:{self.folder.name}"

    @property
    def storage(self) -> Path:
        return self.folder / "root" / "data" / "local" / "tmp"

    def set(self, state: str) -> None:
        """Changes what `adb devices` says about it; empty: it is not attached."""
        path = self.folder / "state"
        path.write_text(state) if state else path.unlink(missing_ok=True)

    def program(self, name: str, script: str) -> None:
        """Gives it a program that its shell finds before the system's."""
        path = self.folder / "bin" / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def furnish(self, runner: Path) -> Path:
        """Gives it files of sensors: a GPU, a thermal zone and a battery with its power. Processes are those of this
        machine. Returns a runner that looks for files in the phone's own folder."""
        root = self.folder / "root"
        (root / "proc").symlink_to("/proc")
        for name, content in (("gpu_busy_percentage", "50 %"), ("temp", "41000"), ("devfreq/cur_freq", "585000000")):
            put(root, f"sys/class/kgsl/kgsl-3d0/{name}", content)
        for name, content in (("type", "gpu"), ("temp", "40000")):
            put(root, f"sys/class/thermal/thermal_zone0/{name}", content)
        for name, content in (("type", "Battery"), ("status", "Discharging"), ("power_now", "2000000")):
            put(root, f"sys/class/power_supply/battery/{name}", content)
        put(root, "sys/class/power_supply/battery/capacity", "80")
        wrapped = self.folder / "wrapped"
        wrapped.write_text(
            f'#!/bin/sh\ncommand="$1"\nshift\n[ "$command" = serve ] && set -- "$@" --root "{root}"\n'
            f'exec "{runner}" "$command" "$@"\n'
        )
        wrapped.chmod(0o755)
        return wrapped


AddPhone = Callable[..., Phone]


@pytest.fixture
def phones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AddPhone:
    """Puts the stand-in first on the path. Returns a function that attaches a phone."""
    connect.close_all()  # Runners of an earlier test's phone of the same name.
    every, tools = tmp_path / "phones", tmp_path / "tools"
    every.mkdir()
    tools.mkdir()
    shutil.copy(ADB, tools / "adb")
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("STANDIN_PHONES", str(every))
    monkeypatch.delenv("ANDROID_SERIAL", raising=False)

    def add(serial: str = "R5CT10XYZ", state: str = "device", model: str = "Pixel_7") -> Phone:
        phone = Phone(every / serial)
        phone.storage.mkdir(parents=True)
        (phone.folder / "bin").mkdir()
        (phone.folder / "model").write_text(model)
        phone.set(state)
        return phone

    return add

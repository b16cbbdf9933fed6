"""The runner's sources build for every platform, also for Android without an NDK."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from handheld.errors import DeviceError
from handheld.runners import sources
from handheld.runners.build import build
from handheld.runners.compilers import choose
from handheld.runners.platforms import named, this_machine
from helpers.elf import AARCH64, Elf


def needs(platform: str, compiler: str) -> None:
    try:
        choose(named(platform), compiler)
    except DeviceError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("compiler", ["zig", "gcc"])
def test_android_builds_without_an_ndk(compiler: str, tmp_path: Path):
    """A name of the C library that native/libc_bare.h or runners/android.py lacks is an error here."""
    needs("android-arm64", compiler)
    build("android-arm64", tmp_path / "runner", compiler)
    made = Elf(tmp_path / "runner")
    assert made.machine == AARCH64 and made.interpreter == "/system/bin/linker64"
    assert sources.made_from(tmp_path / "runner", sources.source_hash())


def test_this_machines_runner_says_what_it_was_made_from(tmp_path: Path):
    needs(this_machine(), "gcc")
    build(this_machine(), tmp_path / "runner", "gcc")
    assert sources.source_hash() in subprocess.check_output([tmp_path / "runner", "--version"], text=True)

"""Building and finding a runner, tried on a C program of three lines in place of the real sources."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from handheld.errors import DeviceError
from handheld.runners import build, compilers, find, sources
from handheld.runners.platforms import PLATFORMS, named, platform_of, this_machine

PROGRAM = '#include <stdio.h>\nint main(void) { return puts("made from " HANDHELD_SOURCE) < 0; }\n'
BARE = """
int main(void);
int write(int, const void *, unsigned long);
void _exit(int);
int main(void) { return write(1, HANDHELD_SOURCE, 16) < 0; }
void _start(void) { _exit(main()); }
"""

needs_gcc = pytest.mark.skipif(
    not any(shutil.which(name) for name in ("gcc", "cc", "clang")), reason="needs a C compiler: apt install gcc"
)
needs_zig = pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="needs zig: pip install ziglang")


@pytest.fixture
def native(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the sources of a very small runner, and an empty cache."""
    folder = tmp_path / "native"
    folder.mkdir()
    (folder / "main.c").write_text(PROGRAM)
    monkeypatch.setattr(sources, "NATIVE", folder)
    monkeypatch.setattr(sources, "PREBUILT", folder / "prebuilt")
    monkeypatch.setenv("HANDHELD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(find.OVERRIDE, raising=False)
    return folder


@pytest.fixture
def no_compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("ANDROID_NDK_HOME", raising=False)
    monkeypatch.delenv("ANDROID_NDK_ROOT", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


@pytest.mark.parametrize(
    ("system", "machine", "name"),
    [
        ("linux", "x86_64", "linux-x86_64"),
        ("Linux", "amd64", "linux-x86_64"),
        ("Linux", "aarch64\n", "linux-arm64"),
        ("linux", "arm64", "linux-arm64"),
        ("android", "aarch64", "android-arm64"),
    ],
)
def test_a_machine_has_its_platform(system: str, machine: str, name: str):
    assert platform_of(system, machine) == name


@pytest.mark.parametrize(
    ("system", "machine"), [("linux", "armv7l"), ("darwin", "arm64"), ("android", "x86_64"), ("", "")]
)
def test_other_machines_are_an_error(system: str, machine: str):
    with pytest.raises(DeviceError, match="there is no runner for") as caught:
        platform_of(system, machine)
    assert all(name in str(caught.value) for name in PLATFORMS) and "Try: " in str(caught.value)


def test_an_unknown_platform_names_the_known_ones():
    with pytest.raises(DeviceError, match=r"'windows'\. Try: android-arm64, linux-arm64, linux-x86_64"):
        named("windows")


@pytest.mark.parametrize(
    ("platform", "hint"),
    [
        ("android-arm64", "pip install ziglang, or apt install gcc-aarch64-linux-gnu, or set ANDROID_NDK_HOME"),
        ("linux-arm64", "pip install ziglang, or apt install gcc-aarch64-linux-gnu$"),
        ("linux-x86_64", "pip install ziglang, or apt install gcc-x86-64-linux-gnu$"),
    ],
)
@pytest.mark.usefixtures("no_compilers")
def test_without_a_compiler_the_error_says_what_to_install(platform: str, hint: str):
    with pytest.raises(DeviceError, match=f"no compiler for {platform} was found. Try: {hint}"):
        compilers.choose(named(platform))


@pytest.mark.usefixtures("no_compilers")
def test_a_compiler_that_was_asked_for_is_named():
    with pytest.raises(DeviceError, match=r"zig was not found, .* Try: pip install ziglang"):
        compilers.choose(named("linux-arm64"), "zig")
    with pytest.raises(DeviceError, match="the NDK builds for Android only, not for linux-arm64"):
        compilers.choose(named("linux-arm64"), "ndk")
    with pytest.raises(DeviceError, match="there is no compiler 'msvc'"):
        compilers.choose(named("linux-arm64"), "msvc")


@pytest.mark.parametrize("variable", ["ANDROID_NDK_HOME", "ANDROID_NDK_ROOT"])
def test_an_ndk_comes_first(variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    clang = tmp_path / "toolchains/llvm/prebuilt/linux-x86_64/bin/aarch64-linux-android26-clang"
    clang.parent.mkdir(parents=True)
    clang.touch()
    monkeypatch.delenv("ANDROID_NDK_HOME", raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    found = compilers.choose(named("android-arm64"))
    assert (found.name, found.command, found.bare) == ("ndk", (str(clang),), False)
    line = found.line(["main.c"], ["-ldl"], tmp_path / "out")
    assert "-Wl,-z,max-page-size=16384" in line and "-DHANDHELD_BARE" not in line
    assert compilers.ndk(named("linux-arm64")) is None


@needs_gcc
def test_a_runner_is_built_once_and_then_found(native: Path):
    platform = this_machine()
    path = find.find(platform)
    assert path == find.built(platform) and os.access(path, os.X_OK)
    assert subprocess.check_output([path], text=True) == f"made from {sources.source_hash()}\n"
    before = path.stat().st_mtime_ns
    assert find.find(platform) == path and path.stat().st_mtime_ns == before
    assert [one.origin for one in find.runners()] == ["built"]
    assert sorted(path.parent.iterdir()) == [path]  # Nothing is left of the build.


@needs_gcc
def test_a_prebuilt_runner_is_used_until_the_sources_change(native: Path):
    platform = this_machine()
    build.build(platform, find.prebuilt(platform), "gcc")
    assert find.find(platform) == find.prebuilt(platform)
    (native / "new.h").write_text("/* a new header */\n")
    assert [one.current for one in find.runners()] == [False]
    assert find.find(platform) == find.built(platform)


@needs_gcc
def test_a_prebuilt_runner_without_its_permission_is_copied(native: Path):
    """Not every installer keeps the permission to execute."""
    platform = this_machine()
    build.build(platform, find.prebuilt(platform), "gcc")
    find.prebuilt(platform).chmod(0o444)
    path = find.find(platform)
    assert path == find.built(platform) and os.access(path, os.X_OK)
    assert path.read_bytes() == find.prebuilt(platform).read_bytes()


@needs_gcc
def test_sources_that_do_not_compile_show_the_compilers_message(native: Path, tmp_path: Path):
    (native / "main.c").write_text("int main(void) { return nothing_of_that_name; }\n")
    with pytest.raises(DeviceError, match=r"ended with code 1.*Try: --with") as caught:
        build.build(this_machine(), tmp_path / "out" / "runner", "gcc")
    assert "nothing_of_that_name" in str(caught.value)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.usefixtures("no_compilers")
def test_a_runner_that_cannot_be_had_says_the_command(native: Path):
    with pytest.raises(DeviceError, match=r"is not part of this .*Then: handheld runner build --for android-arm64"):
        find.find("android-arm64")
    find.prebuilt("android-arm64").parent.mkdir(parents=True)
    find.prebuilt("android-arm64").write_bytes(b"an old one")
    with pytest.raises(DeviceError, match="is older than its sources"):
        find.find("android-arm64")


def test_an_override_wins(native: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    mine = tmp_path / "mine"
    monkeypatch.setenv(find.OVERRIDE, str(mine))
    with pytest.raises(DeviceError, match=r"HANDHELD_RUNNER names .* no executable file"):
        find.find("linux-arm64")
    mine.touch(0o755)
    assert find.find("linux-arm64") == mine


def test_no_sources_are_an_error(native: Path):
    (native / "main.c").unlink()
    with pytest.raises(DeviceError, match="has no C files"):
        sources.source_hash()


@needs_zig
def test_zig_makes_the_same_bytes_in_every_folder(native: Path, tmp_path: Path):
    (native / "main.c").write_text(BARE)
    made = []
    for name in ("a", "another-folder"):
        build.build("android-arm64", tmp_path / name / "runner", "zig")
        made.append((tmp_path / name / "runner").read_bytes())
    assert made[0] == made[1] and b"/system/bin/linker64" in made[0]

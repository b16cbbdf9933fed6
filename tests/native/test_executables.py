"""The runners in the package: made from the sources beside them, small, and of the form that each system loads.

An Android phone cannot be had in a test. What its linker demands of an executable can be read from the file.
"""

from __future__ import annotations

import itertools
import os

import pytest

from handheld.runners import find, sources
from handheld.runners.android import NAMES
from handheld.runners.compilers import API, PAGE
from handheld.runners.platforms import PLATFORMS
from helpers import elf
from helpers.elf import Elf

REBUILD = "Try: pip install ziglang, then scripts/build_runners"
MOST_BYTES = 200_000
#: libraries of the system and nothing else
ALLOWED = {
    "android-arm64": {"libc.so", "libdl.so", "libm.so"},
    "linux-arm64": {"libc.so.6", "libdl.so.2", "libm.so.6", "ld-linux-aarch64.so.1"},
    "linux-x86_64": {"libc.so.6", "libdl.so.2", "libm.so.6", "ld-linux-x86-64.so.2"},
}
LINUX = ["linux-arm64", "linux-x86_64"]


@pytest.fixture(params=PLATFORMS)
def platform(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def runner(platform: str) -> Elf:
    path = find.prebuilt(platform)
    assert path.is_file(), f"there is no runner for {platform}. {REBUILD}"
    return Elf(path)


def test_it_was_made_from_these_sources(platform: str):
    source = sources.source_hash()
    assert sources.made_from(find.prebuilt(platform), source), (
        f"the runner for {platform} is older than the files in native/ (hash {source}). {REBUILD}"
    )


def test_it_is_small_and_executable(platform: str):
    path = find.prebuilt(platform)
    assert path.stat().st_size < MOST_BYTES and os.access(path, os.X_OK)


def test_it_is_a_position_independent_executable_of_its_machine(platform: str, runner: Elf):
    assert runner.machine == (elf.X86_64 if platform.endswith("x86_64") else elf.AARCH64)
    assert runner.type == elf.DYN and runner.tags(elf.FLAGS_1)[0] & elf.PIE
    expected = {
        "android-arm64": "/system/bin/linker64",
        "linux-arm64": "/lib/ld-linux-aarch64.so.1",
        "linux-x86_64": "/lib64/ld-linux-x86-64.so.2",
    }
    assert runner.interpreter == expected[platform]


def test_it_needs_only_the_c_library(platform: str, runner: Elf):
    assert set(runner.needed) <= ALLOWED[platform]
    assert not runner.tags(elf.RPATH) and not runner.tags(elf.RUNPATH)


def test_it_is_hardened(runner: Elf):
    (stack,) = runner.of_kind(elf.STACK)
    assert not stack.flags & elf.EXECUTE
    assert all(not (s.flags & elf.WRITE and s.flags & elf.EXECUTE) for s in runner.of_kind(elf.LOAD))
    assert len(runner.of_kind(elf.RELRO)) == 1  # Addresses of functions become read-only before main.
    assert runner.tags(elf.FLAGS_1)[0] & elf.NOW or runner.tags(elf.FLAGS)[0] & elf.BIND_NOW
    assert not runner.tags(elf.TEXTREL)
    assert not runner.of_kind(elf.TLS)  # Android gives a bare executable no thread-local storage.


def test_no_path_of_the_machine_that_built_it_is_in_it(runner: Elf):
    for path in (b"/home/", b"/root/", b"/tmp/", b"site-packages", b"/Users/"):
        assert path not in runner.data


@pytest.mark.parametrize("platform", LINUX, indirect=False)
def test_it_starts_on_old_distributions(platform: str):
    assert Elf(find.prebuilt(platform)).glibc <= (2, 17)


@pytest.fixture
def android() -> Elf:
    return Elf(find.prebuilt("android-arm64"))


def test_android_has_every_name_since_api_26(android: Elf):
    levels = {name: level for names in NAMES.values() for name, level in names.items()}
    assert API == 26 and android.undefined
    assert {name for name in android.undefined if levels.get(name, 99) > API} == set()


def test_android_loads_it_on_pages_of_16_kib(android: Elf):
    loads = android.of_kind(elf.LOAD)
    assert loads and all(s.align % PAGE == 0 for s in loads)
    assert all(s.address % PAGE == s.offset % PAGE for s in loads)
    # No page is shared by two segments, whose rights would differ.
    for before, after in itertools.pairwise(loads):
        assert (before.address + before.bytes - 1) // PAGE < after.address // PAGE
    # The read-only part is rounded to whole pages. None of them may hold data that is written later.
    (relro,) = android.of_kind(elf.RELRO)
    end = -(-(relro.address + relro.bytes) // PAGE) * PAGE
    writable = [s for s in loads if s.flags & elf.WRITE and s.address > relro.address]
    assert all(s.address >= end for s in writable)


def test_android_finds_its_dynamic_section(android: Elf):
    # Android's linker compares the header of the section with that of the segment, also in stripped files.
    (segment,) = android.of_kind(elf.DYNAMIC)
    (section,) = (s for s in android.sections if s.name == ".dynamic")
    assert (section.offset, section.address, section.bytes) == (segment.offset, segment.address, segment.file_bytes)
    assert {".gnu.hash", ".hash"} <= {s.name for s in android.sections}

"""The compilers that can build a runner: zig (a package of PyPI), gcc (of the distribution) and Android's NDK.

Each is found or not, and gives the command line for a platform. All of them make small, stripped,
position-independent executables that need nothing but the C library.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from handheld.errors import DeviceError
from handheld.runners.platforms import Platform, this_machine

API = 26  # Android 8.0
PAGE = 16384  # Android 15 has devices with pages of 16 KiB; segments aligned to them work with 4 KiB too.

COMMON = ("-std=c99", "-Os", "-g0", "-s", "-fPIE", "-pie", "-fvisibility=hidden", "-fno-ident")
SECTIONS = ("-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections")
HARDENED = ("-Wl,-z,relro", "-Wl,-z,now", "-Wl,-z,noexecstack", "-Wl,--build-id=none")
#: Android without its headers and start files: native/libc_bare.h and native/libc_bare.c stand in for them.
BARE = (
    *("-DHANDHELD_BARE", "-ffreestanding", "-nostdlib", "-fno-stack-protector", "-mno-outline-atomics"),
    *("-Wl,--dynamic-linker=/system/bin/linker64", f"-Wl,-z,max-page-size={PAGE}", "-Wl,--hash-style=both"),
)

_ZIG_TARGETS = {
    "android-arm64": "aarch64-linux-none",
    # An old C library, so that the runner starts on every distribution of the last ten years.
    "linux-arm64": "aarch64-linux-gnu.2.17",
    "linux-x86_64": "x86_64-linux-gnu.2.17",
}


@dataclass(frozen=True)
class Compiler:
    """A compiler for one platform: the start of its command line, and the flags of its own.

    `bare`: it has no C library for the platform, so the runner is linked against libraries that only hold names.
    """

    name: str
    command: tuple[str, ...]
    flags: tuple[str, ...] = ()
    bare: bool = False

    def line(self, files: Sequence[str], libraries: Sequence[str], out: Path) -> list[str]:
        own = (*BARE, *self.flags) if self.bare else self.flags
        return [*self.command, *COMMON, *SECTIONS, *HARDENED, *own, *files, *libraries, "-o", str(out)]

    def shared_line(self, file: str, soname: str, out: Path) -> list[str]:
        """The command for a library that only holds names."""
        flags = ("-shared", "-fPIC", "-nostdlib", "-ffreestanding", "-fno-builtin", f"-Wl,-soname,{soname}")
        return [*self.command, *flags, file, "-o", str(out)]


def zig(platform: Platform) -> Compiler | None:
    if importlib.util.find_spec("ziglang") is not None:
        start: tuple[str, ...] = (sys.executable, "-m", "ziglang")
    elif shutil.which("zig"):
        start = ("zig",)
    else:
        return None
    # Without this, zig adds checks of undefined behaviour to some builds.
    flags = ("-fno-sanitize=undefined",)
    return Compiler("zig", (*start, "cc", "-target", _ZIG_TARGETS[platform.name]), flags, bare=platform.android)


def gcc(platform: Platform) -> Compiler | None:
    """The system's own compiler where it makes programs for the platform, or Debian's cross compiler."""
    try:
        own = this_machine()
    except DeviceError:
        own = ""
    if own == platform.name and (found := shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")):
        pages = (f"-Wl,-z,max-page-size={PAGE}",) if platform.android else ()
        return Compiler("gcc", (found,), pages)
    if (found := shutil.which(f"{platform.machine}-linux-gnu-gcc")) is not None:
        return Compiler("gcc", (found,), bare=platform.android)
    if platform.android and own == "linux-arm64" and (found := shutil.which("gcc")):
        return Compiler("gcc", (found,), bare=True)
    return None


def ndk(platform: Platform) -> Compiler | None:
    if not platform.android:
        return None
    for variable in ("ANDROID_NDK_HOME", "ANDROID_NDK_ROOT"):
        folder = os.environ.get(variable)
        pattern = f"toolchains/llvm/prebuilt/*/bin/{platform.machine}-linux-android{API}-clang"
        for path in sorted(Path(folder).glob(pattern)) if folder else ():
            return Compiler("ndk", (str(path),), (f"-Wl,-z,max-page-size={PAGE}", "-Wl,--hash-style=both"))
    return None


#: The best comes first: the NDK has Android's own headers; zig makes the same bytes on every machine.
COMPILERS = {"ndk": ndk, "zig": zig, "gcc": gcc}


def choose(platform: Platform, name: str | None = None) -> Compiler:
    """The compiler with this name, or the first that is installed. Raises DeviceError that says what to install."""
    if name is not None and name not in COMPILERS:
        raise DeviceError(f"there is no compiler {name!r}. Try: --with {', '.join(COMPILERS)}")
    for key, find in COMPILERS.items():
        if name in (None, key) and (found := find(platform)) is not None:
            return found
    raise DeviceError(_missing(platform, name))


def _missing(platform: Platform, name: str | None) -> str:
    debian = f"gcc-{platform.machine.replace('_', '-')}-linux-gnu"
    hints = {
        "zig": "pip install ziglang",
        "gcc": f"apt install {debian}",
        "ndk": "set ANDROID_NDK_HOME to the folder of an Android NDK",
    }
    if name == "ndk" and not platform.android:
        return f"the NDK builds for Android only, not for {platform.name}. Try: --with zig"
    if name is not None:
        return f"{name} was not found, so no runner for {platform.name} can be built. Try: {hints[name]}"
    ways = [hints["zig"], hints["gcc"], *([hints["ndk"]] if platform.android else [])]
    return f"no compiler for {platform.name} was found. Try: {', or '.join(ways)}"
